"""A grid: rows (methods, settings) x axes x seeds over one shared run configuration, as one YAML file.

name: quickstart
base: [shared.yaml]          # run configurations to start from, or a grid (optional)
config: {...}                # keys shared by all runs, over the base
presets:                     # named layers, which rows, axis values and cells can use (optional)
  small: {model: models/SmolLM2-135M-Instruct, training: {batch_size: 8}}
axes:                        # name -> values; every combination is a run (optional)
  training.learning_rate: [1e-4, 3e-4]
rows:                        # label in the table -> what differs from the shared configuration
  Pretrained: {tuning: none}
  LoRA: {method: causal}
  Bitune: {method: bitune}
cells:                       # extra runs (optional)
  - {row: Bitune, training.learning_rate: 1e-3}
exclude:                     # combinations that are left out (optional)
  - {row: LoRA, training.learning_rate: 1e-4}
baseline: LoRA               # the row that others are compared with
seeds: [42, 43]
metrics:                     # columns of a task; by default its main metric (optional)
  logiqa: [acc, acc_norm]
reference:                   # published numbers, shown as further rows: label -> column -> text (optional)
  Paper: {"logiqa:acc": 23.0 ± 1.6}

Later layers win: defaults, base, config, axes in order, row, the cell's own keys, overrides.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from launch.axes import Axes, Point
from launch.grid_file import OWN_KEYS, GridConfig, is_grid, read_grid
from launch.labels import Labels
from launch.layers import Layer, interpolated, overlay
from pipeline.config import RunConfig, merge, override_layer, parse_config, read_yaml
from pipeline.errors import UserError, did_you_mean
from pipeline.run_folder import RunFolder

__all__ = ["Grid", "GridCell", "GridConfig", "load_grid"]


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

    @cached_property
    def folder(self) -> RunFolder:
        return RunFolder.of(self.config)

    def __str__(self) -> str:
        name = self.label or self.row
        return name if self.seed is None else f"{name}, seed {self.seed}"


@dataclass(frozen=True)
class Grid:
    """Cells in table order: block by block, row by row, seed by seed."""

    name: str
    cells: tuple[GridCell, ...]
    baseline: str | None
    metrics: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Task -> its metrics, each a column `task:metric`; a task that is not here has its main metric as one column."""
    reference: dict[str, dict[str, str]] = field(default_factory=dict)
    """Label -> column -> a published number as text."""

    @property
    def runs(self) -> Path:
        """The folder that holds the run folders."""
        return self.cells[0].config.paths.runs

    @property
    def tasks(self) -> tuple[str, ...]:
        """The evaluation tasks of all cells, in order of first mention."""
        return tuple(dict.fromkeys(task for cell in self.cells for task in cell.config.evaluation.tasks))

    def columns(self, tasks: Sequence[str]) -> tuple[str, ...]:
        """The columns of the table for these tasks."""
        named = {task: [f"{task}:{metric}" for metric in metrics] for task, metrics in self.metrics.items()}
        return tuple(column for task in tasks for column in named.get(task, [task]))


def load_grid(path: Path | str, overrides: Sequence[str] = ()) -> Grid:
    """Read a grid file, or a run configuration as a grid of one cell.

    Raises:
        UserError: naming file, row, key and value.
    """
    path = Path(path)
    values = read_yaml(path)
    if not is_grid(values, path):
        config = parse_config(merge(values, path, overrides=overrides), str(path), overrides)
        return Grid(config.name, (GridCell(config.name, _seed(config), config),), None)
    grid, shared = read_grid(path, [override for override in overrides if _root(override) in OWN_KEYS])
    builder = Builder(grid, path, shared, [override for override in overrides if _root(override) not in OWN_KEYS])
    reference = {label: {key: str(text) for key, text in row.items()} for label, row in grid.reference.items()}
    found = Grid(grid.name, tuple(builder.cells()), grid.baseline, grid.metrics, reference)
    _check_names(found, path)
    _check_columns(found, path)
    return found


class Builder:
    """Makes the cells of a grid file."""

    def __init__(self, grid: GridConfig, path: Path, shared: Layer, overrides: Sequence[str]) -> None:
        if any(_root(override) == "seed" for override in overrides):
            raise UserError(f"{path}: a grid has several seeds: change them as in seeds=[42,43]")
        self.path, self.shared, self.overrides = path, shared, overrides
        self.above: Layer = {}
        for override in overrides:
            self.above = overlay(self.above, override_layer(override))
        self.axes = Axes(grid, path)
        self.points = self.axes.points()
        self.labels = Labels(grid, self.axes, self.points)

    def cells(self) -> list[GridCell]:
        """All runs, refusing two of one name and two that are the same run."""
        found = [cell for point in self.points for cell in self._cells(point)]
        _refuse_twins(found, self.path)
        return found

    def _cells(self, point: Point) -> list[GridCell]:
        config = self.config(point)
        seeds = point.seeds if config.tuning.kind != "none" else point.seeds[:1]  # no seed changes a pretrained model
        runs = [named(config.model_copy(update={"seed": seed})) for seed in seeds]
        names = self.labels.of(point)
        return [GridCell(names.row, _seed(run), run, point.values, names.label, names.block) for run in runs]

    def config(self, point: Point, *choice: Layer) -> RunConfig:
        """The configuration of a point, with whatever seed; a choice stands over axes and under rows."""
        values = self.shared
        for layer in (point.axes, *choice, point.own, self.above):
            values = overlay(values, layer)
        values = {**interpolated(values, self.path), "name": "run"}
        return parse_config(values, f"{self.path}: {self.labels.of(point).label}", self.overrides)


def _check_names(grid: Grid, path: Path) -> None:
    rows = dict.fromkeys(cell.row for cell in grid.cells)
    if grid.baseline is not None and grid.baseline not in rows:
        close = did_you_mean(grid.baseline, rows)
        raise UserError(f"{path}: baseline {grid.baseline!r} is not one of the rows{close}: {', '.join(rows)}")


def _check_columns(grid: Grid, path: Path) -> None:
    """A published number that stands in no column would be lost. Those of tasks that are not scored are left out."""
    columns = grid.columns(grid.tasks)
    for label, row in grid.reference.items():
        for key in row:
            if key.partition(":")[0] in grid.tasks and key not in columns:
                raise UserError(f"{path}: reference.{label}.{key}: no such column; there are {', '.join(columns)}")


def _root(override: str) -> str:
    return override.partition("=")[0].partition(".")[0]


def _seed(config: RunConfig) -> int | None:
    return None if config.tuning.kind == "none" else config.seed


def named(config: RunConfig) -> RunConfig:
    """Name the run by what it is, so that a new row or another grid with the same run renames nothing."""
    parts = [Path(config.model.name).name, config.method.name, config.tuning.kind]
    if config.tuning.kind == "none":
        parts = [parts[0], "pretrained"] if config.method.name == "causal" else [*parts[:2], "untrained"]
    else:
        parts.append(f"seed{config.seed}")
    return config.model_copy(update={"name": re.sub(r"[^\w.+-]+", "_", "-".join(parts))[:150]})


def _refuse_twins(cells: Sequence[GridCell], path: Path) -> None:
    names: set[str] = set()
    runs: dict[Path, GridCell] = {}
    for cell in cells:
        if str(cell) in names:
            raise UserError(f"{path}: two runs are called {str(cell)!r}: give one of them a label")
        names.add(str(cell))
        twin = runs.setdefault(cell.folder.root, cell)
        if twin is not cell:
            words = f"{twin.label!r} and {cell.label!r} describe the same run: change or drop one"
            raise UserError(f"{path}: rows {words}")
