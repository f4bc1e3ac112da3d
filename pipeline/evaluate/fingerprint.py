"""What a score was measured with, and whether a result on disk still answers the present question."""

import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.config import RunConfig, digest, signature
from pipeline.errors import StageError, UserError
from pipeline.evaluate.catalogue import TASKS, template_of
from pipeline.evaluate.config import EvaluationConfig, TaskFiles
from pipeline.files import expanded, read_json
from pipeline.prepare.config import TemplateTexts
from pipeline.prepare.templates import template_hash
from pipeline.run_folder import RunFolder
from pipeline.versions import installed

EVALUATION_VERSION = 2
"""Raised when scoring changes so that earlier results no longer count."""
MODEL_FILES = (".safetensors", ".bin", ".json", ".jinja", ".model", ".txt")
"""Endings of the files of a model folder that scores depend on."""
LINE_END = "\n"
SETTINGS = {"limit", "max_length", "add_bos", "chat_template", "system_prompt"}
"""Keys of the configuration that scores of all tasks depend on."""


def model_fingerprint(config: RunConfig, folder: RunFolder) -> str:
    """Identity of the model that is scored: the run's signature, and the content of the files that make it what it is:
    weights, configuration, tokenizer and templates, of the trained model and of a base model in a local folder.

    A base model from the hub has no files here; its name and revision are part of the signature.

    Raises:
        StageError: the run has no trained model yet, or it or its base is not what it was in the training.
    """
    base, trained = model_hashes(Path(config.model.name)), {}
    if config.tuning.kind != "none":
        trained = model_hashes(folder.model)
        _check_trained(folder, trained, base, config.model.name)
    return digest({"run": signature(config), "base": base, "trained": trained})


def _check_trained(folder: RunFolder, trained: dict[str, str], base: dict[str, str], name: str) -> None:
    if not any(file.endswith(".safetensors") for file in trained):
        raise StageError(f"{folder.model}: no trained model is there to be evaluated; train the run first")
    result = read_json(folder.train_result)
    facts = result if isinstance(result, dict) else {}
    recorded = facts.get("model_hashes") or {}
    if changed := [file for file in recorded if trained.get(file) != recorded[file]]:
        file = folder.model / changed[0]
        raise StageError(f"{file}: not what the training wrote: restore it, or remove {folder.root} to train anew")
    if base and facts.get("base_model", digest(base)) != digest(base):
        raise StageError(f"{name}: has changed since {folder.root} was trained on it: remove that to train anew")


def model_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of the files of a model that answers depend on; {} for one of the hub, whose revision stands for it."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {name: content_hash(folder / name) for name in names if name.endswith(MODEL_FILES)}


def evaluation_signature(task: str, config: RunConfig, model: str) -> str:
    """Identity of a score: task, its definition and data, number of documents, template and model."""
    own = TASKS.get(task)
    data = config.evaluation.data.get(task)
    files = data_paths(task, data) if data else {}
    return digest({
        "version": EVALUATION_VERSION,
        "task": task,
        "definition": content_hash(own) if own else f"lm-eval {installed('lm-eval')}",
        "template": own_hash(task, config.own_template),
        "data": {split: content_hash(path) for split, path in files.items()},
        "num_fewshot": config.evaluation.shots(task),
        "settings": config.evaluation.model_dump(include=SETTINGS),
        "model": model,
    })  # fmt: skip


@cache
def own_hash(task: str, own: TemplateTexts | None = None) -> str | None:
    """Identity of the template that a task of ours uses; None for one of the harness."""
    return template_hash(template_of(task, own)) if task in TASKS else None


def data_paths(task: str, data: TaskFiles) -> dict[str, Path]:
    """The local data of a task, by split.

    Raises:
        UserError: a file is not there.
    """
    paths = {split: expanded(file) for split, file in data.files.items()}
    for split, path in paths.items():
        if not path.exists():
            key = task if split == "test" else f"{task}.{split}"
            raise UserError(f"evaluation.data.{key}: there is no file or folder {data.files[split]}")
    return paths


def check_data(config: EvaluationConfig) -> None:
    """Refuse local data that is not there, of the tasks that will be scored."""
    for task in config.tasks:
        if task in config.data:
            data_paths(task, config.data[task])


def content_hash(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of all files in a folder."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return digest({file.relative_to(path).as_posix(): content_hash(file) for file in files})
    status = path.stat()
    return _file_hash(path, status.st_size, status.st_mtime_ns)


@cache
def _file_hash(path: Path, size: int, modified: int) -> str:
    """Read once per process while the file stays as it is; weights are large."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def missing_tasks(config: RunConfig, folder: RunFolder) -> list[str]:
    """Tasks of the configuration without a finished result that was measured with exactly this model and data.

    Raises:
        UserError: the local data of a task is not there.
    """
    tasks = list(dict.fromkeys(config.evaluation.tasks))
    check_data(config.evaluation)
    try:
        model = model_fingerprint(config, folder)
    except StageError:
        return tasks
    return [task for task in tasks if not is_finished(folder, task, evaluation_signature(task, config, model))]


def is_finished(folder: RunFolder, task: str, expected: str) -> bool:
    """Both files are whole, belong together and carry the expected evaluation signature."""
    result: Any = read_json(folder.evaluation(task))
    if not isinstance(result, dict) or result.get("evaluation_signature") != expected:
        return False
    return result.get("documents") == whole_lines(folder.samples(task)) and bool(result.get("metrics"))


def whole_lines(path: Path) -> int | None:
    """Number of JSON lines of a file; None when it is absent or a line is not whole."""
    try:
        lines = path.read_text(encoding="utf-8").removesuffix(LINE_END)
        rows = json.loads(f"[{lines.replace(LINE_END, ',')}]")  # in one go: line by line takes twice the time
    except (OSError, ValueError):
        return None
    count = lines.count(LINE_END) + 1 if lines else 0
    return count if len(rows) == count and all(isinstance(row, dict) for row in rows) else None
