"""The numbers of a run where people look at them: TensorBoard, Weights & Biases and MLflow, through accelerate.

A run stays one run there, over all its starts: its id is kept in the run folder. At each start a service is asked for
the last update that it has: what a killed run sent and lost is sent again from metrics.jsonl, and updates that are
repeated after a checkpoint, the same to the bit, are not.
Nothing leaves the machine unless the environment says so (WANDB_MODE=online, MLFLOW_TRACKING_URI).
"""

import fcntl
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker, MLflowTracker, TensorBoardTracker, WandBTracker

from pipeline.config import RunConfig, as_dict
from pipeline.errors import StageError, one_line
from pipeline.files import read_json, write_json
from pipeline.run_folder import RunFolder
from pipeline.train.offline_wandb import last_step
from pipeline.train.progress import say

ENVIRONMENT = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
}
"""Unless the user has set them: quiet, and nothing is sent."""
STORE = "MLFLOW_TRACKING_URI"
PROJECT = "dualtune"
TAG = "dualtune.run"


@dataclass
class Tracker:
    """One service, which has the updates up to `after`, and is sent those that come."""

    service: GeneralTracker
    after: int
    is_lost: bool = False

    def log(self, values: dict[str, float], step: int) -> None:
        """Send the numbers of an update. A service that fails is left out from then on: training is worth more."""
        if step <= self.after or self.is_lost:
            return
        try:
            self.service.log(values, step=step)
        except Exception as error:
            self.is_lost = True
            say(f"{self.service.name} gets no more numbers, metrics.jsonl has all ({one_line(error)})")

    def finish(self) -> None:
        """Hand in what is left; what a service makes of it never ends a run."""
        try:
            self.service.finish()
        except Exception as error:
            say(f"{self.service.name} did not take its leave, metrics.jsonl has all numbers ({one_line(error)})")


def start_trackers(config: RunConfig, folder: RunFolder, identity: dict[str, Any], step: int) -> list[Tracker]:
    """Those of `training.trackers`, for a run that goes on after `step`; before metrics.jsonl is opened.

    Args:
        identity: what makes it this run: with other data, say, it is another one there too.

    Raises:
        StageError: a service can't be reached or written.
    """
    names = config.training.trackers
    if not names:
        return []
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    run = _run_id(folder, identity)
    made = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
    trackers = []
    for name in names:
        try:
            trackers.append(made[name](config, folder, run, step))
        except Exception as error:
            raise StageError(f"training.trackers: {name} cannot be started ({one_line(error)})") from error
    return trackers


def _run_id(folder: RunFolder, identity: dict[str, Any]) -> str:
    found = read_json(folder.trackers)
    if not isinstance(found, dict) or found["identity"] != identity:
        found = {"id": uuid.uuid4().hex[:12], "identity": identity}
        write_json(folder.trackers, found)
    return str(found["id"])


def _tensorboard(config: RunConfig, folder: RunFolder, run: str, step: int) -> Tracker:
    """Its readers drop what came before a purge: what is run again is sent again, and each update shows once."""
    place = folder.tensorboard
    has_events = any(place.glob("events.*"))
    tracker = TensorBoardTracker(place.name, place.parent, purge_step=step + 1)
    tracker.start()
    return Tracker(tracker, step if has_events else 0)


def _wandb(config: RunConfig, folder: RunFolder, run: str, step: int) -> Tracker:
    place = folder.metrics.parent
    place.mkdir(parents=True, exist_ok=True)
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    tracker = WandBTracker(
        project, id=run, name=folder.root.name, resume="allow", dir=str(place), config=as_dict(config)
    )
    tracker.start()
    # A server says where it goes on; without one, the files do.
    return Tracker(tracker, max(tracker.tracker.starting_step - 1, last_step(place, run)))


class _LocalStore(MLflowTracker):
    """Ends with the address that it was given: the next run of this process may have another."""

    def finish(self) -> None:
        import mlflow

        try:
            super().finish()
        finally:
            mlflow.set_tracking_uri(None)  # type: ignore[arg-type]


def _mlflow(config: RunConfig, folder: RunFolder, run: str, step: int) -> Tracker:
    import mlflow

    store = folder.root.parent.absolute() / ".mlflow"
    store.parent.mkdir(parents=True, exist_ok=True)
    is_local = STORE not in os.environ
    if is_local:
        mlflow.set_tracking_uri(store.as_uri())
    with Path(f"{store}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # runs that start together would each make the experiment
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        mlflow.set_experiment(experiment)
        query = {"filter_string": f"tags.`{TAG}` = '{run}'", "search_all_experiments": True, "output_format": "list"}
        search: Any = mlflow.search_runs
        found = search(**query)
        tracker = (_LocalStore if is_local else MLflowTracker)(
            experiment, run_id=found[0].info.run_id if found else None, run_name=folder.root.name, tags={TAG: run}
        )
        tracker.start()
    if not found:
        tracker.store_init_configuration(_flat(as_dict(config)))
        return Tracker(tracker, 0)
    known = mlflow.MlflowClient().get_metric_history(found[0].info.run_id, "train/loss")
    return Tracker(tracker, max((metric.step for metric in known), default=0))


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{a: {b: 1}} as {a.b: 1}."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found
