"""Configuration of evaluation."""

from typing import Annotated

from pydantic import Field

from pipeline.schema import Schema


class EvaluationConfig(Schema):
    """Which tasks are scored, on which files, with how many documents."""

    tasks: tuple[str, ...] = ()
    """Names: the paper's `piqa_full`, `arc_full`, `csqa_full`, `siqa_full`, `mmlu`, or any task of lm-eval."""
    data: dict[str, str] = {}
    """Task -> local data file, for machines without the hub."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Only the first documents of each task; the results are marked as limited."""
    max_batch_tokens: Annotated[int, Field(ge=1)] = 4096
    """Token budget of one packed forward pass."""
