"""What can be refused of a run without work, before its folder is touched. Imports nothing heavy unless it must."""

from collections.abc import Collection, Sequence

from pipeline.config import RunConfig
from pipeline.errors import UserError
from pipeline.evaluate.catalogue import TASKS, template_of
from pipeline.evaluate.offline import check_offline
from pipeline.model.config import refuse_missing_folder
from pipeline.train.config import check_trackers


def check_run(config: RunConfig, missing: Collection[str]) -> None:
    """Refuse what the `missing` stages can't do: nothing is done, and nothing written.

    Raises:
        UserError: a model, data, tracker or task that is not there, or tasks in another template than the model's.
    """
    if missing:
        refuse_missing_folder(config.model)
    if "train" in missing:
        check_trackers(config.training.trackers)
    if "prepare" in missing or "train" in missing:
        _check_sources(config)
    if "evaluate" in missing:
        check_evaluation(config)


def check_evaluation(config: RunConfig) -> None:
    """Refuse tasks that don't exist, that don't fit, or whose data can't be had. Ours need no look at the harness's.

    Raises:
        UserError: naming the task.
    """
    named = {*config.evaluation.tasks, *config.evaluation.data, *config.evaluation.shots_by_task}
    if not named <= set(TASKS):
        from pipeline.evaluate.suite import check_names

        check_names(config.evaluation)
    refuse_chat(config, config.evaluation.tasks)
    _check_template(config)
    check_offline(config.evaluation)


def refuse_chat(config: RunConfig, tasks: Sequence[str]) -> None:
    """A trained model is asked as in its training.

    Raises:
        UserError: tasks of ours, and a chat template.
    """
    ours = [task for task in tasks if task in TASKS]
    if config.tuning.kind != "none" and ours and config.evaluation.chat_template:
        raise UserError(
            f"evaluation.chat_template: {', '.join(ours)} ask in the template in which the model was trained; "
            "a chat template is for pretrained models and for lm-eval's own tasks"
        )


def _check_template(config: RunConfig) -> None:
    if config.tuning.kind == "none" or config.data is None:
        return
    for task in config.evaluation.tasks:
        asked = template_of(task, config.own_template)
        if task in TASKS and asked != config.data.template:
            own = config.data.template if isinstance(config.data.template, str) else "texts of your own"
            raise UserError(f"evaluation.tasks: {task} asks in the template {asked}, but data.template is {own}")


def _check_sources(config: RunConfig) -> None:
    from pipeline.prepare.containers import find_files

    for source in config.data.sources if config.data else ():
        find_files(source.path, source.files)
