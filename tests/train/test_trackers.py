"""Weights & Biases, MLflow and TensorBoard as their own libraries read them: one run, each update once."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from train_runs import Samples, make_loop, run_config, run_loop, samples

from pipeline.config import RunConfig
from pipeline.errors import StageError, UserError
from pipeline.files import read_json
from pipeline.run_folder import RunFolder
from pipeline.stages import run_missing
from pipeline.train import config as train_config
from pipeline.train.loop import TrainingLoop
from pipeline.train.metrics import read_metrics
from pipeline.train.trackers import Tracker

STEPS = list(range(1, 10))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)


class Killed(Exception):
    """Stands for the end of the process: it is raised where nothing is saved any more."""


def killed_run(config: RunConfig, rows: Samples, step: int) -> None:
    """Train until after `step` is logged, and no checkpoint of it is made."""
    loop = make_loop(config, rows)
    loop.resume()
    honest = TrainingLoop._is_saved

    def is_saved(self: TrainingLoop) -> bool:
        if self.position.step == step:
            raise Killed
        return honest(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingLoop, "_is_saved", is_saved)
        with pytest.raises(Killed):
            loop.run()


def interrupted(tmp_path: Path, tracker: str) -> tuple[RunFolder, list[dict[str, Any]]]:
    """A run with checkpoints at every second step that is killed after steps 3, 5 and 6; its metrics."""
    config, rows = run_config(tmp_path / "runs", trackers=[tracker]), samples(9)
    for step in (3, 5):
        killed_run(config, rows, step)
    run_loop(config, rows)
    folder = RunFolder.of(config)
    found = read_metrics(folder.metrics)
    assert [row["step"] for row in found] == STEPS
    return folder, found


@pytest.mark.slow
def test_mlflow_has_one_run_with_each_update_once(tmp_path: Path) -> None:
    folder, rows = interrupted(tmp_path, "mlflow")
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "runs" / ".mlflow").as_uri())
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
    assert "MLFLOW_TRACKING_URI" not in os.environ


@pytest.mark.slow
def test_wandb_has_one_id_and_each_update_once(tmp_path: Path) -> None:
    folder, rows = interrupted(tmp_path, "wandb")
    places = sorted((folder.root / "train" / "wandb").glob("offline-run-*"))
    assert len(places) == 3  # a folder for each start
    # Two starts within one second: the second folder's name ends in a number, its file's in the id still.
    names = {file.name for place in places for file in place.glob("*.wandb")}
    assert names == {f"run-{read_json(folder.trackers)['id']}.wandb"}
    found = [row for place in places for row in history(place)]
    assert sorted(int(row["_step"]) for row in found) == STEPS
    assert {row["_step"]: row["train/loss"] for row in found} == {row["step"]: row["loss"] for row in rows}


def history(place: Path) -> list[dict[str, Any]]:
    """The rows of an offline run: LevelDB's log format, with protocol buffers of wandb's own inside."""
    from wandb.proto import wandb_internal_pb2

    content = next(place.glob("*.wandb")).read_bytes()
    found, position, pending = [], 7, b""  # behind a header of 7 bytes
    while position + 7 <= len(content):
        if (left := 32768 - position % 32768) < 7:
            position += left
            continue
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        pending += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(pending)
            pending = b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                found.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return found


@pytest.mark.slow
def test_tensorboard_shows_each_update_once(tmp_path: Path) -> None:
    folder, rows = interrupted(tmp_path, "tensorboard")
    events = EventAccumulator(str(folder.tensorboard)).Reload().Scalars("train/loss")
    assert [(event.step, event.value) for event in events] == [
        (row["step"], pytest.approx(row["loss"])) for row in rows
    ]


def test_tracker_that_is_not_installed_is_refused_before_data_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_config, "installed", lambda name: "")
    config = run_config(tmp_path / "runs", trackers=["wandb"])
    with pytest.raises(UserError, match=r"wandb is not installed: pip install 'dualtune\[trackers\]'"):
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
