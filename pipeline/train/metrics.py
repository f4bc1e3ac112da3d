"""The record of a run: one JSON line per logged update, and the same numbers for trackers."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from pipeline.files import write_text


class NumbersTracker(Protocol):
    """Gets the numbers of each logged update."""

    def log(self, values: dict[str, float], step: int) -> None: ...
    def finish(self) -> None: ...


class MetricsLog:
    """Appends to metrics.jsonl and to trackers, each update exactly once over all starts of the run.

    Opening it after update `step` drops what earlier starts logged beyond it: those updates are run again. What is
    before it is sent to trackers that don't have it.
    """

    def __init__(self, path: Path, step: int, trackers: Sequence[NumbersTracker] = ()) -> None:
        kept = [line for line in read_metrics(path) if line["step"] <= step]
        write_text(path, "".join(_line(values) for values in kept))
        self._file = path.open("a", encoding="utf-8")
        self._trackers = trackers
        for values in kept if trackers else ():
            self._send(values)

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        for tracker in self._trackers:
            tracker.finish()

    def write(self, values: dict[str, Any]) -> None:
        """Log one update; `values` has its number as `step`."""
        self._file.write(_line(values))
        self._file.flush()
        self._send(values)

    def _send(self, values: dict[str, Any]) -> None:
        numbers = {f"train/{name}": number for name, number in _scalars(values)}
        for tracker in self._trackers:
            tracker.log(numbers, values["step"])

    def sync(self) -> None:
        """Before a checkpoint: what it counts as done must be on disk too."""
        os.fsync(self._file.fileno())


class NoMetrics:
    """Of the ranks that leave the record to rank 0."""

    def __enter__(self) -> "NoMetrics":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, values: dict[str, Any]) -> None:
        pass

    def sync(self) -> None:
        pass


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The logged updates, without lines that a kill or a damaged disk has left broken."""
    rows: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        with suppress(ValueError, RecursionError):
            values = json.loads(line)
            if isinstance(values, dict) and type(values.get("step")) is int:
                rows.append(values)
    return rows


def _line(values: dict[str, Any]) -> str:
    return json.dumps(values, allow_nan=False) + "\n"


def _scalars(values: dict[str, Any]) -> list[tuple[str, float]]:
    """Plain numbers, and the mixing ratios of each layer."""
    plain = [(name, value) for name, value in values.items() if isinstance(value, int | float) and name != "step"]
    ratios = [
        (f"alpha_{name}/layer_{layer}", value)
        for layer, row in enumerate(values.get("alphas", []))
        for name, value in row.items()
        if isinstance(value, float)
    ]
    return plain + ratios
