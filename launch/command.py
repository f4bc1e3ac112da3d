"""What the command line does with a grid: plan, print, execute, report."""

from collections.abc import Collection, Sequence

from launch.cells import Grid, GridCell
from launch.choice import resolve
from launch.local import LocalExecutor
from launch.plan import CellPlan, check, plan, plan_cell, summary, table
from launch.tables import source_of_grids, terminal, write_report
from pipeline.stages import Tell, refresh, run_missing


def run_grid(
    grid: Grid,
    jobs: int,
    dry_run: bool,
    with_report: bool,
    tell: Tell,
    processes: int = 1,
    chosen: Collection[GridCell] | None = None,
    apart: bool = False,
) -> int:
    """Print the plan and execute it: one run in this process, several in processes of their own; then choose values
    where the grid asks for it, execute what waited for that, and print the table.

    Args:
        chosen: run these cells only; the table has all.
        apart: one run in a process of its own as well, which keeps its log.

    Returns:
        Exit status: 0, or 1 when a run of a grid failed.

    Raises:
        UserError: what `check` refuses, and what a single run raises; a grid records the reasons of its runs and goes
            on.
    """
    plans = [planned for planned in plan(grid) if chosen is None or planned.cell in chosen]
    check(plans, grid.waiting)
    if len(plans) > 1 or dry_run:
        terminal(width=1000).print(table(plans, grid.waiting))
        tell(summary(plans, grid.waiting))
    if dry_run:
        return 0
    reasons = _execute(plans, apart or len(grid.shown) > 1, jobs, tell, processes)
    problems: list[str] = []
    if grid.waiting:
        before = grid
        grid, problems = resolve(grid, tell)
        reasons += _execute([plan_cell(cell) for cell in grid.freed(before)], True, jobs, tell, processes)
    try:
        if with_report and grid.tasks:
            write_report(source_of_grids([grid]))
        elif with_report:
            tell("no table: evaluation.tasks is empty")
    finally:  # what keeps runs from being written may keep the table from it as well
        for cell, reason in reasons:
            tell(f"failed: {cell}: {reason} ({cell.folder.root})")
        for problem in problems:
            tell(f"failed: {problem}")
    return int(bool(reasons or problems))


def _execute(
    plans: Sequence[CellPlan], is_grid: bool, jobs: int, tell: Tell, processes: int
) -> list[tuple[GridCell, str]]:
    if len(plans) == 1 and not is_grid:
        cell = plans[0].cell
        run_missing(cell.config, cell.folder, tell, processes=processes)
        return []
    for planned in plans:
        if planned.complete:
            refresh(planned.cell.config, planned.cell.folder, tell)
    return LocalExecutor(jobs, tell, processes).execute(plans)
