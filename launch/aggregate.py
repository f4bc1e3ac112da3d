"""The last job of a submission: the table, with a reason for every number that is missing."""

from dataclasses import replace

from launch import slurm
from launch.flights import in_flight
from launch.states import CellState, Look
from launch.submission import Submission, submissions
from launch.tables import source_of_grids, write_report
from pipeline.errors import StageError
from pipeline.options import tell


def aggregate(submission: Submission) -> int:
    """Write the table of a submission's grid. What is missing stands in it, with the reason."""
    grid = submission.grid()
    if not grid.tasks:
        tell("no table: evaluation.tasks is empty, or all rows of the table wait for a choice")
        return 0
    source = source_of_grids([grid])
    found = [state for state in Look.at(grid, *_queued(submission)).states() if not state.cell.tunes]
    cells = tuple(
        cell if cell.reason or state.is_done else replace(cell, reason=_reason(state))
        for cell, state in zip(source.cells, found, strict=True)
    )
    write_report(replace(source, cells=cells))
    for state in found:
        if not state.is_done:
            tell(f"incomplete: {state.cell}: {_reason(state)}")
    return 0


def _reason(state: CellState) -> str:
    return f"{state.word}: {state.detail}" if state.detail else state.word


def _queued(submission: Submission) -> tuple:
    every = submissions(submission.path.parents[1])
    try:
        return every, in_flight(every, slurm.queue())
    except StageError:
        return every, {}
