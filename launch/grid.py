"""A grid: rows (methods, settings) x seeds over one shared run configuration, as one YAML file.

name: quickstart
base: [shared.yaml]          # run configurations to start from (optional)
config: {...}                # keys shared by all runs, over the base
rows:                        # label in the table -> what differs from the shared configuration
  Pretrained: {tuning: none}
  LoRA: {method: causal}
  Bitune: {method: bitune}
baseline: LoRA               # the row that others are compared with
seeds: [42, 43]
metrics:                     # columns of a task; by default its main metric (optional)
  logiqa: [acc, acc_norm]
reference:                   # published numbers, shown as further rows: label -> column -> text (optional)
  Paper: {"logiqa:acc": 23.0 ± 1.6}
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field, ValidationError, model_validator

from pipeline.config import RunConfig, Seed, explain, merge, parse_config, read_yaml, signature
from pipeline.errors import UserError, did_you_mean
from pipeline.run_folder import RunFolder
from pipeline.schema import Schema


class GridConfig(Schema):
    """The keys of a grid file."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[\w.+-]+$")]
    base: str | tuple[str, ...] = ()
    config: dict[str, Any] = {}
    rows: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (42,)
    baseline: str | None = None
    metrics: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] = {}
    reference: dict[str, dict[str, str | float]] = {}

    @model_validator(mode="after")
    def _check(self) -> "GridConfig":
        if self.baseline is not None and self.baseline not in self.rows:
            raise ValueError(f"baseline {self.baseline!r} is not one of the rows: {', '.join(self.rows)}")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: {list(self.seeds)} names a seed twice")
        layers = [self.config, *self.rows.values()]
        if any("name" in layer for layer in layers):
            raise ValueError("name belongs at the top of a grid; runs are named after model, method, tuning and seed")
        if any("seed" in layer for layer in layers):
            raise ValueError("seed belongs at the top of a grid, as in seeds: [42, 43]")
        return self


OWN_KEYS = ("name", "rows", "seeds", "baseline", "metrics", "reference")
"""Overrides of these change the grid; all others change every run."""


@dataclass(frozen=True)
class GridCell:
    """One run of the grid. `seed` is None for a row that is not trained."""

    row: str
    seed: int | None
    config: RunConfig

    @property
    def folder(self) -> RunFolder:
        return RunFolder.of(self.config)

    def __str__(self) -> str:
        return self.row if self.seed is None else f"{self.row}, seed {self.seed}"


@dataclass(frozen=True)
class Grid:
    """Cells in table order: row by row, seed by seed."""

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
    if "rows" not in values:
        config = parse_config(merge(values, path, overrides=overrides), str(path), overrides)
        return Grid(config.name, (GridCell(config.name, _seed(config), config),), None)
    grid = _parse(values, path, [override for override in overrides if _root(override) in OWN_KEYS])
    others = [override for override in overrides if _root(override) not in OWN_KEYS]
    _refuse_new_rows(overrides, values["rows"])
    if any(_root(override) == "seed" for override in others):
        raise UserError(f"{path}: a grid has several seeds: change them as in seeds=[42,43]")
    base = list(grid.base) if isinstance(grid.base, tuple) else grid.base
    shared = merge({"base": base, **grid.config}, path)
    cells = [cell for row in grid.rows for cell in _row_cells(grid, row, shared, path, others)]
    _refuse_twins(cells, path)
    reference = {label: {key: str(text) for key, text in row.items()} for label, row in grid.reference.items()}
    found = Grid(grid.name, tuple(cells), grid.baseline, grid.metrics, reference)
    _check_columns(found, path)
    return found


def _check_columns(grid: Grid, path: Path) -> None:
    """A published number that stands in no column would be lost. Those of tasks that are not scored are left out."""
    columns = grid.columns(grid.tasks)
    for label, row in grid.reference.items():
        for key in row:
            if key.partition(":")[0] in grid.tasks and key not in columns:
                raise UserError(f"{path}: reference.{label}.{key}: no such column; there are {', '.join(columns)}")


def _refuse_new_rows(overrides: Sequence[str], rows: dict[str, Any]) -> None:
    """A misspelt label would otherwise add a row of defaults."""
    for override in overrides:
        root, *label = override.partition("=")[0].split(".")[:2]
        if root == "rows" and label and label[0] not in rows:
            raise UserError(f"override {override!r}: the grid has no such row{did_you_mean(label[0], rows)}")


def _root(override: str) -> str:
    return override.partition("=")[0].partition(".")[0]


def _seed(config: RunConfig) -> int | None:
    return None if config.tuning.kind == "none" else config.seed


def _parse(values: dict[str, Any], path: Path, overrides: Sequence[str]) -> GridConfig:
    try:
        merged = OmegaConf.merge(OmegaConf.create(values), OmegaConf.from_dotlist(list(overrides)))
        return GridConfig.model_validate(OmegaConf.to_container(merged))
    except yaml.YAMLError:
        raise UserError(f"{path}: {' '.join(overrides)}: is not a YAML value") from None
    except (OmegaConfBaseException, TypeError) as error:
        raise UserError(f"{path}: {str(error).splitlines()[0]}") from None
    except ValidationError as error:
        raise UserError(f"{path}: " + "; ".join(explain(error, GridConfig))) from None


def _row_cells(
    grid: GridConfig, row: str, shared: dict[str, Any], path: Path, overrides: Sequence[str]
) -> list[GridCell]:
    values = merge(shared, path, above=[grid.rows[row]], overrides=overrides)
    config = parse_config({**values, "name": "run"}, f"{path}: row {row!r}", overrides)
    seeds = grid.seeds if config.tuning.kind != "none" else grid.seeds[:1]  # no seed changes a pretrained model
    runs = [_named(config.model_copy(update={"seed": seed})) for seed in seeds]
    return [GridCell(row, _seed(run), run) for run in runs]


def _named(config: RunConfig) -> RunConfig:
    """Name the run by what it is, so that a new row or another grid with the same run renames nothing."""
    parts = [Path(config.model.name).name, config.method.name, config.tuning.kind]
    if config.tuning.kind == "none":
        parts = [parts[0], "pretrained"] if config.method.name == "causal" else [*parts[:2], "untrained"]
    else:
        parts.append(f"seed{config.seed}")
    return config.model_copy(update={"name": re.sub(r"[^\w.+-]+", "_", "-".join(parts))[:150]})


def _refuse_twins(cells: Sequence[GridCell], path: Path) -> None:
    seen: dict[str, GridCell] = {}
    for cell in cells:
        twin = seen.setdefault(signature(cell.config), cell)
        if twin is not cell:
            raise UserError(f"{path}: rows {twin.row!r} and {cell.row!r} describe the same run: change or drop one")
