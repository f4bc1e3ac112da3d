"""The points of a grid: rows x axes, extra cells, minus exclusions; each with what it changes, without seeds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from launch.grid_file import GridConfig
from launch.layers import INCLUDES, Layer, Presets, nested, overlay, written_out
from pipeline.config import RunConfig
from pipeline.errors import UserError, did_you_mean

ROW = "row"
SEED = "seed"


@dataclass(frozen=True)
class Point:
    """One run without its seed."""

    values: Mapping[str, str]
    """`row` and axis -> label; an extra cell may lack some."""
    axes: Layer
    """What its axis values change, in order."""
    own: Layer
    """What its row, and then the cell itself, change: over the axes and over a choice."""
    seeds: tuple[int, ...]
    label: str | None = None
    """What an extra cell is called in the table."""
    extra: str = ""
    """The keys of an extra cell, in words."""


class Axes:
    """The rows and axes of a grid, by label."""

    def __init__(self, grid: GridConfig, path: Path) -> None:
        self.grid, self.path = grid, path
        self.presets = Presets(grid.presets, path)
        self.rows = {label: self.presets.resolve(layer, f"rows.{label}") for label, layer in grid.rows.items()}
        self.axes = {name: self._axis(name, values) for name, values in grid.axes.items()}

    @property
    def names(self) -> list[str]:
        return [*([ROW] if self.rows else []), *self.axes]

    def points(self) -> list[Point]:
        """Products in table order (blocks, rows, further axes), then the extra cells.

        Raises:
            UserError: a cell or an exclusion that names what there is not, or an exclusion that matches nothing.
        """
        found = [
            *self._products(),
            *(self._extra(cell, f"cells.{number}") for number, cell in enumerate(self.grid.cells)),
        ]
        for number, entry in enumerate(self.grid.exclude):
            found = self._without(found, entry, f"exclude.{number}")
        if not found:
            raise UserError(f"{self.path}: exclude: no run is left")
        return found

    def _products(self) -> Iterator[Point]:
        if not self.rows and not self.axes:
            return
        combined: list[tuple[dict[str, str], Layer]] = [({}, {})]
        for name, values in self.axes.items():
            combined = [
                ({**labels, name: label}, overlay(layer, value))
                for labels, layer in combined
                for label, value in values.items()
            ]
        block = self.grid.blocks
        for heading in self.axes[block] if block else [""]:
            ours = [(labels, layer) for labels, layer in combined if not block or labels[block] == heading]
            for row in self.rows or [""]:
                named = {ROW: row} if row else {}
                for labels, layer in ours:
                    yield Point({**named, **labels}, layer, self.rows.get(row, {}), self.grid.seeds)

    def _axis(self, name: str, values: Any) -> dict[str, Layer]:
        if name in (ROW, SEED, "seeds", "label", "use", "base"):
            words = "seeds: [42, 43] at the top" if name.startswith(SEED) else "another name"
            raise UserError(f"{self.path}: axes.{name}: {name!r} cannot be an axis: use {words}")
        return self.values_of(name, values, f"axes.{name}")

    def values_of(self, name: str, values: Any, where: str) -> dict[str, Layer]:
        """Label -> what the value changes, of an axis or of values to choose from.

        Raises:
            UserError: naming the file, the value and what was allowed.
        """
        if not isinstance(values, dict | list) or not values:
            raise UserError(f"{self.path}: {where} = {values!r}: must be a list of values, or label: value")
        labelled = dict(values) if isinstance(values, dict) else _labelled(values, f"{self.path}: {where}")
        presets = [value for value in labelled.values() if isinstance(value, str) and value in self.presets]
        return {
            str(label): self._value(name, value, bool(presets), f"{where}.{label}") for label, value in labelled.items()
        }

    def _value(self, name: str, value: Any, of_presets: bool, where: str) -> Layer:
        """What one value changes: a layer, a preset, or the key that the axis is called after."""
        if isinstance(value, dict):
            return self.presets.resolve(value, where)
        if of_presets and isinstance(value, str):
            return self.presets.resolve(self.presets.named(value, where), where)
        root = name.partition(".")[0]
        if root not in RunConfig.model_fields or root == "name":
            close = did_you_mean(name, RunConfig.model_fields) or did_you_mean(str(value), self.grid.presets)
            words = f"{name!r} is no key of a run, so its values must hold keys or name presets{close}"
            raise UserError(f"{self.path}: {where} = {value!r}: {words}")
        return nested(name, value)

    def _extra(self, cell: Mapping[str, Any], where: str) -> Point:
        """A cell that is listed: values of axes, new ones too, and further keys."""
        rest = {key: value for key, value in cell.items() if key not in (ROW, *self.axes, "label", "seeds")}
        self._check_keys(rest, where)
        values: dict[str, str] = {}
        own: Layer = {}
        if ROW in cell:
            values[ROW] = self._label(ROW, cell[ROW], where)
            own = self.rows[values[ROW]]
        axes: Layer = {}
        for name in (name for name in self.axes if name in cell):
            values[name] = str(cell[name])
            axes = overlay(axes, self._named_value(name, cell[name], where))
        keys = self.presets.resolve(written_out(rest, self.path.parent, f"{self.path}: {where}"), where)
        words = ", ".join(f"{key.split('.')[-1]} {value}" for key, value in rest.items())
        label = str(cell["label"]) if "label" in cell else None
        return Point(values, axes, overlay(own, keys), self._seeds(cell, where), label, words)

    def _named_value(self, axis: str, value: Any, where: str) -> Layer:
        """A value of the axis by its label, or a new plain one of a key of runs, or a preset."""
        label, known = str(value), self.axes[axis]
        if label in known:
            return known[label]
        new = axis.partition(".")[0] in RunConfig.model_fields and (is_bare(label) or not did_you_mean(label, known))
        if not (new or label in self.presets) or isinstance(value, dict | list):
            self._label(axis, value, where)
        return self._value(axis, value, label in self.presets, f"axes.{axis}.{label}")

    def _check_keys(self, keys: Mapping[str, Any], where: str) -> None:
        known = [ROW, "label", "seeds", *INCLUDES, *self.axes, *RunConfig.model_fields]
        for key in keys:
            if key not in known and key.partition(".")[0] not in RunConfig.model_fields:
                words = f"{key!r} is neither an axis nor a key of a run{did_you_mean(key, known)}"
                raise UserError(f"{self.path}: {where}: {words}")

    def _seeds(self, cell: Mapping[str, Any], where: str) -> tuple[int, ...]:
        seeds = cell.get("seeds", list(self.grid.seeds))
        if not isinstance(seeds, list) or not seeds or not all(type(s) is int and 0 <= s < 2**32 for s in seeds):
            raise UserError(f"{self.path}: {where}.seeds = {seeds!r}: must be a list of whole numbers from 0")
        return tuple(dict.fromkeys(seeds))

    def _label(self, name: str, value: Any, where: str) -> str:
        """The label of a row or of an axis value that is named elsewhere."""
        known = self.rows if name == ROW else self.axes[name]
        if str(value) not in known:
            kind = "row" if name == ROW else "value"
            words = f"there is no such {kind}{did_you_mean(str(value), known)} (there are {', '.join(known) or 'none'})"
            raise UserError(f"{self.path}: {where}.{name} = {value!r}: {words}")
        return str(value)

    def matching(self, entry: Mapping[str, Any], where: str) -> dict[str, set[str]]:
        """The labels that `row: LoRA` or `model: [a, b]` name.

        Raises:
            UserError: no such axis, or no such value of it.
        """
        known = [*self.names, SEED]
        for name in entry:
            if name not in known:
                words = f"there is no axis {name!r}{did_you_mean(name, known)} (there are {', '.join(known)})"
                raise UserError(f"{self.path}: {where}: {words}")
        lists = {name: value if isinstance(value, list) else [value] for name, value in entry.items()}
        return {
            name: {str(value) if name == SEED else self._label(name, value, where) for value in values}
            for name, values in lists.items()
        }

    def _without(self, points: Sequence[Point], entry: Mapping[str, Any], where: str) -> list[Point]:
        wanted = self.matching(entry, where)
        seeds = wanted.pop(SEED, None)
        kept: list[Point] = []
        dropped = 0
        for point in points:
            if not all(point.values.get(name) in labels for name, labels in wanted.items()):
                kept.append(point)
                continue
            left = tuple(seed for seed in point.seeds if seeds is not None and str(seed) not in seeds)
            dropped += len(point.seeds) - len(left)
            if left:
                kept.append(replace(point, seeds=left))
        if not dropped:
            words = ", ".join(f"{name}: {value}" for name, value in entry.items())
            raise UserError(f"{self.path}: {where}: {{{words}}} matches no run: change or drop it")
        return kept


def _labelled(values: Sequence[Any], where: str) -> dict[str, Any]:
    """Plain values by their text; of paths and hub ids the last part, where it tells them apart."""
    if any(isinstance(value, dict | list) for value in values):
        raise UserError(f"{where}: values that are lists or hold keys need labels, as in {{label: value}}")
    texts = ["none" if value is None else str(value) for value in values]
    names = [PurePath(text).name or text for text in texts]
    if len(set(texts)) < len(texts):
        raise UserError(f"{where} = {list(values)!r}: names a value twice")
    return dict(zip(names if len(set(names)) == len(texts) else texts, values, strict=True))


def is_bare(label: str) -> bool:
    """Whether it is a number, a truth value or nothing."""
    try:
        float(label)
    except ValueError:
        return label in ("True", "False", "none")
    return True
