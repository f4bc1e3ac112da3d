"""`dualtune grid`: plan, submit, watch, cancel, retry."""

from typing import Annotated, Literal

import typer

from pipeline.options import Cluster, GridFile, Overrides

grid_app = typer.Typer(
    help="A grid on a Slurm cluster, or in processes of this machine: plan, submit, watch, cancel, retry.",
    no_args_is_help=True,
)

Executor = Annotated[
    Literal["auto", "slurm", "local"],
    typer.Option(help="Where jobs run; auto: on Slurm where one answers, else on this machine."),
]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time on this machine, without Slurm.")]
Processes = Annotated[int, typer.Option(min=1, help="That share one training on this machine, without Slurm.")]


@grid_app.command(epilog="Example: dualtune grid plan configs/quickstart.yaml --cluster configs/clusters/generic.yaml")
def plan(
    file: GridFile,
    overrides: Overrides = None,
    cluster: Cluster = None,
    executor: Executor = "auto",
    scripts: Annotated[bool, typer.Option("--scripts", help="Print the job scripts too.")] = False,
) -> None:
    """Print what `submit` would do: cells, what is complete, arrays, dependencies, resources, GPU hours, folders."""
    from launch.control import Control

    Control(file, overrides or (), cluster, executor).plan(scripts)


@grid_app.command(epilog="Example: dualtune grid submit configs/quickstart.yaml --cluster configs/clusters/a100.yaml")
def submit(
    file: GridFile,
    overrides: Overrides = None,
    cluster: Cluster = None,
    executor: Executor = "auto",
    jobs: Jobs = 1,
    processes: Processes = 1,
) -> None:
    """Submit all that is missing and not in the queue already. Call it again at any time: nothing is done twice."""
    from launch.control import Control

    raise typer.Exit(Control(file, overrides or (), cluster, executor).submit(jobs, processes))


@grid_app.command(epilog="Example: dualtune grid status configs/quickstart.yaml --watch 10")
def status(
    file: GridFile,
    overrides: Overrides = None,
    executor: Executor = "auto",
    watch: Annotated[
        int | None,
        typer.Option(min=1, metavar="SECONDS", help="Again this often, until nothing runs.", show_default=False),
    ] = None,
) -> None:
    """State, step, loss, rate and time left of every cell, and why one failed. Exit status 1 if one failed."""
    from launch.control import Control

    raise typer.Exit(Control(file, overrides or (), None, executor).status(watch))


@grid_app.command(epilog='Example: dualtune grid cancel configs/quickstart.yaml "Bitune, seed 42"')
def cancel(
    file: GridFile,
    cells: Annotated[
        list[str] | None, typer.Argument(metavar="[CELL|KEY=VALUE]...", help="Only these cells.", show_default=False)
    ] = None,
    executor: Executor = "auto",
) -> None:
    """Take the grid's jobs, or those of some cells, out of the queue. Running trainings save a checkpoint first."""
    from launch.control import Control

    names, overrides = _split(cells or [])
    Control(file, overrides, None, executor).cancel(names)


@grid_app.command(epilog="Example: dualtune grid retry configs/quickstart.yaml --cluster configs/clusters/generic.yaml")
def retry(
    file: GridFile,
    overrides: Overrides = None,
    cluster: Cluster = None,
    executor: Executor = "auto",
    jobs: Jobs = 1,
    processes: Processes = 1,
) -> None:
    """Submit the failed, cancelled, stopped and lost cells again, and no others; each goes on from its checkpoint."""
    from launch.control import Control

    raise typer.Exit(Control(file, overrides or (), cluster, executor).submit(jobs, processes, only_failed=True))


@grid_app.command(epilog='Example: dualtune grid logs configs/quickstart.yaml "Bitune, seed 42" --lines 50')
def logs(
    file: GridFile,
    cell: Annotated[str, typer.Argument(metavar="CELL", help="As `status` names it.", show_default=False)],
    overrides: Overrides = None,
    lines: Annotated[int, typer.Option(min=1, help="How many of the last lines.")] = 30,
    executor: Executor = "auto",
) -> None:
    """The last lines of a cell's output."""
    from launch.control import Control

    print(Control(file, overrides or (), None, executor).log(cell, lines))


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Names of cells, and overrides: a row's name may hold an equals sign, a key no comma or blank."""
    overrides = [word for word in words if "=" in word and " " not in word.partition("=")[0]]
    return [word for word in words if word not in overrides], overrides
