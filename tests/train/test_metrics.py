import json
import math
from pathlib import Path

import pytest

from pipeline.train.metrics import MetricsLog, read_metrics


def fill(log: MetricsLog, steps: range, run: int) -> None:
    for step in steps:
        log.write({"step": step, "loss": run + step / 100, "alphas": [{"key": 0.5, "value": 0.25}]})


class Sent:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.numbers: list[tuple[int, dict[str, float]]] = []
        self.is_finished = False

    def log(self, values: dict[str, float], step: int) -> None:
        self.numbers.append((step, values))

    def finish(self) -> None:
        self.is_finished = True


def test_each_step_once_after_a_resume(tmp_path: Path) -> None:
    path, sent = tmp_path / "metrics.jsonl", Sent()
    with MetricsLog(path, 0) as log:
        fill(log, range(1, 6), run=1)
    with path.open("a") as file:
        file.write('{"step": 6, "lo')  # killed in the middle of a line
    with MetricsLog(path, 3, [sent]) as log:
        fill(log, range(4, 7), run=2)
    expected = [(1, 1.01), (2, 1.02), (3, 1.03), (4, 2.04), (5, 2.05), (6, 2.06)]
    assert [(row["step"], row["loss"]) for row in read_metrics(path)] == expected
    ratios = {"train/alpha_key/layer_0": 0.5, "train/alpha_value/layer_0": 0.25}
    assert sent.numbers == [
        (step, {"train/loss": loss, **ratios}) for step, loss in expected
    ]  # a tracker knows what it has
    assert sent.is_finished


def test_a_damaged_line_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path, 0) as log:
        fill(log, range(1, 6), run=1)
    lines = path.read_text().splitlines()
    lines[1:1] = ['{"step": garb', '{"loss": 1}', "3", "[" * 100_000]
    path.write_text("\n".join(lines) + "\n")
    with MetricsLog(path, 5):
        assert [row["step"] for row in read_metrics(path)] == [1, 2, 3, 4, 5]


def test_a_new_start_drops_everything(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for run in (1, 2):
        with MetricsLog(path, 0) as log:
            fill(log, range(1, 3), run)
    assert [row["loss"] for row in read_metrics(path)] == [2.01, 2.02]


def test_lines_are_on_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path, 0) as log:
        fill(log, range(1, 2), run=1)
        assert json.loads(path.read_text())["loss"] == 1.01


def test_nan_is_never_written(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "metrics.jsonl", 0) as log, pytest.raises(ValueError):
        log.write({"step": 1, "loss": math.nan})
