"""How far a cell's training is, by the last line of its metrics; nothing heavy is imported."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import RunConfig
from pipeline.run_folder import RunFolder

TAIL = 65536
"""Bytes at the end of a file in which its last whole line is looked for."""


@dataclass(frozen=True)
class Progress:
    """Of a training."""

    step: int
    total: int
    loss: float
    tokens_per_second: float
    seconds_left: float


def progress(config: RunConfig, folder: RunFolder) -> Progress | None:
    """Where a training is, or None before its first logged step."""
    values = last_line(folder.metrics)
    try:
        return _progress(config, values) if values else None
    except (KeyError, TypeError, ValueError, ArithmeticError):  # a damaged line
        return None


def _progress(config: RunConfig, values: dict[str, Any]) -> Progress:
    step, training = int(values["step"]), config.training
    total = math.ceil(training.epochs * step / values["epoch"] - 1e-6)
    total = min(total, training.max_steps or total)
    left = (total - step) * values["wall_seconds"] / step
    return Progress(step, total, float(values["loss"]), float(values["tokens_per_second"]), float(left))


def reached(job: str, folder: RunFolder) -> int:
    """What tells whether a start got further than the one before: steps of training, or bytes of answers."""
    if job == "train":
        step = (last_line(folder.metrics) or {}).get("step")
        return step if isinstance(step, int) else 0
    return sum(file.stat().st_size for file in folder.evaluation("").parent.rglob("*.json*") if file.is_file())


def last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line of a file of JSON lines."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return None
    return next(filter(None, map(json_object, reversed(lines))), None)


def json_object(line: str | bytes) -> dict[str, Any] | None:
    """A line of a file of JSON objects; None if it is torn or damaged."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
