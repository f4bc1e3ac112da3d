"""Loading tasks: ours and the harness's, from the hub or from local files."""

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import datasets
import pyarrow as pa
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager

from pipeline.errors import UserError
from pipeline.evaluate.catalogue import FOLDER, TASKS
from pipeline.evaluate.config import EvaluationConfig
from pipeline.evaluate.documents import Rows
from pipeline.evaluate.fingerprint import check_data, data_path
from pipeline.prepare.config import SourceConfig
from pipeline.prepare.sources import open_sources

Loaded = dict[str, Any]
"""What the harness evaluates: `tasks` (name -> task), `groups`, `group_map`."""
LOCAL = "local"
"""Name of the only split of local data."""


def manager(names: Mapping[str, Sequence[str]]) -> TaskManager:
    """Knows our tasks, and the harness's where one of the names (listed by their key) is not ours.

    Raises:
        UserError: a name that neither knows.
    """
    used = [(key, name) for key, listed in names.items() for name in listed]
    found = _index(any(name not in TASKS for _, name in used))
    for key, name in used:
        if name not in found.all_tasks:
            raise UserError(
                f"evaluation.{key}: unknown task {name!r}; ours are {', '.join(TASKS)}, "
                "and the names of lm-eval's own tasks are accepted"
            )
    return found


@cache
def _index(with_harness: bool) -> TaskManager:
    """Once per process: reading the harness's thousands of files takes ten seconds."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return TaskManager(include_path=str(FOLDER), include_defaults=with_harness)


def check_tasks(config: EvaluationConfig) -> TaskManager:
    """Refuse wrong names and missing files before a model is loaded.

    Raises:
        UserError: naming the task and the file.
    """
    if not config.tasks:
        raise UserError(f"evaluation.tasks is empty: name some of {', '.join(TASKS)}, or tasks of lm-eval")
    return check_names(config)


def check_names(config: EvaluationConfig) -> TaskManager:
    """The same for a run that may have no tasks to score.

    Raises:
        UserError: naming the task and the file.
    """
    check_data(config)
    return manager({"tasks": config.tasks, "data": tuple(config.data)})


def load_task(known: TaskManager, name: str, data: str | None) -> Loaded:
    """One task (or group of tasks) with its documents.

    Raises:
        UserError: the data can't be had, or the task can't take local data.
    """
    local = local_data(name, data) if data else None
    if local and name not in TASKS:
        local = as_dataset(name, local)
    try:
        loaded: Any = known.load([{"group": LOCAL, "task": [{"task": name, **_reading(local)}]} if local else name])
    except UserError as error:
        raise UserError(f"task {name}{f', {data}' if data else ''}: {error}") from None
    except Exception as error:  # hub, data or task code of the harness: each raises its own classes
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"task {name}: its data cannot be loaded ({first}); see evaluation.data for local files"
        ) from error
    if local:
        loaded["groups"].pop(LOCAL)
        loaded["group_map"].pop(LOCAL)
        _check_local(name, loaded["tasks"])
    _check_scored(name, loaded)
    for task in loaded["tasks"].values():
        _settle_examples(task)
    return dict(loaded)


def _reading(rows: Rows) -> dict[str, Any]:
    """The task's settings that make it read `rows`, whichever split it names."""
    none = dict.fromkeys(("training_split", "validation_split", "fewshot_split", "dataset_name", "dataset_kwargs"))
    return {**none, "test_split": LOCAL, "custom_dataset": lambda **_: {LOCAL: rows}}


def _check_local(name: str, tasks: dict[str, Any]) -> None:
    task = tasks.get(name)
    if len(tasks) != 1 or not isinstance(task, ConfigurableTask) or list(task.dataset) != [LOCAL]:
        raise UserError(f"evaluation.data.{name}: {name} is not a single task that can read local data")
    if task.config.num_fewshot:
        raise UserError(
            f"evaluation.data.{name}: local data holds no examples for the {task.config.num_fewshot}-shot prompt"
        )


def _check_scored(name: str, loaded: Loaded) -> None:
    """A group may only be a list of tasks: then there is no one score that a table could show."""
    group = loaded.get("groups", {}).get(name)
    if name not in loaded["tasks"] and not (group and group.has_aggregation):
        raise UserError(
            f"evaluation.tasks: {name} has no score of its own; name its tasks: {', '.join(loaded['tasks'])}"
        )


def _settle_examples(task: Any) -> None:
    """No examples in the prompt where the task does not ask for some; a fixed choice where it does."""
    if task.get_config("num_fewshot") is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=1234)


def local_data(task: str, data: str) -> Rows:
    """Rows of a local file or saved data set folder; a bad row is an error, since it would change the score.

    Raises:
        UserError: naming the file and the line.
    """
    path = data_path(task, data)
    (source,) = open_sources([SourceConfig(path=str(path), split=_split(task))])
    rows = []
    for record in source.records():
        if record.values is None:
            raise UserError(f"{path}:{record.line}: {record.fault}")
        rows.append(record.values)
    return rows


def as_dataset(task: str, rows: Rows) -> datasets.Dataset:
    """Rows in the form that the harness's own tasks expect.

    Raises:
        UserError: a column holds values of several types.
    """
    try:
        return datasets.Dataset.from_list(list(rows))
    except (pa.ArrowException, TypeError) as error:
        raise UserError(
            f"evaluation.data.{task}: the rows do not form a table ({str(error).splitlines()[0]})"
        ) from None


def _split(task: str) -> str:
    """The split to take from a folder with several."""
    return "validation" if task in ("piqa_full", "csqa_full", "siqa_full") else "test"
