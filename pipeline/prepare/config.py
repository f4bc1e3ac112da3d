"""Configuration of data preparation."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.prepare.filter_config import FiltersConfig
from pipeline.schema import Schema

Form = Literal["auto", "alpaca", "prompt_completion", "messages", "sharegpt", "question_choices"]

Turns = Literal["last", "each"]


class SourceConfig(Schema):
    """One source of instruction data."""

    path: str
    """A local file (.json, .jsonl, .jsonl.gz, .csv, .parquet, .arrow), a saved data set folder, or a hub id."""
    form: Form = "auto"
    split: str = "train"
    """Split of a hub data set or saved data set folder; local files are one split."""
    subset: str | None = None
    """Configuration name of a hub data set, e.g. ARC-Challenge."""
    columns: dict[str, str] = {}
    """Field of the form -> column of the file, where they differ (e.g. question: goal)."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """At most this many rows, the first ones in file order."""


class DataConfig(Schema):
    """Sources, template and filters."""

    sources: Annotated[tuple[SourceConfig, ...], Field(min_length=1)]
    template: Literal["paper", "cot", "chat"] = "paper"
    """`paper`: the templates of Bitune's appendix; `cot`: the same prompts, answered with
    reasoning and then the answer; `chat`: the model's own chat template."""
    turns: Turns = "last"
    """Which answers of a conversation are learnt: the last, or each in a row of its own."""
    max_tokens: Annotated[int, Field(ge=2)] = 512
    """Rows with more tokens (prompt + answer + EOS) are dropped and counted, never cut."""
    filters: FiltersConfig = FiltersConfig()
    """Which usable rows are left out all the same."""
    max_dropped_percent: Annotated[float, Field(ge=0, le=100)] = 50.0
    """Above this share of dropped or rejected rows the stage fails."""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the rows that is not trained on, chosen by the hash of the prompt."""
