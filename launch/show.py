"""Plans and states of grids as text for the terminal."""

from collections import Counter
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from launch.cells import Grid
from launch.jobs import Array, JobPlan
from launch.plan import plain
from launch.profile import Resources
from launch.states import CellState

COLOURS = {
    "done": "green", "running": "cyan", "waiting": "blue", "failed": "red", "cancelled": "magenta", "stopped": "magenta"
}  # fmt: skip
CELLS = 200
"""Cells shown one by one; of larger grids those that are not done or waiting."""


def plan_table(plan: JobPlan) -> Table:
    """One line for each array."""
    shown = _table("array", "job", "tasks", "after", "nodes", "GPUs/node", "CPUs/task", "memory", "time", "GPU hours")
    for array in plan.arrays:
        shown.add_row(str(array.number), array.job, str(len(array.tasks)), _after(array), *_resources(array))
    if plan.arrays or plan.adopted:
        shown.add_row("", "aggregate", "1", "all", *_shape(plan.aggregate), "")
    return shown


def _after(array: Array) -> str:
    return str(array.after) if array.after else f"job {array.after_job}" if array.after_job else "-"


def _resources(array: Array) -> tuple[str | Text, ...]:
    return (*_shape(array.resources), f"{array.resources.gpu_hours * len(array.tasks):.1f}")


def _shape(resources: Resources) -> tuple[str | Text, ...]:
    gpus = str(resources.gpus_per_node) + (f" {resources.gpu_type}" if resources.gpu_type else "")
    return (str(resources.nodes), plain(gpus), str(resources.cpus_per_task), resources.memory or "-", resources.time)


def plan_words(plan: JobPlan, grid: Grid) -> str:
    """What is submitted, what is not because it is in the queue already, and where results go."""
    lines = []
    for position, found in list(plan.adopted.items())[:20]:
        jobs = ", ".join(f"{job} in job {task.job}_{task.slot}" for job, task in found.items())
        lines.append(f"in the queue already: {grid.cells[position]}: {jobs}")
    if len(plan.adopted) > 20:
        lines.append(f"in the queue already: {len(plan.adopted) - 20} more cells")
    hours = f", at most {plan.gpu_hours:.1f} GPU hours without restarts" if plan.gpu_hours else ""
    lines.append(f"{plan.jobs} jobs in {len(plan.arrays)} arrays{hours}; results in {grid.runs}")
    return "\n".join(lines)


def state_table(states: Sequence[CellState]) -> Table:
    """One line for each cell; of a large grid, for those that run or need a look."""
    shown = _table("cell", "state", "step", "loss", "tokens/s", "left", "")
    for state in states:
        if len(states) > CELLS and state.word in ("done", "waiting", "not submitted"):
            continue
        colour = COLOURS.get(state.word, "yellow")
        shown.add_row(plain(state.cell), Text(state.word, colour), *_progress(state), plain(state.detail))
    return shown


def _progress(state: CellState) -> tuple[str, str, str, str]:
    found = state.progress
    if found is None or state.detail == "evaluate":
        return ("", "", "", "")
    left = f"{found.seconds_left / 3600:.1f} h" if found.seconds_left > 5400 else f"{found.seconds_left / 60:.1f} min"
    return (f"{found.step}/{found.total}", f"{found.loss:.4f}", f"{found.tokens_per_second:.0f}", left)


def state_words(states: Sequence[CellState]) -> str:
    """`12 cells: 10 done, 2 running`"""
    counts = Counter(state.word for state in states)
    return f"{len(states)} cells: " + ", ".join(f"{count} {word}" for word, count in counts.items())


def _table(*columns: str) -> Table:
    shown = Table(title_justify="left", header_style="bold", pad_edge=False, box=None, padding=(0, 2, 0, 0))
    for column in columns:
        shown.add_column(column, overflow="fold")
    return shown
