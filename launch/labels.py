"""What the runs of a grid are called: by their row and the axis values that vary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launch.axes import ROW, Axes, Point, is_bare
from launch.grid_file import GridConfig


@dataclass(frozen=True)
class Names:
    """Of one point of a grid."""

    row: str
    """In the table."""
    label: str
    """Among all runs, but for the seed."""
    block: str


class Labels:
    """Names the points of a grid.

    A number alone says little, so the last part of its key stands before it: `learning_rate 1e-4`.
    """

    def __init__(self, grid: GridConfig, axes: Axes, points: Sequence[Point]) -> None:
        self.blocks = grid.blocks
        self._hidden = {grid.blocks, grid.columns}
        labels = {name: {point.values.get(name) for point in points} - {None} for name in axes.axes}
        self._varying = [name for name in axes.axes if len(labels[name]) > 1]
        self._given = {name for name, values in grid.axes.items() if isinstance(values, dict)}
        self._default = grid.name

    def of(self, point: Point) -> Names:
        """Row, label and block of a point."""
        shown = [name for name in self._varying if name not in self._hidden]
        return Names(
            self._text(point, shown), self._text(point, self._varying), point.values.get(self.blocks or "", "")
        )

    def _text(self, point: Point, axes: Sequence[str]) -> str:
        if point.label is not None:
            rest = [name for name in axes if name in self._hidden]
            return ", ".join([point.label, *self._words(point.values, rest)])
        words = [point.values.get(ROW, ""), *self._words(point.values, axes), point.extra]
        return ", ".join(filter(None, words)) or self._default

    def _words(self, values: Mapping[str, str], axes: Sequence[str]) -> list[str]:
        return [word(name, values[name], name in self._given) for name in axes if name in values]


def word(axis: str, label: str, is_given: bool) -> str:
    """A value of an axis by itself; `is_given`: the file labels it."""
    return label if is_given or not is_bare(label) else f"{axis.split('.')[-1]} {label}"
