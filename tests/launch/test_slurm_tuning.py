"""A grid that chooses a value, on a real Slurm: one `submit` leads to the table."""

import json
import subprocess
import time
from pathlib import Path

import pytest
from launch_inputs import dualtune, needs_slurm, tiny_grid, write_grid

pytestmark = [pytest.mark.slow, needs_slurm]

TUNE = {"at": {"row": "LoRA"}, "over": {"training.learning_rate": [1e-4, 1e-2]}}


@pytest.fixture
def folder(cluster: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, cluster[name])
    return tmp_path


def grid(command: str, folder: Path, status: int = 0) -> str:
    done = dualtune("grid", command, "grid.yaml", "--executor", "slurm", folder=folder)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def wait_until_all_is_over() -> None:
    until = time.monotonic() + 900
    while queue := subprocess.run(["squeue", "-r", "-h"], capture_output=True, text=True, check=True).stdout.strip():
        assert time.monotonic() < until, queue
        time.sleep(0.5)


def begun(attempts: Path) -> int:
    events = map(json.loads, attempts.read_text().splitlines())
    return sum((event["job"], event["event"]) == ("train", "begin") for event in events)


def logs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("runs/.submissions/*/logs/*")))


def test_one_submit_leads_over_the_choice_to_the_table(folder: Path) -> None:
    rows = {"LoRA": {}, "Bitune": {"method": "bitune"}}
    tiny = tiny_grid(rows, data={"validation_fraction": 0.25})
    write_grid(folder, {**tiny, "tune": TUNE, "baseline": "LoRA"})
    assert "the aggregate job makes the choice, and submits the 2 runs that wait for it" in grid("plan", folder)
    grid("submit", folder)
    states = grid("status", folder)
    assert "waits for the choice of learning_rate" in states and "4 cells" in states
    wait_until_all_is_over()

    assert "2 cells: 2 done" in grid("status", folder), logs(folder)
    (choice,) = (folder / "runs" / "reports" / "tiny" / "choices").glob("*.json")
    assert json.loads(choice.read_text())["chosen"] == "learning_rate 0.01"
    report = (folder / "runs" / "reports" / "tiny" / "report.md").read_text()
    assert "Bitune" in report and "waits" not in report
    # Nothing is trained twice: two candidates, of which one is in the table, and Bitune.
    assert [begun(path) for path in folder.glob("runs/*/attempts.jsonl")] == [1, 1, 1]
    assert "nothing to compute" in grid("submit", folder)


def test_a_choice_that_cannot_be_made_is_named(folder: Path) -> None:
    tiny = tiny_grid({"LoRA": {"data": {"sources": [{"path": "late.jsonl"}]}}}, data={"validation_fraction": 0.25})
    write_grid(folder, {**tiny, "tune": TUNE})
    (folder / "late.jsonl").write_text("not JSON\n")
    grid("submit", folder)
    wait_until_all_is_over()
    states = grid("status", folder, status=1)
    assert "2 failed, 1 not submitted" in states
    assert "no choice of learning_rate: candidate LoRA, learning_rate 0.0001, seed 42" in states
    assert "late.jsonl" in (folder / "runs" / "reports" / "tiny" / "report.md").read_text() + logs(folder)
