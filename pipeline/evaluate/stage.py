"""The evaluation stage: score the run's model on every task that has no valid result yet."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from pipeline.checks import refuse_chat
from pipeline.config import RunConfig
from pipeline.errors import UserError
from pipeline.evaluate.catalogue import TASKS, template_of
from pipeline.evaluate.fingerprint import is_finished, missing_tasks, model_fingerprint, own_hash
from pipeline.evaluate.harness import BranchedLM
from pipeline.evaluate.processes import processes_beside
from pipeline.evaluate.score import Task
from pipeline.evaluate.scored_model import load_model
from pipeline.evaluate.suite import check_tasks, load_task
from pipeline.files import read_json
from pipeline.model import load_tokenizer
from pipeline.run_folder import RunFolder
from pipeline.share import Share


def evaluate(config: RunConfig, folder: RunFolder, processes: int = 1) -> dict[str, dict[str, Any]]:
    """Results of all tasks of the configuration, scoring those that are missing; the model is loaded once.

    Each task ends with evaluate/TASK.jsonl, one record per document, and then evaluate/TASK.json. Killed on the way,
    the next call goes on after the last answered pass.

    Args:
        processes: how many share the work, each with its own model, on its own GPU where there are several.

    Raises:
        UserError: unknown task, missing data, or a model trained with another template than the tasks use.
        StageError: no trained model, a model that training left untouched, or a result that can't be written.
    """
    if processes > 1 and config.evaluation.spread:
        raise UserError("evaluation.spread: one process uses all GPUs then, --processes cannot be given")
    missing = missing_tasks(config, folder)
    if missing or not config.evaluation.tasks:
        tasks = open_tasks(config, folder, missing)
        with processes_beside(config, folder, processes) as device:
            lm = open_model(config, folder, device)
            if processes > 1:
                answer(tasks, lm, Share(1, processes))
        for task in tasks:
            task.score(lm)
    return {task: _finished(folder, task) for task in config.evaluation.tasks}


def evaluate_share(config: RunConfig, folder: RunFolder, share: Share) -> list[str]:
    """Answer one share of all requests; others answer the other shares, at any time and on any machine. Whoever
    comes last writes the results.

    Returns:
        The tasks that wait for answers of other shares.

    Raises:
        UserError, StageError: as `evaluate`.
    """
    from pipeline.stages import exclusive  # which imports this stage in turn

    tasks = open_tasks(config, folder, missing_tasks(config, folder))
    if not tasks:
        return []
    lm = open_model(config, folder)
    answer(tasks, lm, share)
    with exclusive(folder, lambda words: None):
        for task in tasks:
            if is_finished(folder, task.name, task.signature):  # somebody else was here
                task.answers(lm).remove()
            elif task.is_answered(lm):
                task.score(lm)
    return missing_tasks(config, folder)


def open_tasks(
    config: RunConfig, folder: RunFolder, names: Sequence[str], console: Console | None = None
) -> list[Task]:
    """The tasks with their documents; everything that can be refused without the model is refused here."""
    known = check_tasks(config.evaluation)
    fingerprint = model_fingerprint(config, folder)
    check_template(config, folder, names)
    data, shots, own = config.evaluation.data, config.evaluation.shots, config.own_template
    loaded = {name: load_task(known, name, data.get(name), shots(name), own) for name in names}
    console = console or Console(stderr=True, highlight=False)
    return [Task(name, loaded[name], config, folder, fingerprint, console) for name in names]


def open_model(config: RunConfig, folder: RunFolder, device: str | None = None) -> BranchedLM:
    """The run's model as lm-eval sees it."""
    return BranchedLM(
        load_model(config, folder, device),
        load_tokenizer(config.model),
        max_batch_tokens=config.evaluation.max_batch_tokens,
        add_bos=config.evaluation.add_bos,
        max_length=config.evaluation.max_length,
        precision=config.model.precision,
    )


def answer(tasks: Sequence[Task], lm: BranchedLM, share: Share) -> None:
    """Answer a share of the requests of every task; afterwards the model answers all that it is asked again."""
    lm.worker.share = share
    for task in tasks:
        task.answer(lm)
    lm.worker.share = Share()


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
    refuse_chat(config, ours)
    card = read_json(folder.model / "dualtune.json")
    trained = (card if isinstance(card, dict) else {}).get("facts", {}).get("template_hash")
    own = config.own_template
    other = [task for task in ours if trained != own_hash(task, own)]
    if other:
        template = template_of(other[0], own)
        name = template if isinstance(template, str) else "texts of your own"
        raise UserError(
            f"{folder.model}: trained with another template (hash {trained}) than {', '.join(other)} "
            f"would be evaluated with ({name}, hash {own_hash(other[0], own)}); train with data.template: {name}"
        )
