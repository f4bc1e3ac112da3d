"""What the command line does with a grid: plan, print, execute, report."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from launch.grid import Grid, GridCell
from launch.local import LocalExecutor
from launch.plan import CellPlan, plan, summary, table
from pipeline.errors import UserError
from pipeline.report import Cell, cells_of, report
from pipeline.run_folder import RunFolder
from pipeline.stages import Tell, failure, run_missing

REPORTS = "reports"
"""Folder beside the run folders that holds one folder of tables for each grid."""


def run_grid(grid: Grid, jobs: int, dry_run: bool, with_report: bool, tell: Tell, processes: int = 1) -> int:
    """Print the plan and execute it: one run in this process, several in processes of their own; then the table.

    Returns:
        Exit status: 0, or 1 when a run of a grid failed.

    Raises:
        UserError: what a single run raises; a grid records the reasons of its runs and goes on.
    """
    plans = plan(grid)
    if len(plans) > 1 or dry_run:
        console(width=1000).print(table(plans))
        tell(summary(plans))
    if dry_run:
        return 0
    reasons = _execute(plans, jobs, tell, processes)
    if with_report and grid.tasks:
        report_grid(grid, None)
    elif with_report:
        tell("no table: evaluation.tasks is empty")
    for cell, reason in reasons:
        tell(f"failed: {cell}: {reason} ({cell.folder.root})")
    return int(bool(reasons))


def _execute(plans: Sequence[CellPlan], jobs: int, tell: Tell, processes: int) -> list[tuple[GridCell, str]]:
    if len(plans) == 1:
        cell = plans[0].cell
        run_missing(cell.config, cell.folder, tell, processes=processes)
        return []
    return LocalExecutor(jobs, tell, processes).execute(plans)


def report_grid(grid: Grid, output: Path | None) -> None:
    """Print and write the table of a grid, whatever is there of it."""
    cells = [_report_cell(cell, grid) for cell in grid.cells]
    folder = output or grid.runs / REPORTS / grid.name
    report(cells, grid.name, grid.baseline, folder, console(), reference=grid.reference)


def _report_cell(cell: GridCell, grid: Grid) -> Cell:
    reason = failure(cell.folder)
    columns = grid.columns(cell.config.evaluation.tasks)
    return Cell(cell.row, cell.seed, cell.folder, columns, f"failed: {reason}" if reason else None)


def report_folders(folders: Sequence[Path], output: Path | None) -> None:
    """The same for run folders, grouped into rows by what they have in common. The folder of tables is passed over.

    Raises:
        UserError: a folder is not a run folder.
    """
    runs = [folder for folder in folders if folder.name != REPORTS]
    if not runs:
        raise UserError(f"{folders[0]}: holds tables, not a run")
    report(
        cells_of([RunFolder(run) for run in runs]), "runs", None, output or runs[0].parent / REPORTS / "runs", console()
    )


def console(width: int = 200) -> Console:
    """The terminal; where there is none, `width` columns, so that redirected tables don't wrap."""
    found = Console()
    return found if found.is_terminal else Console(width=width)
