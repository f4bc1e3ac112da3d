"""The plan of a grid: for each cell what is complete and what will be done. Printed, then executed."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from launch.cells import Grid, GridCell, Waiting
from pipeline.checks import check_evaluation, check_run
from pipeline.report.text import printable
from pipeline.stages import STAGES, Stage, State, describe, stages_of, states


@dataclass(frozen=True)
class CellPlan:
    """One cell and the state of each stage it needs, in order."""

    cell: GridCell
    states: dict[Stage, State]

    @property
    def complete(self) -> bool:
        return all(found.complete for found in self.states.values())

    @property
    def missing(self) -> tuple[Stage, ...]:
        """The stages that are left to do."""
        return tuple(stage for stage, found in self.states.items() if not found.complete)


def plan(grid: Grid) -> list[CellPlan]:
    """Look at every cell's run folder. Nothing is changed, and nothing heavy is imported."""
    return [plan_cell(cell) for cell in grid.cells]


def plan_cell(cell: GridCell) -> CellPlan:
    """The same for one cell. What can't be read is to do: a job then says whether it can be written."""
    try:
        return CellPlan(cell, states(cell.config, cell.folder))
    except OSError as error:  # a colleague's folder, or a folder where a file should be
        state = State(False, f"to do, cannot be read: {describe(error)}")
        return CellPlan(cell, dict.fromkeys(stages_of(cell.config), state))


def check(plans: Sequence[CellPlan], waiting: Sequence[Waiting] = ()) -> None:
    """Refuse what can't run before anything is started or written.

    Raises:
        UserError: as `check_run`, of the first run of which something is missing.
    """
    for planned in [*plans, *(plan_cell(one.cell) for one in waiting)]:
        check_run(planned.cell.config, planned.missing)


def check_evaluations(plans: Sequence[CellPlan]) -> None:
    """The same of evaluations alone: models and data may lie where only the jobs of a cluster see them.

    Raises:
        UserError: as `check_evaluation`.
    """
    for planned in plans:
        if "evaluate" in planned.missing:
            check_evaluation(planned.cell.config)


def table(plans: Sequence[CellPlan], waiting: Sequence[Waiting] = ()) -> Table:
    """One line for each cell: row, seed, state of each stage, run folder; then what waits for a choice."""
    shown = Table(title_justify="left", header_style="bold", pad_edge=False, box=None, padding=(0, 2, 0, 0))
    for column in ("row", "seed", *STAGES, "run folder"):
        shown.add_column(column, overflow="fold")
    for planned in plans:
        seed = "-" if planned.cell.seed is None else str(planned.cell.seed)
        words = [_words(planned.states.get(stage)) for stage in STAGES]
        name = planned.cell.label or planned.cell.row
        name = f"candidate: {name}" if planned.cell.tunes else name
        shown.add_row(plain(name), seed, *words, plain(planned.cell.folder.root))
    for one in waiting:
        needed = stages_of(one.cell.config)
        words = ["waits" if stage in needed else "-" for stage in STAGES]
        shown.add_row(plain(one.cell.label or one.cell.row), str(one.cell.seed or "-"), *words, plain(one.words))
    return shown


def _words(found: State | None) -> Text | str:
    if found is None:
        return "-"
    return plain(found.words, "green" if found.complete else "yellow")


def plain(text: object, style: str = "") -> Text:
    """What a user has named, as it stands: not read as markup, and without control characters."""
    return Text(printable(str(text)), style)


def summary(plans: Sequence[CellPlan], waiting: Sequence[Waiting] = ()) -> str:
    """One sentence: how many runs, how much of them is complete, how many wait for a choice."""
    if waiting:
        choices = ", ".join(dict.fromkeys(one.choice for one in waiting))
        return f"{summary(plans)}; {len(waiting)} more wait for the choice of {choices}"
    todo = sum(len(planned.missing) for planned in plans)
    stages = sum(len(planned.states) for planned in plans)
    runs = f"{len(plans)} run{'s' if len(plans) != 1 else ''}"
    if not todo:
        return f"{runs}: all {stages} stages are complete, nothing to compute"
    return f"{runs}: {stages - todo} of {stages} stages complete, {todo} to do"
