"""Configuration of evaluation."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from pipeline.schema import Schema

Shots = Annotated[int, Field(ge=0)]


class TaskFiles(Schema):
    """The local data of one task. A file name alone is short for `test`."""

    test: Annotated[str, Field(min_length=1)]
    """Documents that are scored."""
    fewshot: Annotated[str, Field(min_length=1)] | None = None
    """Rows from which the examples of a prompt are drawn, usually the training set."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if not isinstance(value, str | Mapping | cls):
            raise ValueError("must be a file, or {test: file, fewshot: file}")
        return {"test": value} if isinstance(value, str) else value

    @property
    def files(self) -> dict[str, str]:
        """Split -> file, of those that are given."""
        return {"test": self.test} | ({"fewshot": self.fewshot} if self.fewshot else {})


class EvaluationConfig(Schema):
    """Which tasks are scored, on which files, with how many documents."""

    tasks: tuple[str, ...] = ()
    """Ours, zero-shot in the paper's templates: `piqa_full`, `arc_full` (ARC-Challenge), `arc_easy_full`, `csqa_full`,
    `siqa_full`, `mmlu` (all subjects; it takes the place of lm-eval's group of that name), `gsm8k_full`; chain of
    thought: `piqa_cot`, `arc_cot`, `csqa_cot`, `gsm8k_cot`; or any task of lm-eval."""
    data: dict[str, TaskFiles] = {}
    """Task -> local file (.json, .jsonl, .csv, .tsv, .parquet, .arrow, some .txt) or saved data set folder, where the
    hub is not used. Entries of tasks that are not scored are ignored."""
    num_fewshot: Shots | dict[str, Shots] | None = None
    """Examples in front of each question, for all tasks or by task; default: as many as the task asks for."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Only the first documents of each task; the results are marked as limited."""
    max_batch_tokens: Annotated[int, Field(ge=1)] | None = None
    """Token budget of one packed forward pass: prompts once per branch, and answers. Scores do not depend on it.
    Default: 1,024 on the CPU, whose caches larger passes leave, else 16,384.
    Where memory runs out, half of it is tried, and so on."""
    max_length: Annotated[int, Field(ge=2)] | None = None
    """Longest input in tokens, default: what the model reads. Longer contexts lose their beginning and are counted."""
    add_bos: bool = True
    """One BOS in front of every text, as in training; false: whatever the tokenizer adds, as in lm-eval."""
    spread: bool = False
    """Spread the model's layers over all GPUs of the machine, for models that one cannot hold."""
    chat_template: bool = False
    """Put prompts (and examples, as turns of their own) into the tokenizer's chat template."""
    system_prompt: str | None = None
    """Text in front of every prompt; with a chat template, the system message."""

    @property
    def shots_by_task(self) -> dict[str, int]:
        """The entries of `num_fewshot` where it names tasks."""
        return self.num_fewshot if isinstance(self.num_fewshot, dict) else {}

    def shots(self, task: str) -> int | None:
        """The number of examples asked for; None leaves it to the task."""
        return self.shots_by_task.get(task) if isinstance(self.num_fewshot, dict) else self.num_fewshot

    @field_validator("num_fewshot", mode="before")
    @classmethod
    def _whole_numbers(cls, value: Any) -> Any:
        numbers = value.values() if isinstance(value, Mapping) else [value]
        if value is not None and not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("must be a whole number from 0, or such a number for each task")
        return value

    @model_validator(mode="after")
    def _no_task_twice(self) -> "EvaluationConfig":
        twice = sorted({task for task in self.tasks if self.tasks.count(task) > 1})
        if twice:
            raise ValueError(f"tasks names {', '.join(twice)} twice")
        return self
