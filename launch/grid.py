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
tune:                        # values that are chosen by runs of one row, and then used by all (optional)
  at: {row: LoRA}
  over: {training.weight_decay: [0, 0.1]}
  metric: validation_loss
baseline: LoRA               # the row that others are compared with
seeds: [42, 43]
metrics:                     # columns of a task; by default its main metric (optional)
  logiqa: [acc, acc_norm]
reference:                   # published numbers, shown as further rows: label -> column -> text (optional)
  Paper: {"logiqa:acc": 23.0 ± 1.6}

Later layers win: defaults, base, config, axes in order, what is chosen, row, the cell's own keys, overrides.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from launch.axes import Axes, Point
from launch.cells import Choice, Grid, GridCell, Waiting, candidates
from launch.choice import settle
from launch.grid_file import OWN_KEYS, GridConfig, is_grid, read_grid
from launch.labels import Labels
from launch.layers import Layer, interpolated, overlay
from launch.tuning import Tuner
from pipeline.config import RunConfig, check_given_once, merge, override_layer, parse_config, read_yaml
from pipeline.errors import UserError, did_you_mean

__all__ = ["Grid", "GridCell", "GridConfig", "load_grid"]


def load_grid(path: Path | str, overrides: Sequence[str] = ()) -> Grid:
    """Read a grid file, or a run configuration as a grid of one cell.

    Raises:
        UserError: naming file, row, key and value.
    """
    check_given_once(overrides)
    path = Path(path)
    values = read_yaml(path)
    if not is_grid(values, path):
        config = parse_config(merge(values, path, overrides=overrides), str(path), overrides)
        return Grid(config.name, (GridCell(config.name, _seed(config), config),), None)
    grid, shared = read_grid(path, [override for override in overrides if _root(override) in OWN_KEYS])
    builder = Builder(grid, path, shared, [override for override in overrides if _root(override) not in OWN_KEYS])
    reference = {label: {key: str(text) for key, text in row.items()} for label, row in grid.reference.items()}
    ready, waiting, choices = builder.build()
    cells = (*candidates(choices, ready), *ready)
    found = Grid(grid.name, cells, grid.baseline, grid.metrics, reference, choices, waiting, grid.blocks)
    _check_names(found, path)
    _check_columns(found, path)
    return settle(found)


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
        given = {override.partition("=")[0] for override in overrides}
        tune = grid.tune if grid.tune and not given.issuperset(grid.tune.over) else None
        self.tuner = Tuner(tune, self.axes, self.points, self.labels) if tune else None

    def build(self) -> tuple[list[GridCell], tuple[Waiting, ...], tuple[Choice, ...]]:
        """The runs of the table, those of it that wait for a choice, and the choices.

        Raises:
            UserError: two of one name, two that are the same run, or a choice that has no sense.
        """
        ready: list[GridCell] = []
        waiting: list[Waiting] = []
        for point in self.points:
            options = self._options(point)
            first = next(iter(options.values()))
            if all(cells == first for cells in options.values()):
                ready += first
                continue
            assert self.tuner
            for cells in zip(*options.values(), strict=True):
                place = len(ready) + len(waiting)
                waiting.append(Waiting(self.tuner.name(point), place, dict(zip(options, cells, strict=True))))
        if self.tuner and not waiting:
            keys = ", ".join(self.tuner.tune.over)
            raise UserError(f"{self.path}: tune.over: no run is another one by another {keys}: nothing to choose")
        for chosen in waiting[0].options if waiting else [""]:
            _refuse_twins([*ready, *(one.options[chosen] for one in waiting)], self.path, chosen)
        names = dict.fromkeys(one.choice for one in waiting)
        choices = tuple(self.tuner.choice(name, self.cells) for name in names) if self.tuner else ()
        return ready, tuple(waiting), choices

    def _options(self, point: Point) -> dict[str, list[GridCell]]:
        """What may be chosen -> the runs of a point; of one that does not depend on it, the same."""
        if self.tuner is None:
            return {"": self.cells(point)}
        options = {value: self.cells(point, layer) for value, layer in self.tuner.options.items()}
        if len({cell.folder.root for cells in options.values() for cell in cells}) == len(next(iter(options.values()))):
            return {"": next(iter(options.values()))}
        return options

    def cells(self, point: Point, *choice: Layer) -> list[GridCell]:
        """The runs of a point, one for each seed."""
        config = self.config(point, *choice)
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
    rows = dict.fromkeys(one.row if isinstance(one, GridCell) else one.cell.row for one in grid.shown)
    if grid.baseline is not None and grid.baseline not in rows:
        close, known = did_you_mean(grid.baseline, rows), ", ".join(map(repr, rows))
        raise UserError(f"{path}: baseline {grid.baseline!r} is not one of the rows{close}: {known}")


def _check_columns(grid: Grid, path: Path) -> None:
    """A published number that stands in no column would be lost. Those of tasks that are not scored are left out."""
    tasks = grid.tasks
    columns = grid.columns(tasks)
    for label, row in grid.reference.items():
        for key in row:
            if key.partition(":")[0] in tasks and key not in columns:
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


def _refuse_twins(cells: Sequence[GridCell], path: Path, chosen: str) -> None:
    names: set[str] = set()
    runs: dict[Path, GridCell] = {}
    for cell in cells:
        if str(cell) in names:
            raise UserError(f"{path}: two runs are called {str(cell)!r}: give one of them a label")
        names.add(str(cell))
        twin = runs.setdefault(cell.folder.root, cell)
        if twin is not cell:
            case = f" if {chosen} is chosen" if chosen else ""
            words = f"{twin.label!r} and {cell.label!r} describe the same run{case}: change or drop one"
            raise UserError(f"{path}: rows {words}")
