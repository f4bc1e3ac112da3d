"""Weights & Biases, MLflow and TensorBoard as their own libraries read them: one run, each update once."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tracked_run import OPTIONS
from train_runs import make_loop, run_config, samples

from pipeline.errors import StageError, UserError
from pipeline.files import read_json
from pipeline.run_folder import RunFolder
from pipeline.stages import run_missing
from pipeline.train import config as train_config
from pipeline.train.metrics import read_metrics
from pipeline.train.offline_wandb import history
from pipeline.train.trackers import Tracker

STEPS = list(range(1, 10))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunFolder, list[dict[str, Any]]]:
    """A run with checkpoints at every second step that SIGKILL ended in updates 4, 4 and 6; its metrics."""
    runs = tmp_path_factory.mktemp("killed") / "runs"
    command = [sys.executable, str(Path(__file__).with_name("tracked_run.py")), str(runs), "4", "4", "6"]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "MLFLOW_"))}
    environment = {**plain, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert ended.returncode == 0, ended.stderr
    folder = RunFolder.of(run_config(runs, **OPTIONS))
    found = read_metrics(folder.metrics)
    assert [row["step"] for row in found] == STEPS
    return runs, folder, found


@pytest.mark.slow
def test_mlflow_has_one_run_with_each_update_once(killed: tuple[Path, RunFolder, list[dict[str, Any]]]) -> None:
    runs, folder, rows = killed
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(runs / ".mlflow").as_uri())
    experiment = client.get_experiment_by_name("dualtune")
    assert experiment
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == (folder.root.name, "FINISHED")
    assert found.data.params["method.name"] == "bitune"
    for name in ("loss", "gradient_norm", "tokens_per_second", "peak_memory_bytes"):
        history = client.get_metric_history(found.info.run_id, f"train/{name}")
        assert sorted(metric.step for metric in history) == STEPS
    losses = {metric.step: metric.value for metric in client.get_metric_history(found.info.run_id, "train/loss")}
    assert losses == {row["step"]: row["loss"] for row in rows}
    assert "train/alpha_key/layer_0" in found.data.metrics


@pytest.mark.slow
def test_wandb_has_one_id_and_each_update_once(killed: tuple[Path, RunFolder, list[dict[str, Any]]]) -> None:
    _, folder, rows = killed
    places = sorted((folder.root / "train" / "wandb").glob("offline-run-*"))
    assert len(places) == 4  # a folder for each start
    # Two starts within one second: the second folder's name ends in a number, its file's in the id still.
    names = {file.name for place in places for file in place.glob("*.wandb")}
    assert names == {f"run-{read_json(folder.trackers)['id']}.wandb"}
    found = [row for place in places for row in history(next(place.glob("*.wandb")))]
    assert sorted(int(row["_step"]) for row in found) == STEPS
    assert {row["_step"]: row["train/loss"] for row in found} == {row["step"]: row["loss"] for row in rows}


@pytest.mark.slow
def test_tensorboard_shows_each_update_once(killed: tuple[Path, RunFolder, list[dict[str, Any]]]) -> None:
    _, folder, rows = killed
    events = EventAccumulator(str(folder.tensorboard)).Reload().Scalars("train/loss")
    assert [(event.step, event.value) for event in events] == [
        (row["step"], pytest.approx(row["loss"])) for row in rows
    ]


def test_tracker_that_is_not_installed_is_refused_before_data_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_config, "installed", lambda name: "")
    config = run_config(tmp_path / "runs", trackers=["wandb"])
    with pytest.raises(UserError, match=r"wandb is not installed: pip install -e '\.\[trackers\]'"):
        run_missing(config, RunFolder.of(config), print)


def test_tracker_that_cannot_be_started_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "no-such-scheme://somewhere")
    loop = make_loop(run_config(tmp_path / "runs", trackers=["mlflow"]), samples(9))
    with pytest.raises(StageError, match="mlflow cannot be started"):
        loop.run()


def test_tracker_that_fails_is_left_out(capfd: pytest.CaptureFixture) -> None:
    class Broken:
        name = "broken"
        calls = 0

        def log(self, values: dict[str, float], step: int) -> None:
            self.calls += 1
            raise ConnectionError("gone")

    service = Broken()
    tracker = Tracker(service, after=2)  # type: ignore[arg-type]
    for step in (2, 3, 4):
        tracker.log({"loss": 1.0}, step)
    assert service.calls == 1
    assert capfd.readouterr().err.count("broken gets no more numbers, metrics.jsonl has all (gone)") == 1


def test_older_key_still_works(tmp_path: Path) -> None:
    read = train_config.TrainingConfig.model_validate
    assert read({"tensorboard": False}).trackers == []
    assert read({"tensorboard": True}).trackers == read({}).trackers == ["tensorboard"]
    with pytest.raises(ValueError, match="tensorboard is the older form of trackers, and both are given"):
        read({"tensorboard": True, "trackers": ["wandb"]})
