"""Watching, cancelling and retrying jobs on a real Slurm without an accounting database."""

import subprocess
import time
from pathlib import Path

import pytest
from launch_inputs import DATA, dualtune, needs_slurm, tiny_grid, write_grid

pytestmark = [pytest.mark.slow, needs_slurm]


def test_cancelled_and_failed_cells_are_named_and_retried(
    cluster: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, cluster[name])
    late = {"method": "no_mixing", "evaluation": {"data": {"csqa_full": "late.jsonl"}}, "tuning": "none"}
    write_grid(tmp_path, tiny_grid({"Base": {"tuning": "none"}, "Late": late}))
    (tmp_path / "late.jsonl").write_text("[]\n")

    def grid(command: str, *words: str, status: int = 0) -> str:
        done = dualtune("grid", command, "grid.yaml", *words, "--executor", "slurm", folder=tmp_path)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    ask("scontrol", "update", "nodename=node[1-2]", "state=drain", "reason=test")  # jobs stay in the queue
    try:
        grid("submit")
        assert "2 cells: 2 waiting" in grid("status")
        assert "cancelled: 1 tasks" in grid("cancel", "Base")
        assert "1 cancelled, 1 waiting" in grid("status", status=1)
    finally:
        ask("scontrol", "update", "nodename=node[1-2]", "state=resume")
    wait_for_an_empty_queue()
    states = grid("status", status=1)
    assert "1 cancelled, 1 failed" in states and "late.jsonl" in states
    assert "late.jsonl" in grid("logs", "Late")
    report = (tmp_path / "runs" / "reports" / "tiny" / "report.md").read_text()
    assert "cancelled" in report and "late.jsonl" in report

    (tmp_path / "late.jsonl").write_text((DATA / "commonsense_qa_validation.jsonl").read_text())
    assert "2 jobs in 1 arrays" in grid("retry")
    wait_for_an_empty_queue()
    assert "2 cells: 2 done" in grid("status")
    assert "0 jobs" in grid("retry")


def wait_for_an_empty_queue() -> None:
    until = time.monotonic() + 400
    while ask("squeue", "-h", "-r").strip():
        assert time.monotonic() < until, ask("squeue", "-r")
        time.sleep(0.5)


def ask(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
