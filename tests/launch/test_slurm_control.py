"""Watching, cancelling and retrying jobs on a real Slurm without an accounting database."""

import shlex
import sys
from pathlib import Path

import pytest
import yaml
from launch_inputs import (
    DATA,
    ROOT,
    ask,
    dualtune,
    events,
    logs,
    needs_slurm,
    start,
    tiny_grid,
    wait_for_an_empty_queue,
    write_grid,
)

pytestmark = [pytest.mark.slow, needs_slurm]


def test_cancelled_and_failed_cells_are_named_and_retried(slurm_folder: Path) -> None:
    late = {"method": "no_mixing", "evaluation": {"data": {"csqa_full": "late.jsonl"}}, "tuning": "none"}
    write_grid(slurm_folder, tiny_grid({"Base": {"tuning": "none"}, "Late": late}))
    (slurm_folder / "late.jsonl").write_text("[]\n")

    def grid(command: str, *words: str, status: int = 0) -> str:
        done = dualtune("grid", command, "grid.yaml", *words, "--executor", "slurm", folder=slurm_folder)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    ask("scontrol", "update", "nodename=node[1-2]", "state=drain", "reason=test")  # jobs stay in the queue
    try:
        assert "#SBATCH --array=0-1" in grid("plan", "--scripts") and not (slurm_folder / "runs").exists()
        at_once = [start("grid", "submit", "grid.yaml", "--executor", "slurm", folder=slurm_folder) for _ in range(2)]
        assert [process.wait(timeout=240) for process in at_once] == [0, 0]
        assert len(ask("squeue", "-h", "-r").splitlines()) == 3, "two evaluations and the table, once"
        assert "2 cells: 2 waiting" in grid("status")
        whole = (slurm_folder / "grid.yaml").read_text()
        write_grid(slurm_folder, tiny_grid({"Base": {"tuning": "none"}}))
        told = grid("cancel", "Base")
        assert "cancelled: 1 tasks" in told and "for cells that the grid has no more: jobs " in told
        (slurm_folder / "grid.yaml").write_text(whole)
        assert "1 cancelled, 1 waiting" in grid("status", status=1)
        assert "1 jobs in 1 arrays" in grid("retry")
        (waits,) = ask("squeue", "-h", "-n", table_name(), "-o", "%E").splitlines()
        assert waits.count("afterany:") == 2, "the new table waits for what was in the queue, too"
        grid("cancel", "Base")
        assert "1 cancelled, 1 waiting" in grid("status", status=1)
    finally:
        ask("scontrol", "update", "nodename=node[1-2]", "state=resume")
    wait_for_an_empty_queue()
    states = grid("status", status=1)
    assert "1 cancelled, 1 failed" in states and "late.jsonl" in states
    assert "late.jsonl" in grid("logs", "Late")
    report = (slurm_folder / "runs" / "reports" / "tiny" / "report.md").read_text()
    assert "cancelled" in report and "late.jsonl" in report

    (slurm_folder / "late.jsonl").write_text((DATA / "commonsense_qa_validation.jsonl").read_text())
    assert "2 jobs in 1 arrays" in grid("retry")
    assert "2 cells: 2 done" in grid("status", "--watch", "1")
    wait_for_an_empty_queue()
    assert "0 jobs" in grid("retry")


def table_name() -> str:
    """Of the job that is in the queue."""
    (name,) = {name for name in ask("squeue", "-h", "-o", "%j").split() if ".aggregate." in name}
    return name


def test_the_last_task_of_an_array_is_put_back_alone(slurm_folder: Path) -> None:
    """Its job id is that of the whole array."""
    script = f"""echo $SLURM_ARRAY_TASK_ID >> starts
    cd {ROOT} && {shlex.quote(sys.executable)} -c '
import os
from launch.slurm import end_time, is_running, own_job, requeue
own = own_job(os.environ)
assert end_time(own) and is_running(own)
if os.environ["SLURM_JOB_ID"] == os.environ["SLURM_ARRAY_JOB_ID"] and "SLURM_RESTART_COUNT" not in os.environ:
    requeue(own)
'; sleep 5"""
    ask(
        "sbatch", "--requeue", "--array=0-2", f"--chdir={slurm_folder}", "--time=5", "--output=%a.txt", "--wrap", script
    )
    wait_for_an_empty_queue(300)
    starts = sorted((slurm_folder / "starts").read_text().split())
    assert len(starts) == 4 and set(starts) == {"0", "1", "2"}, (slurm_folder / "2.txt").read_text()


def test_a_training_that_always_dies_is_given_up_and_named(slurm_folder: Path) -> None:
    python = slurm_folder / "python"
    python.write_text(f'#!/bin/sh\n[ "$3" != train ] || kill -9 $$\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    write_grid(slurm_folder, tiny_grid({"LoRA": {}}))
    (slurm_folder / "cluster.yaml").write_text(yaml.safe_dump({"python": str(python)}))
    command = ("grid", "submit", "grid.yaml", "--executor", "slurm", "--cluster", "cluster.yaml")
    assert dualtune(*command, folder=slurm_folder).returncode == 0
    wait_for_an_empty_queue()

    (run,) = slurm_folder.glob("runs/stories*")
    assert events(run) == ["begin", "failed"] * 3, logs(slurm_folder)
    assert not events(run, "evaluate"), "it is cancelled with the training that it waited for"
    words = "given up: failed 3 times and got no further (step 0): killed by SIGKILL"
    done = dualtune("grid", "status", "grid.yaml", "--executor", "slurm", folder=slurm_folder)
    assert done.returncode == 1 and words in done.stdout
    assert words in (slurm_folder / "runs" / "reports" / "tiny" / "report.md").read_text()
