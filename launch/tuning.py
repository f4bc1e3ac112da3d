"""`tune` of a grid: which values are tried, by which runs, and who waits for the choice."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from launch.axes import SEED, Axes, Point
from launch.cells import Choice, GridCell
from launch.grid_file import VALIDATION_LOSS, TuneConfig
from launch.labels import Labels, word
from launch.layers import Layer, overlay
from pipeline.errors import UserError, did_you_mean

Make = Callable[[Point, Layer], list[GridCell]]


class Tuner:
    """The choices of a grid: one for each combination of the values of the axes in `by`."""

    def __init__(self, tune: TuneConfig, axes: Axes, points: Sequence[Point], labels: Labels) -> None:
        self.tune, self.axes, self.points, self.labels = tune, axes, points, labels
        self.options = self._options()
        """What may be chosen, in words -> what it changes."""
        self._at = self._baseline()
        for axis in tune.by:
            if axis not in axes.names:
                close = did_you_mean(axis, axes.names)
                raise self._fault(f"by: there is no axis {axis!r}{close} (there are {', '.join(axes.names)})")

    def _fault(self, words: str) -> UserError:
        return UserError(f"{self.axes.path}: tune.{words}")

    def _options(self) -> dict[str, Layer]:
        found: dict[str, Layer] = {"": {}}
        for key, values in self.tune.over.items():
            if key in self.axes.axes:
                raise self._fault(f"over: {key!r} is an axis already: drop one of them")
            labelled = self.axes.values_of(key, values, f"tune.over.{key}")
            found = {
                ", ".join(filter(None, [words, word(key, label, isinstance(values, dict))])): overlay(below, layer)
                for words, below in found.items()
                for label, layer in labelled.items()
            }
        if len(found) < 2:
            raise self._fault(f"over: {', '.join(found)} alone leaves no choice")
        return found

    def _baseline(self) -> dict[str, set[str]]:
        if SEED in self.tune.at:
            raise self._fault("at: the seeds of the baseline are tune.seeds: [42]")
        return self.axes.matching(self.tune.at, "tune.at")

    def name(self, point: Point) -> str:
        """The choice that a point depends on: what is chosen, and for whom."""
        keys = " and ".join(key.split(".")[-1] for key in self.tune.over)
        group = ", ".join(point.values.get(axis, "none") for axis in self.tune.by)
        return f"{keys} for {group}" if group else keys

    def choice(self, name: str, make: Make) -> Choice:
        """The choice of a name, with its candidates.

        Raises:
            UserError: the baseline is not one setting, or does not depend on what is chosen, or cannot measure it.
        """
        found = [point for point in self.points if self.name(point) == name and self._is_baseline(point)]
        if len(found) != 1:
            names = "; ".join(self.labels.of(point).label for point in found) or "none"
            words = f"must name one setting for the choice of {name}, with tune.by if there is one for each value of"
            raise self._fault(f"at = {self.tune.at}: {words} an axis; it names {names}")
        seeds = self.tune.seeds or found[0].seeds[:1]
        point = replace(found[0], seeds=tuple(seeds))
        runs = {words: tuple(self._candidate(words, cell) for cell in make(point, layer))
                for words, layer in self.options.items()}  # fmt: skip
        if len({cell.folder.root for cells in runs.values() for cell in cells}) < len(runs) * len(seeds):
            label = self.labels.of(point).label
            raise self._fault(f"over: {label} is the same run whatever is chosen, or is not trained: tune at another")
        return Choice(name, self.tune.metric, self.tune.mode or "min", runs)

    def _is_baseline(self, point: Point) -> bool:
        is_product = point.label is None and not point.extra
        return is_product and all(point.values.get(name) in labels for name, labels in self._at.items())

    def _candidate(self, words: str, cell: GridCell) -> GridCell:
        """A run of the baseline, scored on nothing but what the choice needs."""
        config = cell.config
        if self.tune.metric == VALIDATION_LOSS:
            if not (config.data and config.data.validation_fraction):
                raise self._fault("metric = validation_loss needs rows that are held out: set data.validation_fraction")
            tasks: tuple[str, ...] = ()
        else:
            tasks = (self.tune.metric.partition(":")[0],)
        config = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"tasks": tasks})})
        name = f"{cell.label}, {words}"
        return replace(cell, row=name, label=name, config=config, block="", tunes=True)
