"""A grid that chooses a value, on a real Slurm: one `submit` leads to the table."""

import json
import os
import shlex
import signal
from pathlib import Path

import pytest
from launch_inputs import ask, dualtune, events, logs, needs_slurm, tiny_grid, wait_for_an_empty_queue, write_grid

pytestmark = [pytest.mark.slow, needs_slurm]

TUNE = {"at": {"row": "LoRA"}, "over": {"training.learning_rate": [1e-4, 1e-2]}}


def grid(command: str, folder: Path, status: int = 0) -> str:
    done = dualtune("grid", command, "grid.yaml", "--executor", "slurm", folder=folder)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def test_one_submit_leads_over_the_choice_to_the_table(slurm_folder: Path) -> None:
    rows = {"LoRA": {}, "Bitune": {"method": "bitune"}}
    tiny = tiny_grid(rows, data={"validation_fraction": 0.25})
    write_grid(slurm_folder, {**tiny, "tune": TUNE, "baseline": "LoRA"})
    assert "the aggregate job makes the choice, and submits the 2 runs that wait for it" in grid("plan", slurm_folder)
    grid("submit", slurm_folder)
    states = grid("status", slurm_folder)
    assert "waits for the choice of learning_rate" in states and "4 cells" in states
    wait_for_an_empty_queue()

    assert "2 cells: 2 done" in grid("status", slurm_folder), logs(slurm_folder)
    (choice,) = (slurm_folder / "runs" / "reports" / "tiny" / "choices").glob("*.json")
    assert json.loads(choice.read_text())["chosen"] == "learning_rate 0.01"
    report = (slurm_folder / "runs" / "reports" / "tiny" / "report.md").read_text()
    assert "Bitune" in report and "waits" not in report
    # Nothing is trained twice: two candidates, of which one is in the table, and Bitune.
    assert trainings(slurm_folder) == [["begin", "complete"]] * 3
    assert "nothing to compute" in grid("submit", slurm_folder)


def test_kills_around_the_choice_lose_nothing_and_repeat_nothing(
    slurm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = slurm_folder / "kill"
    with_deadly_sbatch(kill, slurm_folder / "bin", monkeypatch)
    tiny = tiny_grid({"LoRA": {}, "Bitune": {"method": "bitune"}}, data={"validation_fraction": 0.25})
    write_grid(slurm_folder, {**tiny, "tune": TUNE, "baseline": "LoRA"})
    ask("scontrol", "update", "nodename=node[1-2]", "state=drain", "reason=test")  # jobs stay in the queue
    try:
        grid("submit", slurm_folder)
        assert "cancelled: 2 tasks and the table" in grid("cancel", slurm_folder)
        assert "2 cancelled, 2 not submitted" in grid("status", slurm_folder, status=1)
        grid("submit", slurm_folder)
        kill.write_text("before")
    finally:
        ask("scontrol", "update", "nodename=node[1-2]", "state=resume")
    wait_for_an_empty_queue()  # the last job made the choice and was killed when it began to submit
    assert not kill.exists() and len(list(slurm_folder.glob("runs/reports/tiny/choices/*.json"))) == 1
    assert len(trainings(slurm_folder)) == 2

    kill.write_text("after")
    done = dualtune("grid", "submit", "grid.yaml", "--executor", "slurm", folder=slurm_folder)
    assert done.returncode == -signal.SIGKILL
    grid("submit", slurm_folder)
    wait_for_an_empty_queue()
    assert "2 cells: 2 done" in grid("status", slurm_folder), logs(slurm_folder)
    assert trainings(slurm_folder) == [["begin", "complete"]] * 3
    scored = [events(run, "evaluate") for run in slurm_folder.glob("runs/stories*")]
    assert sorted(scored) == [[], ["begin", "complete"], ["begin", "complete"]]
    report = (slurm_folder / "runs" / "reports" / "tiny" / "report.md").read_text()
    assert "Bitune" in report and "incomplete" not in report and "waits" not in report
    assert "nothing to compute" in grid("submit", slurm_folder)


def with_deadly_sbatch(order: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An sbatch that kills who calls it before or after Slurm takes the job, once, where `order` says so."""
    place.mkdir()
    real, file = ask("which", "sbatch").strip(), shlex.quote(str(order))
    (place / "sbatch").write_text(
        f"""#!/bin/sh
        when=$(cat {file} 2>/dev/null); rm -f {file}
        case "$when" in
          before) ;;
          after) {real} "$@" >/dev/null ;;
          *) exec {real} "$@" ;;
        esac
        kill -9 $PPID
        """
    )
    (place / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")


def trainings(folder: Path) -> list[list[str]]:
    return [events(run) for run in folder.glob("runs/stories*")]


def test_a_choice_that_cannot_be_made_is_named(slurm_folder: Path) -> None:
    tiny = tiny_grid({"LoRA": {"data": {"sources": [{"path": "late.jsonl"}]}}}, data={"validation_fraction": 0.25})
    write_grid(slurm_folder, {**tiny, "tune": TUNE})
    (slurm_folder / "late.jsonl").write_text("not JSON\n")
    grid("submit", slurm_folder)
    wait_for_an_empty_queue()
    states = grid("status", slurm_folder, status=1)
    assert "2 failed, 1 not submitted" in states
    assert "no choice of learning_rate: candidate LoRA, learning_rate 0.0001, seed 42" in states
    assert "late.jsonl" in (slurm_folder / "runs" / "reports" / "tiny" / "report.md").read_text() + logs(slurm_folder)
