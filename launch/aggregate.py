"""The last job of a submission: it makes the choices that a grid asks for and submits what waited for them, then
writes the table, with a reason for every number that is missing."""

from dataclasses import replace

from launch import slurm
from launch.cells import Grid
from launch.choice import resolve
from launch.flights import in_flight
from launch.plan import CellPlan, plan_cell
from launch.states import CellState, Look
from launch.submission import Submission, submissions
from launch.submit import Submitter
from launch.tables import source_of_grids, write_report
from pipeline.errors import StageError
from pipeline.options import tell


def aggregate(submission: Submission) -> int:
    """Write the table of a submission's grid. What is missing stands in it, with the reason.

    Returns:
        Exit status: 0, or 1 when a choice cannot be made, or what waited for it not be submitted.
    """
    grid, status = _continued(submission)
    if not grid.tasks:
        tell("no table: evaluation.tasks is empty")
        return status
    source = source_of_grids([grid])
    missing = {state.cell.folder.root: state for state in Look.at(grid, *_queued(submission)).states()
               if not state.is_done and not state.cell.tunes}  # fmt: skip
    cells = tuple(
        replace(cell, reason=_reason(missing[cell.folder.root]))
        if cell.reason is None and cell.folder.root in missing
        else cell
        for cell in source.cells
    )
    write_report(replace(source, cells=cells))
    for state in missing.values():
        tell(f"incomplete: {state.cell}: {_reason(state)}")
    return status


def _continued(submission: Submission) -> tuple[Grid, int]:
    """The grid with the choices that can be made now, and whether all went well; what waited for them is submitted,
    with a last job of its own. Failed runs are not started again for that."""
    before = submission.grid()
    if not before.waiting:
        return before, 0
    grid, problems = resolve(before, tell)
    for problem in problems:
        tell(f"error: {problem}")
    freed = {cell.folder.root for cell in grid.freed(before)}
    plans = [plan_cell(cell) if cell.folder.root in freed else CellPlan(cell, {}) for cell in grid.cells]
    try:
        Submitter(grid, submission.profile, tell).submit(plans)
    except StageError as error:
        tell(f"error: {error}; `dualtune grid submit` on a login node submits what waited for the choice")
        return grid, 1
    return grid, int(bool(problems))


def _reason(state: CellState) -> str:
    return f"{state.word}: {state.detail}" if state.detail else state.word


def _queued(submission: Submission) -> tuple:
    every = submissions(submission.path.parents[1])
    try:
        return every, in_flight(every, slurm.queue())
    except StageError:
        return every, {}
