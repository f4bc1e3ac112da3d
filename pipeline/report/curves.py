"""What a run logged while it trained, thinned out for drawing."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.files import read_file
from pipeline.report.statistics import is_number

POINTS = 60
"""Updates of a curve that are drawn: evenly spaced ones, the first and the last among them."""

QUANTITIES = {
    "loss": "loss",
    "learning_rate": "learning rate",
    "tokens_per_second": "tokens a second",
    "peak_memory_bytes": "peak memory (GB)",
}
SCALES = {"peak_memory_bytes": 1e-9}

Point = tuple[float, float]


@dataclass(frozen=True)
class Curves:
    """Of one run: quantity -> (update, value), and the mixing ratios of its layers after some of the updates."""

    lines: dict[str, list[Point]]
    updates: int
    ratio_steps: list[int] = field(default_factory=list)
    ratios: dict[str, list[list[float]]] = field(default_factory=dict)
    """`key` and `value`: [reports, layers]."""


def read_curves(path: Path) -> Curves:
    """The thinned curves of a train/metrics.jsonl; empty ones where there is none."""
    try:
        lines = read_file(path).splitlines()
    except OSError:
        lines = []
    found = [values for line in _thinned(lines, POINTS) if (values := _parsed(line))]
    reports = [values for line in lines if b'"alphas"' in line and (values := _parsed(line)) and _has_ratios(values)]
    return Curves(
        {name: _points(found, name) for name in QUANTITIES},
        updates=int(found[-1]["step"]) if found else 0,
        ratio_steps=[int(report["step"]) for report in reports],
        ratios={part: [[float(layer[part]) for layer in report["alphas"]] for report in reports]
                for part in ("key", "value")},
    )  # fmt: skip


def _thinned(lines: list[bytes], count: int) -> list[bytes]:
    if len(lines) <= count:
        return lines
    return [lines[round(index * (len(lines) - 1) / (count - 1))] for index in range(count)]


def _parsed(line: bytes) -> dict[str, Any] | None:
    """None for a line that a kill left incomplete, or that is damaged otherwise."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) and is_number(values.get("step")) else None


def _has_ratios(values: dict[str, Any]) -> bool:
    layers = values.get("alphas")
    return isinstance(layers, list) and all(
        isinstance(layer, dict) and all(is_number(layer.get(part)) for part in ("key", "value")) for layer in layers
    )


def _points(found: list[dict[str, Any]], name: str) -> list[Point]:
    scale = SCALES.get(name, 1.0)
    return [(float(values["step"]), scale * float(values[name])) for values in found if is_number(values.get(name))]
