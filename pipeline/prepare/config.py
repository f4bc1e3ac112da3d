"""Configuration of data preparation."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from pipeline.errors import did_you_mean
from pipeline.faults import explain
from pipeline.prepare.filter_config import FiltersConfig
from pipeline.schema import Schema

Form = Literal[
    "auto", "alpaca", "prompt_completion", "messages", "sharegpt", "tree", "preference", "completions",
    "question_choices",
]  # fmt: skip

Turns = Literal["last", "each", "all"]
TemplateName = Literal["paper", "cot", "chat"]


class TemplateTexts(Schema):
    """A template of the user's own: Jinja texts over the fields of a row."""

    prompt: str
    """What is asked: `question`, `input`, `context`, `choices`, `system`, `history`, `tools`, `asker`."""
    answer: str
    """What is learnt: besides those `answer`, and of choices `letter` and `index`. EOS is added behind it."""

    @field_validator("prompt", "answer")
    @classmethod
    def _is_known(cls, text: str, info: ValidationInfo) -> str:
        from pipeline.prepare.own_template import check_names  # which needs Jinja

        check_names(text, str(info.field_name))
        return text


Template = TemplateName | TemplateTexts


class SourceConfig(Schema):
    """One source of instruction data."""

    path: str
    """A local file (.json, .jsonl, .csv, .tsv, .parquet, .arrow, .txt, also .gz or .zst), a zip archive of such files,
    a glob, a saved data set folder, a folder with `files`, or a hub id."""
    files: str | None = None
    """Pattern of the files to read within a folder or zip archive; a zip archive's default is all."""
    form: Form = "auto"
    split: str = "train"
    """Split of a hub data set or saved data set folder; local files are one split."""
    subset: str | None = None
    """Configuration name of a hub data set, e.g. ARC-Challenge."""
    header: tuple[str, ...] = ()
    """Names of the columns of CSV and TSV files that have no header line."""
    lines: Annotated[int, Field(ge=1)] = 1
    """Lines that make one row of a .txt file."""
    labels: str | None = None
    """A file with one answer a line, the n-th for the n-th row: a path, or a name within the zip archive."""
    columns: dict[str, str] = {}
    """Field of the form -> column of the file, a place within one (doc.question), or a Jinja text over the columns."""
    constants: dict[str, str] = {}
    """Field of the form -> the value that it has in every row."""
    answered_by: str | None = None
    """Of the form `completions`: only those by this model; otherwise the one with the best score."""
    unique: str | None = None
    """Column or place of which each value is used once, in its first row."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """At most this many rows, the first ones in file order."""
    count: Annotated[int, Field(ge=1)] | None = None
    """Exactly this many rows, drawn by `seed`; where there are fewer, all are repeated."""
    weight: Annotated[float, Field(gt=0)] | None = None
    """Share in a mix, relative to the other sources' weights; the mix is the largest without a repeated row."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Of the choice of rows for `count` and `weight`."""


class DataConfig(Schema):
    """Sources, template and filters."""

    sources: Annotated[tuple[SourceConfig, ...], Field(min_length=1)]
    template: Template = "paper"
    """`paper`: the templates of Bitune's appendix; `cot`: the same prompts, answered with
    reasoning and then the answer; `chat`: the model's own chat template; or texts of your own."""
    turns: Turns = "last"
    """Which answers of a conversation are learnt: the last, each in a row of its own, or all in one row."""
    max_tokens: Annotated[int, Field(ge=2)] = 512
    """Rows with more tokens (prompt + answer + EOS) are dropped and counted, never cut."""
    filters: FiltersConfig = FiltersConfig()
    """Which usable rows are left out all the same."""
    max_dropped_percent: Annotated[float, Field(ge=0, le=100)] = 50.0
    """Above this share of dropped or rejected rows the stage fails; below 100 also where a file ends early."""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the rows that is not trained on, chosen by the hash of the prompt."""

    @field_validator("template", mode="before")
    @classmethod
    def _name_or_texts(cls, value: Any) -> Any:
        names = get_args(TemplateName)
        if isinstance(value, Mapping):
            try:
                return TemplateTexts.model_validate(value)
            except ValidationError as error:
                raise ValueError("; ".join(explain(error, TemplateTexts))) from None
        if not isinstance(value, TemplateTexts) and value not in names:
            raise ValueError(f"must be one of {', '.join(names)}{did_you_mean(str(value), names)}, or texts of your "
                             "own: {prompt: ..., answer: ...}")  # fmt: skip
        return value

    @model_validator(mode="after")
    def _has_reasoning(self) -> "DataConfig":
        if self.turns == "all" and self.template == "cot":
            raise ValueError("turns = all needs the template paper or chat: earlier answers bring no reasoning for cot")
        return self
