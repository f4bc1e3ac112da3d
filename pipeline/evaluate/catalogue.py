"""The project's own tasks, by name: one YAML file each, in the form of lm-eval."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.prepare.config import Template, TemplateTexts

FOLDER = Path(__file__).parent / "tasks"

TASKS = {file.stem: file for file in sorted(FOLDER.glob("*.yaml"))}
"""Name -> file. These names win over equal ones of the harness: `mmlu` is the paper's."""


def template_of(task: str, own: "TemplateTexts | None" = None) -> "Template":
    """The template (`data.template`) of a task of ours: a model must have been trained with it.

    Args:
        own: the user's, which takes the place of `paper`.
    """
    return "cot" if task.endswith("_cot") else own or "paper"


def scored_split(definition: Mapping[str, Any]) -> str:
    """The split whose documents a task scores, ours or the harness's."""
    return str(definition.get("test_split") or definition.get("validation_split") or "test")


def description(task: str) -> str:
    """What a task of ours measures: the first line of its file."""
    return TASKS[task].read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
