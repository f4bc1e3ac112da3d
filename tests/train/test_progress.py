from types import SimpleNamespace

import pytest

from pipeline.train import progress as module
from pipeline.train.progress import progress


def test_a_log_file_gets_a_line_now_and_then(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """First, then after 20 s, then the last one; the time left counts this start's steps only."""
    clock = iter([0.0, 5.0, 10.0, 25.0, 30.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with progress(step=6, total=10) as report:
        for step in range(7, 11):
            report({"step": step, "loss": 1.5, "tokens_per_second": 123.4})
    assert capsys.readouterr().err.splitlines() == [
        "train: step 7/10, loss 1.5000, 123 tokens/s, 15 s left",
        "train: step 9/10, loss 1.5000, 123 tokens/s, 8 s left",
        "train: step 10/10, loss 1.5000, 123 tokens/s, 0 s left",
    ]
