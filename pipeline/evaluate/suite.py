"""Loading tasks: ours and the harness's, from the hub or from local files."""

import logging
from collections.abc import Collection, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager

from pipeline.errors import UserError, did_you_mean
from pipeline.evaluate.catalogue import FOLDER, TASKS, scored_split, template_of
from pipeline.evaluate.columns import COLUMNS, Columns, text_records
from pipeline.evaluate.config import EvaluationConfig, TaskFiles
from pipeline.evaluate.documents import Rows, delimiter, openings, own_documents
from pipeline.evaluate.fingerprint import check_data, data_paths
from pipeline.prepare.config import SourceConfig, TemplateTexts
from pipeline.prepare.record import Fault, Record
from pipeline.prepare.sources import open_sources

Loaded = dict[str, Any]
"""What the harness evaluates: `tasks` (name -> task), `groups`, `group_map`."""
LOCAL, EXAMPLES = "local", "examples"
"""Names of the splits of local data: what is scored, and what examples are drawn from."""
SEED = 1234
"""Of the choice of examples, as in the harness."""


def manager(config: EvaluationConfig) -> TaskManager:
    """Knows our tasks, and the harness's where one that is scored is not ours.

    Raises:
        UserError: a name that neither knows, or data of a task under another task's name.
    """
    known = _index(any(name not in TASKS for name in config.tasks))
    for name in config.tasks:
        if name not in known.all_tasks:
            raise UserError(
                f"evaluation.tasks: unknown task {name!r}{did_you_mean(name, known.all_tasks)} "
                f"(ours are {', '.join(TASKS)}; the names of lm-eval's own tasks are accepted)"
            )
    _check_keys("data", config.data, config.tasks)
    _check_keys("num_fewshot", config.shots_by_task, config.tasks)
    return known


def _check_keys(key: str, names: Collection[str], tasks: tuple[str, ...]) -> None:
    """Entries of tasks that are not scored mean nothing, unless one was meant for a task that is."""
    for name in sorted({*names} - {*tasks, *TASKS}):
        meant = did_you_mean(name, [task for task in tasks if task not in names])
        if meant:
            raise UserError(f"evaluation.{key}: {name!r} is none of the tasks that are scored{meant}")


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
    return manager(config)


def load_task(
    known: TaskManager,
    name: str,
    data: TaskFiles | str | None = None,
    num_fewshot: int | None = None,
    own: TemplateTexts | None = None,
) -> Loaded:
    """One task (or group of tasks) with its documents.

    Args:
        data: local files instead of the hub; a single file holds the documents that are scored.
        num_fewshot: examples in front of each question; None: as many as the task asks for.
        own: a template of the user's own, in which a task of ours asks (not those of chain of thought).

    Raises:
        UserError: the data can't be had, the task can't take local data, or there are too few examples.
    """
    files = TaskFiles.model_validate(data) if data else None
    changes = {**_changes(known, name, files, num_fewshot), **_asked_in(known, name, own)}
    try:
        loaded: Any = known.load([{"group": LOCAL, "task": [{"task": name, **changes}]} if changes else name])
    except UserError as error:
        raise UserError(f"task {name}{f', {files.test}' if files else ''}: {error}") from None
    except Exception as error:  # hub, data or task code of the harness: each raises its own classes
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"task {name}: its data cannot be loaded ({first}); see evaluation.data for local files"
        ) from error
    if changes:
        loaded["groups"].pop(LOCAL)
        loaded["group_map"].pop(LOCAL)
    if files:
        _check_local(name, loaded["tasks"])
    _check_scored(name, loaded)
    for label, task in loaded["tasks"].items():
        _settle_examples(label, task, num_fewshot, files)
    return dict(loaded)


def _changes(known: TaskManager, name: str, files: TaskFiles | None, num_fewshot: int | None) -> dict[str, Any]:
    """Settings of the task that its data change; one of ours reads its training set only for examples."""
    if not files:
        return {"fewshot_split": None} if name in TASKS and not num_fewshot else {}
    definition = definition_of(known, name)
    columns = None if name in TASKS else COLUMNS.get(str(definition.get("dataset_path")))
    wanted = name not in TASKS if num_fewshot is None else num_fewshot > 0
    paths = {split: path for split, path in data_paths(name, files).items() if split == "test" or wanted}
    rows = {split: local_data(path, _split(definition, split), columns) for split, path in paths.items()}
    if rows["test"] == rows.get("fewshot"):
        raise UserError(f"evaluation.data.{name}: the examples (fewshot) are the documents that are scored")
    splits: dict[str, Any] = {LOCAL: rows["test"]} | ({EXAMPLES: rows["fewshot"]} if "fewshot" in rows else {})
    if name not in TASKS:
        splits = {split: as_dataset(name, found) for split, found in splits.items()}
    none = dict.fromkeys(("training_split", "validation_split", "fewshot_split", "dataset_name", "dataset_kwargs"))
    examples = {"fewshot_split": EXAMPLES} if EXAMPLES in splits else {}
    return {**none, "test_split": LOCAL, **examples, "custom_dataset": lambda **_: splits}


def definition_of(known: TaskManager, name: str) -> dict[str, Any]:
    """The task's file; empty where it is not one task."""
    entry = known.task_index.get(name)
    return (entry.cfg if entry else None) or {}


def _asked_in(known: TaskManager, name: str, own: TemplateTexts | None) -> dict[str, Any]:
    """Settings of a task of ours that a template of the user's own changes."""
    if own is None or name not in TASKS or template_of(name) != "paper":
        return {}
    definition = known.task_index[name].cfg or {}
    changes = {"process_docs": partial(own_documents, texts=own), "target_delimiter": delimiter(own)}
    if "generation_kwargs" not in definition:
        return changes
    return {**changes, "generation_kwargs": {**definition["generation_kwargs"], "until": openings(own)}}


def _split(definition: dict[str, Any], split: str) -> str:
    """The split that the task itself uses, to be taken from a folder with several."""
    if split == "test":
        return scored_split(definition)
    return str(definition.get("fewshot_split") or definition.get("training_split") or "train")


def _check_local(name: str, tasks: dict[str, Any]) -> None:
    task = tasks.get(name)
    if len(tasks) != 1 or not isinstance(task, ConfigurableTask) or LOCAL not in task.dataset:
        raise UserError(f"evaluation.data.{name}: {name} is not a single task that can read local data")
    for key in ("doc_to_text", "doc_to_choice", "doc_to_target"):
        column = getattr(task.config, key)
        if isinstance(column, str) and column.isidentifier() and column not in task.features:
            raise UserError(
                f"evaluation.data.{name}: there is no column {column!r}, which the task reads "
                f"(columns: {', '.join(task.features)})"
            )


def _check_scored(name: str, loaded: Loaded) -> None:
    """A group may only be a list of tasks: then there is no one score that a table could show."""
    group = loaded.get("groups", {}).get(name)
    if name not in loaded["tasks"] and not (group and group.has_aggregation):
        raise UserError(
            f"evaluation.tasks: {name} has no score of its own; name its tasks: {', '.join(loaded['tasks'])}"
        )


def _settle_examples(name: str, task: Any, num_fewshot: int | None, files: TaskFiles | None) -> None:
    """No examples in the prompt where nobody asks for some; a fixed choice where somebody does.

    Raises:
        UserError: the task has too few of them.
    """
    wanted = (task.get_config("num_fewshot") or 0) if num_fewshot is None else num_fewshot
    task.set_config(key="num_fewshot", value=wanted)
    task.set_fewshot_seed(seed=SEED)
    if not wanted or not isinstance(task, ConfigurableTask):
        return
    if files and not files.fewshot and task.fewshot_cfg.samples is None:
        raise UserError(
            f"evaluation.data.{name}: its {wanted}-shot prompt needs a file of examples: {{test: FILE, fewshot: FILE}}"
        )
    there = len(task.sampler.df)
    if there < wanted:
        raise UserError(f"task {name}: {wanted} examples are asked for (evaluation.num_fewshot), there are {there}")


def local_data(path: Path, split: str, columns: Columns | None = None) -> list[dict[str, Any]]:
    """Rows of a local file, or of one split of a saved data set folder; a bad row would change the score.

    Raises:
        UserError: naming the file and the line.
    """
    rows = []
    for record in _records(path, split, columns):
        try:
            rows.append(_values(record, columns))
        except Fault as fault:
            reads = f" (the task reads the columns {', '.join(columns.names)})" if columns and record.values else ""
            raise UserError(f"{path}:{record.line}: {fault}{reads}") from None
    return rows


def _records(path: Path, split: str, columns: Columns | None) -> Iterator[Record]:
    if path.suffix == ".txt":
        return text_records(path, columns)
    (source,) = open_sources([SourceConfig(path=str(path), split=split)])
    return source.records()


def _values(record: Record, columns: Columns | None) -> dict[str, Any]:
    if record.values is None:
        raise record.fault or Fault("unreadable row")
    return columns.of(record.values) if columns else record.values


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
