"""Progress: rate and time left, as a bar in a terminal and as lines in a log."""

import io

import pytest
from rich.console import Console

from pipeline.evaluate import progress
from pipeline.evaluate.progress import Shown


def log(monkeypatch: pytest.MonkeyPatch) -> str:
    clock = iter(range(0, 1000, 30))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    output = io.StringIO()
    bar = Shown("evaluate csqa", Console(file=output, force_terminal=False, width=120))
    bar.start(90)
    for _ in range(3):
        bar.advance(30)
    return output.getvalue()


def test_a_log_gets_lines_with_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert log(monkeypatch).splitlines() == [
        "evaluate csqa: 30/90 requests, 1.0 requests/s, 60 s left",
        "evaluate csqa: 60/90 requests, 1.0 requests/s, 30 s left",
    ]


def test_a_terminal_gets_a_bar_that_ends() -> None:
    output = io.StringIO()
    bar = Shown("evaluate csqa", Console(file=output, force_terminal=True, width=120))
    bar.start(2)
    bar.advance(1)
    bar.advance(1)
    assert "2/2" in output.getvalue()
    assert bar.bar is None
