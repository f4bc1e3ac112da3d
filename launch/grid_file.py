"""The keys of a grid file, and reading one with the files it is based on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field, ValidationError, model_validator

from launch.layers import Layer, nested, overlay, written_out
from pipeline.config import Seed, explain, merge, read_yaml
from pipeline.errors import UserError, did_you_mean
from pipeline.schema import Schema

VALIDATION_LOSS = "validation_loss"


class TuneConfig(Schema):
    """Values that are chosen by runs of a baseline, and then used by all runs."""

    at: dict[str, Any] = {}
    """Row and axis values of the baseline."""
    over: Annotated[dict[str, Any], Field(min_length=1)]
    """Key -> its values, as of an axis; of several keys, every combination."""
    metric: Annotated[str, Field(min_length=1)] = VALIDATION_LOSS
    """`validation_loss`, or TASK for its main metric, or TASK:METRIC."""
    mode: Literal["min", "max"] | None = None
    """Which is best; of the validation loss the smallest."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] | None = None
    """Over whose runs the metric is averaged; null: the grid's first."""
    by: tuple[str, ...] = ()
    """Axes for each of whose values a choice is made."""

    @model_validator(mode="after")
    def _check(self) -> "TuneConfig":
        if self.mode is None and self.metric != VALIDATION_LOSS:
            raise ValueError(f"mode is missing: is the largest {self.metric} the best (max), or the smallest (min)?")
        if self.seeds is not None and len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: {list(self.seeds)} names a seed twice")
        return self


class GridConfig(Schema):
    """The keys of a grid file."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[\w+-][\w.+-]*$", max_length=150)]
    base: str | tuple[str, ...] = ()
    config: dict[str, Any] = {}
    presets: dict[str, dict[str, Any]] = {}
    axes: dict[str, Any] = {}
    rows: dict[str, dict[str, Any]] = {}
    cells: tuple[dict[str, Any], ...] = ()
    exclude: tuple[Annotated[dict[str, Any], Field(min_length=1)], ...] = ()
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (42,)
    tune: TuneConfig | None = None
    baseline: str | None = None
    blocks: str | None = None
    """The axis whose values head blocks of rows in the table."""
    columns: str | None = None
    """The axis whose values are scored on different tasks: their runs share the rows of the table."""
    metrics: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] = {}
    reference: dict[str, dict[str, str | float]] = {}

    @model_validator(mode="after")
    def _check(self) -> "GridConfig":
        if not self.rows and not self.axes and not self.cells:
            raise ValueError("a grid needs rows, axes or cells")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: {list(self.seeds)} names a seed twice")
        for key, words in (("name", ""), ("seed", ", as in seeds: [42, 43]")):
            if key in self.config:
                raise ValueError(f"{key} belongs at the top of a grid, not into config{words}")
        for key in ("blocks", "columns"):
            axis = getattr(self, key)
            if axis is not None and axis not in self.axes:
                raise ValueError(f"{key}: there is no axis {axis!r}{did_you_mean(axis, self.axes)}")
        return self


OWN_KEYS = tuple(key for key in GridConfig.model_fields if key not in ("base", "config"))
"""Overrides of these change the grid; all others change every run."""
NAMED_ENTRIES = ("presets", "axes", "rows", "metrics", "reference")
"""A grid that is based on another one adds to these by name; `null` drops an entry."""


def is_grid(values: dict[str, Any], path: Path, trail: tuple[Path, ...] = ()) -> bool:
    """Whether a file describes several runs: it has a grid's keys, or is based on a file that has."""
    if set(values) & {*OWN_KEYS, "config"} - {"name"}:
        return True
    bases = values.get("base", [])
    files = [path.parent / base for base in ([bases] if isinstance(bases, str) else bases) if isinstance(base, str)]
    return any(is_grid(read_yaml(file), file, (*trail, path)) for file in files if file not in trail)


def read_grid(path: Path, overrides: Sequence[str]) -> tuple[GridConfig, Layer]:
    """A grid file over the files it is based on, with overrides of the grid's own keys; and the configuration that all
    its runs share.

    Raises:
        UserError: naming the file, the key, the value and what was allowed.
    """
    values, shared = _inherited(path, ())
    try:
        for override in overrides:
            values = _changed(values, override)
        return GridConfig.model_validate(values), shared
    except (OmegaConfBaseException, TypeError) as error:
        raise UserError(f"{path}: {str(error).splitlines()[0]}") from None
    except ValidationError as error:
        raise UserError(f"{path}: " + "; ".join(explain(error, GridConfig))) from None


def _inherited(path: Path, trail: tuple[Path, ...]) -> tuple[dict[str, Any], Layer]:
    if path.resolve() in trail:
        raise UserError(f"{path}: its base files include each other in a circle")
    own = read_yaml(path)
    bases = own.pop("base", [])
    if isinstance(bases, str):
        bases = [bases]
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise UserError(f"{path}: base: must be a list of YAML files, not {bases!r}")
    grid: dict[str, Any] = {}
    shared: Layer = {}
    for base in bases:
        file = path.parent / base
        if is_grid(read_yaml(file), file):
            values, layer = _inherited(file, (*trail, path.resolve()))
            grid = _over(grid, {key: value for key, value in values.items() if key != "name"})
        else:
            layer = merge({"base": [base]}, path)
        shared = overlay(shared, layer)
    own = _written_out(own, path)
    if isinstance(own.get("config"), dict):
        shared = overlay(shared, own["config"])
    return _over(grid, own), shared


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    found = {**below, **above}
    for key in NAMED_ENTRIES:
        if isinstance(below.get(key), dict) and isinstance(above.get(key), dict):
            entries = {**below[key], **above[key]}
            found[key] = {name: entry for name, entry in entries.items() if entry is not None}
    return found


def _written_out(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """Every layer of a grid file in one form."""
    found = dict(values)
    for key in ("presets", "rows"):
        if isinstance(values.get(key), dict):
            found[key] = {
                str(name): None if layer is None else written_out(layer, path.parent, f"{path}: {key}.{name}")
                for name, layer in values[key].items()
            }
    if isinstance(values.get("axes"), dict):
        found["axes"] = {str(name): _axis(axis, path, f"axes.{name}") for name, axis in values["axes"].items()}
    if isinstance(values.get("config"), dict):
        found["config"] = written_out(values["config"], path.parent, f"{path}: config")
    return found


def _axis(axis: Any, path: Path, where: str) -> Any:
    if not isinstance(axis, dict):
        return axis
    where = f"{path}: {where}"
    return {
        str(label): written_out(value, path.parent, f"{where}.{label}") if isinstance(value, dict) else value
        for label, value in axis.items()
    }


def _changed(values: dict[str, Any], override: str) -> dict[str, Any]:
    """The grid with one override: `seeds=[1,2]`, `rows.LoRA.tuning.rank=16`, `axes.training.learning_rate=[1e-4]`."""
    key, separator, text = override.partition("=")
    root, _, rest = key.partition(".")
    if not separator:
        raise UserError(f"override {override!r} is not of the form key=value, for example seeds=[42,43]")
    value = _value(override, text)
    if root in ("rows", "axes", "presets") and rest:
        return {**values, root: _entry_changed(root, values.get(root, {}), rest, value, override)}
    return overlay(values, nested(key, value))


def _entry_changed(root: str, entries: dict[str, Any], rest: str, value: Any, override: str) -> dict[str, Any]:
    """A misspelt name would otherwise add an entry of defaults. Names may hold dots; an axis is replaced as a whole."""
    first = rest if root == "axes" else rest.partition(".")[0]
    name = next((entry for entry in entries if root != "axes" and f"{rest}.".startswith(f"{entry}.")), first)
    if name not in entries:
        kind = {"axes": "axis", "rows": "row", "presets": "preset"}[root]
        raise UserError(f"override {override!r}: the grid has no such {kind}{did_you_mean(name, entries)}")
    inner = rest[len(name) + 1 :]
    above = nested(inner, value) if inner else written_out(value, Path(), override) if root != "axes" else value
    return {**entries, name: overlay(entries[name], above) if inner else above}


def _value(override: str, text: str) -> Any:
    try:
        found: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))
    except (OmegaConfBaseException, yaml.YAMLError):
        raise UserError(f"override {override!r}: {text!r} is not a YAML value") from None
    return found["value"]
