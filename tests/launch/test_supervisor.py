"""What a supervisor makes of the end of its stage. Slurm is a stand-in here; test_slurm_grid.py has the real one."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launch_inputs import tiny_grid, write_grid

from launch import slurm
from launch.grid import load_grid
from launch.profile import Profile
from launch.supervisor import EARLY, Supervisor
from pipeline.stages import failure, record_failure


class Queue:
    """What Slurm is asked by a job."""

    def __init__(self) -> None:
        self.running, self.requeued = True, 0

    def requeue(self, raw: str) -> None:
        self.requeued += 1
        os.kill(os.getpid(), signal.SIGTERM)  # as Slurm ends the job that it puts back


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    found = Queue()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(slurm, "is_running", lambda raw: found.running)
    monkeypatch.setattr(slurm, "requeue", found.requeue)
    monkeypatch.setattr(slurm, "end_time", lambda raw: time.time() + 3600)
    handlers = {number: signal.getsignal(number) for number in (2, 10, 12, 15)}
    yield found
    for number, handler in handlers.items():
        signal.signal(number, handler)


def supervisor(tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """Its stage is a line of Python."""
    changes: dict[str, Any] = {"paths": {"runs": str(tmp_path / "runs")}}
    (cell,) = load_grid(write_grid(tmp_path, tiny_grid({"LoRA": {}}, **changes))).cells
    found = Supervisor("train", cell, Profile().resources("train"), Profile(), "s")
    monkeypatch.setattr(found, "_command", lambda: [sys.executable, "-c", stage])
    return found


def test_a_stage_that_a_signal_stopped_goes_back_into_the_queue(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = supervisor(tmp_path, "import sys; sys.exit(128 + 10)", monkeypatch)
    assert found.run() == 138
    assert queue.requeued == 1 and not failure(found.folder)


def test_a_job_that_somebody_ends_does_not_come_back(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.running = False
    assert supervisor(tmp_path, "import sys; sys.exit(128 + 15)", monkeypatch).run() == 143
    assert queue.requeued == 0


def test_a_user_s_mistake_is_not_tried_again(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert supervisor(tmp_path, "import sys; sys.exit(2)", monkeypatch).run() == 2
    assert queue.requeued == 0


def test_a_killed_stage_is_tried_three_times(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = "import os; os.kill(os.getpid(), 9)"
    for start in (1, 2):
        found = supervisor(tmp_path, stage, monkeypatch)
        found.run()
        assert (queue.requeued, "killed by SIGKILL" in failure(found.folder)) == (start, True)
    assert supervisor(tmp_path, stage, monkeypatch).run() == 1
    assert queue.requeued == 2
    assert "given up: failed 3 times and got no further (step 0): killed by SIGKILL" in failure(found.folder)


def test_a_stage_that_ends_well_without_a_result_has_failed(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = supervisor(tmp_path, "pass", monkeypatch)
    found.run()
    assert "left no valid result" in failure(found.folder)


def test_the_stage_is_asked_to_stop_at_the_deadline(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = (
        "import signal, sys, time; signal.signal(10, lambda *_: sys.exit(138)); print('ready', flush=True); "
        "time.sleep(60); sys.exit(3)"
    )
    found = supervisor(tmp_path, stage, monkeypatch)
    found.deadline = time.time() + 2
    assert found.run() == 128 + signal.SIGALRM
    assert queue.requeued == 1
    events = [json.loads(line)["event"] for line in (found.folder.root / "attempts.jsonl").read_text().splitlines()]
    assert events == ["begin", "stopped"]


def test_a_status_that_is_no_signal_is_told_and_tried_again(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = supervisor(tmp_path, "import sys; sys.exit(255)", monkeypatch)  # what a container without image ends with
    assert found.run() == 1
    assert queue.requeued == 1 and "ended with status 255" in failure(found.folder)


def test_a_stage_that_is_stuck_at_the_deadline_is_killed_in_time(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = "import signal, time; signal.signal(10, signal.SIG_IGN); time.sleep(60)"
    found = supervisor(tmp_path, stage, monkeypatch)
    found.deadline, found.margin = time.time() + 1, 1.0
    assert found.run() == 128 + signal.SIGALRM
    assert queue.requeued == 1


def test_slurm_s_early_warning_of_a_short_time_limit_is_no_reason_to_stop(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = supervisor(tmp_path, "pass", monkeypatch)
    found.deadline = time.time() + EARLY / 2
    found._note(signal.SIGUSR1, None)
    assert found.received is None
    found._note(signal.SIGTERM, None)
    assert found.received == signal.SIGTERM
    found = supervisor(tmp_path, "pass", monkeypatch)
    found._note(signal.SIGUSR1, None)  # long before it: a preemption
    assert found.received == signal.SIGUSR1


def test_the_reason_of_the_stage_is_kept(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = supervisor(tmp_path, "import sys; sys.exit(1)", monkeypatch)
    record_failure(found.folder, "train", "step 3: the loss is nan")
    found.run()
    assert failure(found.folder) == "train: step 3: the loss is nan"
