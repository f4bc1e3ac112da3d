"""The hub's data sets on a machine that may not ask the hub."""

import os
import re
from pathlib import Path

from pipeline.errors import UserError
from pipeline.evaluate.catalogue import TASKS
from pipeline.evaluate.config import EvaluationConfig

PATH = re.compile(r"^dataset_path: (\S+)$", re.MULTILINE)


def check_offline(config: EvaluationConfig) -> None:
    """Refuse tasks of ours whose data set has never been fetched, where HF_HUB_OFFLINE forbids to fetch it.

    Without this it would be found when the model has been trained.

    Raises:
        UserError: naming task and data set.
    """
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE:
        return
    for task in config.tasks:
        if task in TASKS and task not in config.data and not _is_cached(name := dataset(task), Path(constants.HF_HOME)):
            raise UserError(
                f"evaluation.tasks: the questions of {task} are {name} of the hub, which is not in the cache here, and "
                f"HF_HUB_OFFLINE is set: name their file in evaluation.data.{task}, or fetch them with internet once"
            )


def dataset(task: str) -> str:
    """The hub id of the questions of a task of ours."""
    found = PATH.search(TASKS[task].read_text(encoding="utf-8"))
    assert found is not None, task
    return found[1]


def _is_cached(name: str, home: Path) -> bool:
    """Whether `datasets` has prepared it before, in whatever version; loading it then tells the rest."""
    cache = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets"))
    return (cache / name.replace("/", "___")).is_dir()
