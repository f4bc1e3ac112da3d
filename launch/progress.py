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
    if values is None:
        return None
    step, training = int(values["step"]), config.training
    total = math.ceil(training.epochs * step / values["epoch"] - 1e-6)
    total = min(total, training.max_steps or total)
    left = (total - step) * values["wall_seconds"] / step
    return Progress(step, total, values["loss"], values["tokens_per_second"], left)


def reached(job: str, folder: RunFolder) -> int:
    """What tells whether a start got further than the one before: steps of training, or bytes of answers."""
    if job == "train":
        values = last_line(folder.metrics)
        return int(values["step"]) if values else 0
    return sum(file.stat().st_size for file in folder.evaluation("").parent.rglob("*.json*") if file.is_file())


def last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line of a file of JSON lines."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return None
    for line in reversed(lines):
        try:
            found: dict[str, Any] = json.loads(line)
            return found
        except ValueError:
            continue
    return None
