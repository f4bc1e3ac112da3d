"""The planned runs of a table, and which of them may be averaged."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config import RunConfig
from pipeline.errors import UserError
from pipeline.report.differences import differing_keys
from pipeline.run_folder import RunFolder


@dataclass(frozen=True)
class Cell:
    """One planned run: a row of the table, a seed (None: the run has none), and the tasks it is scored on, each as
    `task` (its main metric) or `task:metric`.

    `reason` is what the planner knows about a run that did not finish ("failed: out of memory"). It is shown where
    a number is missing; numbers that are there count whatever it says.
    """

    row: str
    seed: int | None
    folder: RunFolder
    tasks: tuple[str, ...]
    reason: str | None = None
    group: str = ""
    """Rows of several groups (models) may have one name."""
    config: RunConfig | None = field(default=None, compare=False)
    """As planned; a layout finds the run's place by it."""


def _groups(cells: Iterable[Cell]) -> Iterable[tuple[Cell, ...]]:
    """The runs over which a number is averaged, each group once."""
    groups: dict[tuple[str, str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        for task in cell.tasks:
            groups[cell.group, cell.row, task].append(cell)
    return dict.fromkeys(tuple(group) for group in groups.values())


def check_twins(cells: Iterable[Cell]) -> None:
    """Refuse to count a run or a seed twice, whatever is there of it.

    Raises:
        UserError: naming the row, the run folders and the seed.
    """
    for group in _groups(cells):
        seen: dict[Hashable, Cell] = {}
        for cell in group:
            for identity in (cell.folder.root, ("seed", cell.seed)):
                if identity in seen:
                    raise UserError(_twins(seen[identity], cell))
                seen[identity] = cell


def _twins(first: Cell, second: Cell) -> str:
    differing = differing_keys([first.config, second.config]) if first.config and second.config else []
    how = f"; they differ in {', '.join(differing)}" if differing else ""
    where = f"{first.folder.root} and {second.folder.root}, seed {second.seed}"
    return f"row {second.row!r} counts a run twice: {where}{how}"


def check_rows(cells: Iterable[Cell], configs: Mapping[Path, RunConfig]) -> None:
    """Refuse to average over anything but seeds.

    Raises:
        UserError: naming the row, the run folders and the keys in which they differ.
    """
    for group in _groups(cells):
        first = group[0], configs[group[0].folder.root]
        for cell in group:
            _check_pair(first, (cell, configs[cell.folder.root]))


def _check_pair(first: tuple[Cell, RunConfig], second: tuple[Cell, RunConfig]) -> None:
    cell, config = second
    if cell.seed is not None and cell.seed != config.seed:
        raise UserError(f"{cell.folder.config}: has seed {config.seed}, but row {cell.row!r} expects seed {cell.seed}")
    if first[1].model_copy(update={"seed": config.seed, "name": config.name}) == config:
        return
    keys = differing_keys([first[1], config])
    if keys:
        raise UserError(
            f"row {cell.row!r} would mix runs that differ in more than the seed: {first[0].folder.root} and "
            f"{cell.folder.root} differ in {', '.join(keys)}"
        )
