"""Configuration of evaluation."""

from typing import Annotated

from pydantic import Field, model_validator

from pipeline.schema import Schema


class EvaluationConfig(Schema):
    """Which tasks are scored, on which files, with how many documents."""

    tasks: tuple[str, ...] = ()
    """Ours, zero-shot in the paper's templates: `piqa_full`, `arc_full` (ARC-Challenge), `arc_easy_full`, `csqa_full`,
    `siqa_full`, `mmlu` (all subjects; it takes the place of lm-eval's group of that name), or any task of lm-eval."""
    data: dict[str, str] = {}
    """Task -> local file (.json, .jsonl, .csv, .parquet, .arrow) or saved data set folder, where the hub is not used.
    Entries of tasks that are not scored are ignored."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Only the first documents of each task; the results are marked as limited."""
    max_batch_tokens: Annotated[int, Field(ge=1)] = 4096
    """Token budget of one packed forward pass: prompts once per branch, and answers. Scores do not depend on it.
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

    @model_validator(mode="after")
    def _no_task_twice(self) -> "EvaluationConfig":
        twice = sorted({task for task in self.tasks if self.tasks.count(task) > 1})
        if twice:
            raise ValueError(f"tasks names {', '.join(twice)} twice")
        return self
