"""What a grid consists of: runs, and runs that wait for a choice between values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pipeline.config import RunConfig
from pipeline.run_folder import RunFolder

REPORTS = "reports"
"""Folder beside the run folders that holds one folder of tables and choices for each grid."""


@dataclass(frozen=True)
class GridCell:
    """One run of the grid. `seed` is None for a row that is not trained."""

    row: str
    """Its row in the table: the grid's row and the values of the axes that vary."""
    seed: int | None
    config: RunConfig
    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), compare=False)
    """`row` and axis -> label of its value."""
    label: str = ""
    """What it is called among all runs of the grid, but for its seed."""
    block: str = ""
    """The block of rows that it stands in."""
    tunes: bool = False
    """It is run for a choice between values, and is not in the table."""

    @cached_property
    def folder(self) -> RunFolder:
        return RunFolder.of(self.config)

    def __str__(self) -> str:
        name = self.label or self.row
        return name if self.seed is None else f"{name}, seed {self.seed}"


@dataclass(frozen=True)
class Choice:
    """Between values for some cells, by what the runs of a baseline measure with each."""

    name: str
    """What is chosen, and for whom: `learning_rate for Gemma-2B`."""
    metric: str
    """`validation_loss`, or a task's main metric `TASK`, or `TASK:METRIC`."""
    mode: Literal["min", "max"]
    candidates: Mapping[str, tuple[GridCell, ...]]
    """Value, in words -> its runs, one for each seed."""
    chosen: str | None = None

    @property
    def runs(self) -> tuple[GridCell, ...]:
        """The runs of all candidates."""
        return tuple(cell for cells in self.candidates.values() for cell in cells)


@dataclass(frozen=True)
class Waiting:
    """A run of the table that is known once a choice is made."""

    choice: str
    position: int
    """Among the runs of the table."""
    options: Mapping[str, GridCell]
    """Candidate -> the run, if that one is chosen."""

    @property
    def cell(self) -> GridCell:
        """For what all options have in common: names, seed, tasks. Not to be run."""
        return next(iter(self.options.values()))

    @property
    def words(self) -> str:
        return f"waits for the choice of {self.choice}"


@dataclass(frozen=True)
class Grid:
    """What can be run, and what waits for a choice between values."""

    name: str
    cells: tuple[GridCell, ...]
    """Candidates of open choices first, then what is in the table, in its order: block by block, row by row, seed by
    seed."""
    baseline: str | None
    metrics: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Task -> its metrics, each a column `task:metric`; a task that is not here has its main metric as one column."""
    reference: dict[str, dict[str, str]] = field(default_factory=dict)
    """Label -> column -> a published number as text."""
    choices: tuple[Choice, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    blocks: str | None = None
    """The axis whose values head the blocks."""

    @property
    def runs(self) -> Path:
        """The folder that holds the run folders."""
        return next(iter([*self.cells, *(one.cell for one in self.waiting)])).config.paths.runs

    @property
    def open_choices(self) -> list[Choice]:
        """Those that have not been made."""
        return [choice for choice in self.choices if choice.chosen is None]

    @property
    def shown(self) -> tuple[GridCell | Waiting, ...]:
        """What the table has rows of, in its order."""
        waiting: dict[int, Waiting] = {one.position: one for one in self.waiting}
        rest = iter(cell for cell in self.cells if not cell.tunes)
        size = sum(not cell.tunes for cell in self.cells) + len(waiting)
        return tuple(waiting.get(position) or next(rest) for position in range(size))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The evaluation tasks of the table, in order of first mention."""
        cells = (one if isinstance(one, GridCell) else one.cell for one in self.shown)
        return tuple(dict.fromkeys(task for cell in cells for task in cell.config.evaluation.tasks))

    def columns(self, tasks: Sequence[str]) -> tuple[str, ...]:
        """The columns of the table for these tasks."""
        named = {task: [f"{task}:{metric}" for metric in metrics] for task, metrics in self.metrics.items()}
        return tuple(column for task in tasks for column in named.get(task, [task]))

    def freed(self, before: "Grid") -> list[GridCell]:
        """The runs of the table that waited in an earlier state of this grid, and can be run now."""
        waited = {one.position for one in before.waiting}
        return [one for place, one in enumerate(self.shown) if place in waited and isinstance(one, GridCell)]

    def with_choices(self, chosen: Mapping[str, str]) -> "Grid":
        """The grid with these choices made (name -> candidate): what waited for them can be run, and their candidates
        are run no more."""
        choices = tuple(replace(one, chosen=chosen.get(one.name, one.chosen)) for one in self.choices)
        cells = (
            one.options[chosen[one.choice]] if isinstance(one, Waiting) and one.choice in chosen else one
            for one in self.shown
        )
        table = list(cells)
        ready = [one for one in table if isinstance(one, GridCell)]
        waiting = tuple(one for one in table if isinstance(one, Waiting))
        return replace(self, cells=(*candidates(choices, ready), *ready), choices=choices, waiting=waiting)


def candidates(choices: Sequence[Choice], ready: Sequence[GridCell]) -> list[GridCell]:
    """The runs of open choices, each once, without those that are in the table anyway."""
    taken = {cell.folder.root for cell in ready} if choices else set()
    found = [cell for choice in choices if choice.chosen is None for cell in choice.runs]
    return list({cell.folder.root: cell for cell in found if cell.folder.root not in taken}.values())
