"""A run that was stopped or killed ends with the same bits as one that was not."""

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from killed_run import OPTIONS
from train_runs import make_loop, numbers, run_config, run_loop, same, samples, weights

from pipeline.errors import StageError
from pipeline.run_folder import RunFolder
from pipeline.train import Interrupted, state
from pipeline.train import signals as signals_module
from pipeline.train.loop import TrainingLoop
from pipeline.train.metrics import read_metrics
from pipeline.train.signals import StopSignals

TOTAL = 9


def metrics_of(runs: Path, **options: Any) -> list[dict[str, Any]]:
    return numbers(read_metrics(RunFolder.of(run_config(runs, **options)).metrics))


def stop_after(loop: TrainingLoop, step: int, number: int = signal.SIGTERM) -> None:
    """Send the signal in the middle of update `step`, and run until the loop stops."""
    update = loop._update

    def signalled() -> dict[str, Any]:
        if loop.position.step + 1 == step:
            signal.raise_signal(number)
        return update()

    loop._update = signalled  # type: ignore[method-assign]
    with pytest.raises(Interrupted, match=f"stopped after step {step} of {TOTAL}") as caught:
        loop.run()
    assert caught.value.status == 128 + number


@pytest.mark.parametrize("number, step", [(signal.SIGTERM, 5), (signal.SIGINT, 1)])
def test_stopped_and_resumed_equals_straight(
    tmp_path: Path, number: int, step: int, capsys: pytest.CaptureFixture
) -> None:
    straight = run_loop(run_config(tmp_path / "straight"), samples(9))
    stop_after(make_loop(run_config(tmp_path / "stopped"), samples(9)), step, number)
    random.seed(0), numpy.random.seed(0), torch.manual_seed(0)  # what else this process did meanwhile
    resumed = run_loop(run_config(tmp_path / "stopped"), samples(9))
    assert f"resumed after step {step} of {TOTAL}" in capsys.readouterr().err
    assert same(weights(resumed), weights(straight))
    assert same(resumed.state._moments(), straight.state._moments())
    assert metrics_of(tmp_path / "stopped") == metrics_of(tmp_path / "straight")
    assert [row["step"] for row in metrics_of(tmp_path / "stopped")] == list(range(1, TOTAL + 1))


def test_sample_order_is_in_the_metrics(tmp_path: Path) -> None:
    run_loop(run_config(tmp_path, epochs=1), samples(9))
    (first, second, third) = (row["samples"] for row in metrics_of(tmp_path, epochs=1))
    assert sorted(first + second + third) == list(range(9))
    assert len(third) == 1


def test_dropout_needs_the_random_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above has teeth: without the random states the runs part."""
    straight = run_loop(run_config(tmp_path / "straight"), samples(9))
    stop_after(make_loop(run_config(tmp_path / "stopped"), samples(9)), 5)
    monkeypatch.setattr(state, "set_random_states", lambda *_: None)
    resumed = run_loop(run_config(tmp_path / "stopped"), samples(9))
    assert not same(weights(resumed), weights(straight))


def test_everything_is_as_it_was_saved(tmp_path: Path) -> None:
    config, folder = run_config(tmp_path, max_steps=4), tmp_path / "state"
    folder.mkdir()
    first = run_loop(config, samples(9))
    first.state.write(folder)
    expected = {name: tensor.clone() for name, tensor in state.random_states()[0].items()}
    drawn = random.random(), numpy.random.rand(), torch.rand(1).item()
    second = make_loop(config, samples(9))
    second.state.read(folder)
    assert same(state.random_states()[0], expected)
    assert (random.random(), numpy.random.rand(), torch.rand(1).item()) == drawn
    assert same(weights(second), weights(first))
    assert same(second.state._moments(), first.state._moments())
    assert second.state.optimizer.param_groups[0]["lr"] == first.state.optimizer.param_groups[0]["lr"]
    assert second.state.scheduler.get_last_lr() == first.state.scheduler.get_last_lr()
    assert second.position == first.position
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json"}  # nothing that can run code


def test_state_of_another_model_is_refused(tmp_path: Path) -> None:
    first = make_loop(run_config(tmp_path), samples(9))
    first.state.write(tmp_path)
    other = make_loop(run_config(tmp_path, {"rank": 8}), samples(9))
    with pytest.raises(StageError, match=r"weights.safetensors: \d+ tensors differ from the model's"):
        other.state.read(tmp_path)


def test_damaged_checkpoint_is_named_and_the_one_before_taken(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    straight = run_loop(run_config(tmp_path / "straight"), samples(9))
    config = run_config(tmp_path / "stopped")
    stop_after(make_loop(config, samples(9)), 7)
    damaged = RunFolder.of(config).checkpoints / "step-000007" / "optimizer.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    resumed = run_loop(config, samples(9))
    messages = capsys.readouterr().err
    assert f"skipped and removed: {damaged.parent}: optimizer.safetensors is damaged" in messages
    assert "resumed after step 6" in messages
    assert same(weights(resumed), weights(straight))
    assert metrics_of(tmp_path / "stopped") == metrics_of(tmp_path / "straight")


def test_checkpoints_are_rotated_and_the_last_step_is_kept(tmp_path: Path) -> None:
    config = run_config(tmp_path, keep_checkpoints=3)
    run_loop(config, samples(9))
    names = sorted(path.name for path in RunFolder.of(config).checkpoints.iterdir())
    assert names == ["step-000006", "step-000008", "step-000009"]


def test_second_signal_acts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals_module, "SAME", 0.0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it may be ignored
    with StopSignals(grace=60) as signals:
        signal.raise_signal(signal.SIGINT)
        assert signals.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


@pytest.mark.slow
def test_killed_at_every_write_of_a_save(tmp_path: Path) -> None:
    """After every kill the newest complete checkpoint is found, nothing torn is taken, and no progress is lost."""
    kills, options = 24, OPTIONS
    straight = run_loop(run_config(tmp_path / "straight", **options), samples(9))
    command = [sys.executable, str(Path(__file__).with_name("killed_run.py")), str(tmp_path / "killed"), str(kills)]
    root = str(Path(__file__).parents[2])
    found = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    )
    assert found.returncode == 0, found.stderr
    steps = [int(step) for step in re.findall(r"found (\d+) skipped 0", found.stdout)]
    assert len(steps) == kills
    assert steps == sorted(steps)
    assert {"save_file", "_sync", "replace", "rmtree"} == set(re.findall(r"killed at (\w+)", found.stdout))
    resumed = run_loop(run_config(tmp_path / "killed", **options), samples(9))
    assert same(weights(resumed), weights(straight))
    assert metrics_of(tmp_path / "killed", **options) == metrics_of(tmp_path / "straight", **options)
    assert not list(RunFolder.of(run_config(tmp_path / "killed", **options)).root.rglob(".step-*"))
