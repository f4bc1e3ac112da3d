"""Signals outside of updates, and processes that are stuck."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_stage_train import config_of, run

from pipeline.errors import StageError
from pipeline.run_folder import RunFolder
from pipeline.train import Interrupted, stage, train
from pipeline.train.ranks import Ranks
from pipeline.train.signals import StopSignals

pytestmark = pytest.mark.slow


def test_signal_while_data_are_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = stage.prepare

    def signalled(*arguments: object) -> object:
        signal.raise_signal(signal.SIGUSR1)
        raise AssertionError("goes on preparing")

    monkeypatch.setattr(stage, "prepare", signalled)
    config = config_of(tmp_path / "runs", max_steps=1)
    with pytest.raises(Interrupted, match="stopped while data were prepared: the same command goes on") as caught:
        run(config)
    assert caught.value.status == 128 + signal.SIGUSR1
    monkeypatch.setattr(stage, "prepare", prepare)
    assert run(config)[1]["steps"] == 1


def test_signal_while_the_model_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = stage.build_model

    def signalled(*arguments: object) -> object:
        signal.raise_signal(signal.SIGTERM)
        return build(*arguments)

    monkeypatch.setattr(stage, "build_model", signalled)
    config = config_of(tmp_path / "runs", max_steps=1)
    with pytest.raises(Interrupted, match="stopped before step 1"):
        run(config)


def test_deadline_stops_with_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time())))
    config = config_of(tmp_path / "runs")
    with pytest.raises(Interrupted) as caught:
        run(config)
    assert caught.value.status == 128 + signal.SIGALRM
    monkeypatch.delenv("SLURM_JOB_END_TIME")
    assert train(config, RunFolder.of(config))["steps"] == 6


STUCK = """
import collections, itertools, sys
from pipeline.train.signals import StopSignals
with StopSignals(grace=float(sys.argv[1])):
    print("ready", flush=True)
    collections.deque(itertools.repeat(None), maxlen=0)  # for ever, holding the lock: no handler, no thread can run
"""


def start_stuck(grace: float) -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, str(grace)], env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    return process


def test_stuck_in_native_code_is_ended_by_force() -> None:
    process = start_stuck(grace=1)
    process.send_signal(signal.SIGTERM)
    _, text = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    assert "not stopped in time: ended by force" in text


def test_second_signal_ends_a_stuck_process_soon() -> None:
    process = start_stuck(grace=600)
    process.send_signal(signal.SIGTERM)
    time.sleep(2.5)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL


def test_watchdog_leaves_with_its_process() -> None:
    with StopSignals(grace=600) as signals:
        assert signals._watchdog is not None
        watchdog = signals._watchdog._process
        assert watchdog.poll() is None
    assert watchdog.returncode == 0
    assert signal.set_wakeup_fd(-1) == -1


def test_same_signal_twice_at_once_counts_once() -> None:
    """A batch system signals every process of a job, and so does the launcher of ours."""
    with StopSignals(grace=600) as signals:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert signals.received == signal.SIGTERM


def test_agreed_error_keeps_its_status() -> None:
    class Two(Ranks):
        def _gather(self, value: object, group: object) -> list:
            return [value, (None, (143, "stopped"))]

    with pytest.raises(StageError, match="stopped") as caught:
        Two(0, 2).first(lambda: None)
    assert caught.value.status == 143
