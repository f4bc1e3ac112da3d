"""The command line. Heavy libraries are imported by the command that needs them, so that help is instant."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from launch.cli import grid_app
from pipeline.errors import UserError
from pipeline.options import ConfigFile, GridFile, Overrides, PartOption, Processes, tell
from pipeline.quiet import debugging, silence
from pipeline.tools import tools

app = typer.Typer(
    name="dualtune",
    help="Fine-tune language models that read the prompt differently from the answer, and tabulate a grid of runs.",
    epilog="Start here: `dualtune doctor`, then `dualtune run configs/quickstart.yaml --dry-run`.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


@app.command(epilog="Example: dualtune prepare configs/bitune/csqa.yaml data.max_tokens=256")
def prepare(
    config: ConfigFile,
    overrides: Overrides = None,
    num_proc: Annotated[int, typer.Option(min=1, help="Processes that share the work; the rows are the same.")] = 1,
    share: PartOption = None,
) -> None:
    """Read, check, template and tokenise the training data into the shared cache.

    Of N processes with --share 1/N to N/N, here or on other machines with this cache, the last one joins the rows.
    """
    if share is None:
        _stage("prepare", config, overrides, num_proc)
    else:
        _share("prepare", share, config, overrides, num_proc)


@app.command(epilog="Example: dualtune audit configs/bitune/csqa.yaml audit.max_percent.duplicates=0")
def audit(
    config: ConfigFile,
    overrides: Overrides = None,
    num_proc: Annotated[int, typer.Option(min=1, help="Processes that share the preparation.")] = 1,
    html: Annotated[Path | None, typer.Option(help="The page; default: RUN/audit.html.", show_default=False)] = None,
) -> None:
    """Look at the training data before any GPU is used: what is lost and why, lengths, odd rows, decoded samples.

    Prepares the data if they are not in the cache. Exit status 1 when a threshold (audit.max_percent) is passed.
    """
    from launch.tables import terminal
    from pipeline.audit.stage import audit as audit_data
    from pipeline.config import load_config
    from pipeline.run_folder import RunFolder

    run_config = load_config(config, overrides or ())
    folder = RunFolder.of(run_config)
    page = html or folder.audit
    view = audit_data(run_config, folder, terminal(), page, num_proc)
    tell(f"audit: {page}")
    for finding in view.failed:
        allowed = "no row is left" if finding.limit is None else f"more than audit.max_percent.{finding.name} allows"
        tell(f"audit: {finding.words}: {finding.count} rows ({finding.percent:.2f}%), {allowed}")
    raise typer.Exit(int(bool(view.failed)))


@app.command(epilog="Example: dualtune train configs/bitune/csqa.yaml training.epochs=2 seed=43")
def train(
    config: ConfigFile,
    overrides: Overrides = None,
    processes: Processes = 1,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="CHECKPOINT",
            help="Go on from this folder, RUN/train/checkpoints/step-N, not from the newest whole one.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train one run, going on from its newest checkpoint; what is prepared or trained already is not repeated.

    Started by torchrun, accelerate or srun, each process is one rank of the run.
    """
    from pipeline.train.environment import rank_variables

    if rank_variables(os.environ):
        if processes > 1:
            raise UserError(f"--processes={processes}: the launcher has started this process as one of several already")
        raise typer.Exit(_rank(config, overrides, resume))
    _stage("train", config, overrides, processes, resume)


def _rank(path: Path, overrides: list[str] | None, resume: Path | None) -> int:
    from pipeline.config import load_config
    from pipeline.run_folder import RunFolder
    from pipeline.train.spawn import train_as_rank

    config = load_config(path, overrides or ())
    return train_as_rank(config, RunFolder.of(config), tell, resume)


@app.command(epilog="Example: dualtune evaluate configs/bitune/csqa.yaml evaluation.limit=100")
def evaluate(
    config: ConfigFile,
    overrides: Overrides = None,
    processes: Annotated[int, typer.Option(min=1, help="Processes that share the work, on a GPU each.")] = 1,
    share: PartOption = None,
) -> None:
    """Score the trained model of one run (tuning=none: the pretrained one) on its evaluation tasks.

    Killed, it goes on after the last answers. Of N processes with --share 1/N to N/N the last one writes the results.
    """
    if share is None:
        _stage("evaluate", config, overrides, processes=processes)
    elif processes > 1:
        raise UserError("--share and --processes: give one of them")
    else:
        _share("evaluate", share, config, overrides)


@app.command(
    "lm-eval",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    epilog="Example: dualtune lm-eval run --model dualtune --model_args pretrained=runs/RUN/model --tasks hellaswag",
)
def lm_eval(arguments: typer.Context) -> None:
    """lm-eval's own command line with all its options; `--model dualtune` reads any model of ours, or a base model."""
    from pipeline.evaluate.plugin import run as run_harness

    run_harness(arguments.args)


def _stage(stage: Any, path: Path, overrides: list[str] | None, processes: int = 1, resume: Path | None = None) -> None:
    from pipeline.config import load_config
    from pipeline.run_folder import RunFolder
    from pipeline.stages import run_missing

    config = load_config(path, overrides or ())
    folder = RunFolder.of(config)
    run_missing(config, folder, tell, (stage,), processes, resume)
    print(folder.root)


def _share(stage: Any, share: str, path: Path, overrides: list[str] | None, processes: int = 1) -> None:
    from pipeline.config import load_config
    from pipeline.run_folder import RunFolder
    from pipeline.share import Share
    from pipeline.stages import run_share

    part = Share.parse(share)
    config = load_config(path, overrides or ())
    folder = RunFolder.of(config)
    run_share(stage, config, folder, part, tell, processes)
    print(folder.root)


@app.command(epilog="Example: dualtune run configs/quickstart.yaml training.epochs=2 seeds=[42,43,44]")
def run(
    file: GridFile,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time on this machine.")] = 1,
    processes: Processes = 1,
    report: Annotated[bool, typer.Option(help="End with the table.")] = True,
) -> None:
    """All stages of one run or of a grid, on this machine, then the table. What is complete is skipped.

    Stop it at any time: the same command goes on where it stopped.
    """
    from launch.command import run_grid
    from launch.grid import load_grid

    grid = load_grid(file, overrides or ())
    raise typer.Exit(run_grid(grid, jobs=jobs, dry_run=dry_run, with_report=report, tell=tell, processes=processes))


@app.command(
    epilog="Examples: dualtune report configs/quickstart.yaml    dualtune report runs/*    "
    "dualtune report configs/bitune/table1.yaml --layout table1 --reference"
)
def report(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE... [KEY=VALUE]... | FOLDER...",
            help="Run or grid files with overrides, or run folders.",
            show_default=False,
        ),
    ],
    layout: Annotated[
        str | None,
        typer.Option(help="Rows and columns of a table of the paper (table1), or a YAML file.", show_default=False),
    ] = None,
    reference: Annotated[bool, typer.Option("--reference", help="The paper's numbers beside ours.")] = False,
    output: Annotated[Path | None, typer.Option(help="Folder for the written tables.", show_default=False)] = None,
    watch: Annotated[
        int | None,
        typer.Option(min=1, metavar="SECONDS", help="Do it again this often, until all is there.", show_default=False),
    ] = None,
) -> None:
    """The table of finished runs: mean ± deviation over seeds, differences to the baseline, what is missing and why."""
    from launch.tables import read_source, write_report
    from launch.watch import follow

    if watch is None:
        write_report(read_source(source), layout, reference, output)
    else:
        follow(lambda: write_report(read_source(source), layout, reference, output), watch, tell)


app.add_typer(tools)
app.add_typer(grid_app, name="grid")


def follow_parent() -> None:
    """Stop in good order when the launcher that started this process is gone: nothing trains on unseen."""
    launcher = os.environ.get("DUALTUNE_PARENT")
    if not launcher:
        return

    def watch() -> None:
        while os.getppid() == int(launcher):
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1 (failed), 2 (user's mistake), 130 (interrupted)."""
    silence()
    follow_parent()
    try:
        status = app(arguments, prog_name="dualtune", standalone_mode=False)
    except Exception as error:
        return _explain(error)
    if status == 130:
        tell("interrupted: the same command goes on where it stopped")
    return status if isinstance(status, int) else 0


def _explain(error: Exception) -> int:
    """Print one line (with DUALTUNE_DEBUG=1 the stack trace before it) and return the exit status."""
    from pipeline.stages import describe

    if debugging():
        import traceback

        traceback.print_exception(error)
    usage = getattr(error, "format_message", None)  # the parser's own errors: unknown commands, options, ...
    if usage is not None:
        if usage():  # empty when help was printed because no command was given
            tell(f"error: {usage()} (see `dualtune --help`)")
        return int(getattr(error, "exit_code", 2))
    advice = "" if isinstance(error, UserError | OSError) else " (DUALTUNE_DEBUG=1 shows where)"
    tell(f"error: {describe(error)}{advice}")
    return error.status if isinstance(error, UserError) else 1


if __name__ == "__main__":
    sys.exit(main())
