"""`dualtune data`: what the cache of prepared data holds, filling it on a cluster, cleaning it."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from pipeline.errors import UserError
from pipeline.options import Cluster, ConfigFile, Overrides, tell

if TYPE_CHECKING:
    from pipeline.prepare.entries import Entry

data_app = typer.Typer(
    help="The cache of prepared data: what it holds, filling it on a cluster, cleaning it.", no_args_is_help=True
)

Cache = Annotated[Path, typer.Option(help="paths.cache of the runs.")]
Runs = Annotated[Path, typer.Option(help="paths.runs: whose runs are asked which rows they use.")]
CACHE, RUNS = Path(".cache/dualtune"), Path("runs")


@data_app.command("list", epilog="Example: dualtune data list --cache /scratch/cache --runs /scratch/runs")
def data_list(cache: Cache = CACHE, runs: Runs = RUNS) -> None:
    """What is there, newest first: rows, size, age, and the runs that use it."""
    from launch.tables import terminal
    from pipeline.prepare.entries import entries

    found = entries(cache, runs)
    terminal().print(_table(found))
    tell(f"{cache}: {len(found)} entries, {sum(entry.size for entry in found) / 2**20:.1f} MiB")


@data_app.command(
    "submit",
    epilog="Example: dualtune data submit configs/bitune/csqa.yaml --shares 16 --cluster configs/clusters/generic.yaml",
)
def data_submit(
    config: ConfigFile,
    shares: Annotated[
        int, typer.Option(min=1, help="Tasks of the array, each of which prepares every N-th part.", metavar="N")
    ],
    overrides: Overrides = None,
    cluster: Cluster = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and the scripts, and stop.")] = False,
) -> None:
    """Prepare a run's data on Slurm: an array of shares, then a job that joins them to the rows of one process.

    Call it again at any time: only shares that are neither there nor in the queue are submitted.
    """
    from launch.data_jobs import DataJobs
    from launch.profile import load_profile
    from pipeline.config import load_config

    jobs = DataJobs(load_config(config, overrides or ()), shares, load_profile(cluster), tell)
    if dry_run:
        jobs.show()
    else:
        jobs.submit()


@data_app.command("clean", epilog="Example: dualtune data clean 0a1b2c3d4e5f6071 --yes")
def data_clean(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Default: all that no run folder uses, but shares.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    cache: Cache = CACHE,
    runs: Runs = RUNS,
) -> None:
    """Remove prepared data, after asking; never what a live process writes or uses. They can be prepared again."""
    from launch.tables import terminal
    from pipeline.prepare.entries import entries, removable, remove

    chosen = removable(entries(cache, runs), keys or ())
    if not chosen:
        tell(f"{cache}: nothing to remove, every entry is used by a run in {runs}")
        return
    terminal().print(_table(chosen))
    if not yes and not sys.stdin.isatty():
        raise UserError("without a terminal to ask in, --yes must confirm the removal")
    if not yes and not typer.confirm(f"Remove these {len(chosen)} from {cache}?", err=True):
        return
    for entry in chosen:
        kept = remove(entry)
        tell(f"{entry.path.name}: kept, {kept}" if kept else f"{entry.path.name}: removed")


def _table(found: "list[Entry]") -> Table:
    table = Table("key", "", "rows", "MiB", "hours old", "runs")
    for entry in found:
        age = (datetime.now(UTC) - entry.changed).total_seconds() / 3600
        rows = "" if entry.rows is None else str(entry.rows)
        size, users = f"{entry.size / 2**20:.1f}", Text("\n".join(entry.runs))
        table.add_row(entry.key, entry.kind, rows, size, f"{age:.1f}", users)
    return table
