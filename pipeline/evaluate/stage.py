"""The evaluation stage: score the run's model on every task that has no valid result yet."""

import io
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.metadata import version
from typing import Any

import torch
from lm_eval.evaluator import evaluate as run_harness
from rich.console import Console

from pipeline.config import RunConfig, signature
from pipeline.errors import StageError, UserError
from pipeline.evaluate.catalogue import TASKS, template_of
from pipeline.evaluate.fingerprint import (
    evaluation_signature,
    missing_tasks,
    model_fingerprint,
    own_hash,
)
from pipeline.evaluate.harness import BranchedLM
from pipeline.evaluate.progress import Shown
from pipeline.evaluate.records import lines, records, summary
from pipeline.evaluate.scored_model import load_model
from pipeline.evaluate.suite import Loaded, check_tasks, load_task
from pipeline.files import read_json, write_json, write_text
from pipeline.model import load_tokenizer
from pipeline.run_folder import RunFolder
from pipeline.versions import versions

SEED = 1234
"""Of sampled generation; greedy decoding and log-likelihoods need none."""
RESAMPLINGS = 100
"""Bootstrap draws for the standard error of metrics that have no closed form."""


def evaluate(config: RunConfig, folder: RunFolder) -> dict[str, dict[str, Any]]:
    """Results of all tasks of the configuration, scoring those that are missing; the model is loaded once.

    Each task ends with evaluate/TASK.jsonl, one record per document, and then evaluate/TASK.json.

    Raises:
        UserError: unknown task, missing data, or a model trained with another template than the tasks use.
        StageError: no trained model, a model that training left untouched, or a result that can't be written.
    """
    missing = missing_tasks(config, folder)
    if missing or not config.evaluation.tasks:
        known = check_tasks(config.evaluation)
        fingerprint = model_fingerprint(config, folder)
        check_template(config, folder, missing)
        loaded = {
            task: load_task(known, task, config.evaluation.data.get(task), config.evaluation.shots(task))
            for task in missing
        }
        lm = _open(config, folder)
        for task in missing:
            _score(task, config, folder, lm, loaded[task], fingerprint)
    return {task: _finished(folder, task) for task in config.evaluation.tasks}


def _finished(folder: RunFolder, task: str) -> dict[str, Any]:
    result = read_json(folder.evaluation(task))
    assert isinstance(result, dict)
    return result


def check_template(config: RunConfig, folder: RunFolder, tasks: Sequence[str]) -> None:
    """Refuse to score a model on prompts of another form than it was trained on.

    Raises:
        UserError: tasks of ours, and a model trained with another template.
    """
    ours = [task for task in tasks if task in TASKS]
    if config.tuning.kind == "none" or not ours:
        return
    card = read_json(folder.model / "dualtune.json")
    trained = (card if isinstance(card, dict) else {}).get("facts", {}).get("template_hash")
    other = [task for task in ours if trained != own_hash(task)]
    if other:
        name = template_of(other[0])
        raise UserError(
            f"{folder.model}: trained with another template (hash {trained}) than {', '.join(other)} "
            f"would be evaluated with ({name}, hash {own_hash(other[0])}); train with data.template: {name}"
        )


def _open(config: RunConfig, folder: RunFolder) -> BranchedLM:
    return BranchedLM(
        load_model(config, folder),
        load_tokenizer(config.model),
        max_batch_tokens=config.evaluation.max_batch_tokens,
        add_bos=True,
        precision=config.model.precision,
    )


def _score(task: str, config: RunConfig, folder: RunFolder, lm: BranchedLM, loaded: Loaded, fingerprint: str) -> None:
    started, console = time.monotonic(), Console(stderr=True, highlight=False)
    lm.progress, lm.truncated = Shown(f"evaluate {task}", console), 0
    try:
        results = run_task(lm, loaded, config.evaluation.limit)
    except torch.OutOfMemoryError as error:
        raise StageError(f"task {task}: out of memory on the GPU: lower evaluation.max_batch_tokens") from error
    finally:
        lm.progress.close()
    try:
        found = records(loaded, results)
    except StageError as error:
        raise StageError(f"task {task}: {error}") from error
    outcome = {
        "task": task,
        "signature": signature(config),
        "evaluation_signature": evaluation_signature(task, config, fingerprint),
        "model_fingerprint": fingerprint,
        "limit": config.evaluation.limit,
        **summary(task, results, found),
        "truncated_requests": lm.truncated,
        "template_hash": own_hash(task),
        "lm_eval_version": version("lm-eval"),
        "settings": settings(lm),
        "wall_seconds": round(time.monotonic() - started, 3),
        "versions": versions(),
    }
    save(task, folder, found, outcome)
    console.print(f"evaluate {task}: {told(outcome)}", markup=False, soft_wrap=True)


def settings(lm: BranchedLM) -> dict[str, Any]:
    """How requests were put to the model."""
    return {
        "max_batch_tokens": lm.max_batch_tokens,
        "max_length": lm.max_length,
        "add_bos": lm.add_bos,
        "precision": lm.precision,
        "device": lm.model.device.type,
        "seed": SEED,
    }


def save(task: str, folder: RunFolder, found: list[dict[str, Any]], outcome: dict[str, Any]) -> None:
    """Write the records, then the result. An older result goes first: it would not belong to these records.

    Raises:
        StageError: a file can't be written.
    """
    try:
        folder.evaluation(task).unlink(missing_ok=True)
    except OSError as error:
        raise StageError(f"{folder.evaluation(task)}: cannot be written ({error.strerror})") from error
    write_text(folder.samples(task), lines(found))
    write_json(folder.evaluation(task), outcome)


def told(outcome: dict[str, Any]) -> str:
    """The result in one line."""
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in outcome["metrics"].items())
    limited = f", limited to {outcome['limit']}" if outcome["limit"] else ""
    cut = f", {outcome['truncated_requests']} contexts cut from the left" if outcome["truncated_requests"] else ""
    return f"{metrics} ({outcome['documents']} documents{limited}{cut}, {outcome['wall_seconds']:.1f} s)"


def run_task(lm: BranchedLM, loaded: Loaded, limit: int | None) -> dict[str, Any]:
    """Score one loaded task with the harness. Nothing is cached, and the same model gives the same result."""
    torch.manual_seed(SEED)
    with _hushed():
        results: Any = run_harness(lm=lm, task_dict=loaded, limit=limit, bootstrap_iters=RESAMPLINGS, log_samples=True)
    return dict(results)


@contextmanager
def _hushed() -> Iterator[None]:
    """Without the harness's bars and prints; errors are exceptions and get through."""
    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # the harness would start a process per core to resample
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield
