"""Configuration of the filters: which usable rows are left out all the same."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.schema import Schema

Count = Annotated[int, Field(ge=0)]


class RangeConfig(Schema):
    """How many tokens are allowed, both ends included."""

    min: Count | None = None
    max: Count | None = None

    @model_validator(mode="after")
    def _in_order(self) -> "RangeConfig":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self


class LanguageConfig(Schema):
    """Languages by their script."""

    scripts: tuple[str, ...] = ()
    """Unicode names such as Latin, Cyrillic, Han; empty: no filter."""
    min_share: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Of a row's letters that must be of these scripts. A row without letters stays."""


class PatternConfig(Schema):
    """A regular expression."""

    pattern: Annotated[str, Field(min_length=1)]
    """In RE2's syntax, which takes linear time on any text: no look-around, no back-references."""
    where: Literal["prompt", "answer", "any"] = "any"
    """The rendered prompt, the rendered answer, or either."""
    drop: Literal["found", "missing"] = "found"
    """Drop the rows in which it is found, or those in which it is not."""


class DuplicatesConfig(Schema):
    """Rows that occur before."""

    exact: bool = False
    """Drop rows whose tokens and split into prompt and answer are those of an earlier row."""
    near: Annotated[float, Field(gt=0, le=1)] | None = None
    """Drop rows whose words resemble an earlier row's: estimated Jaccard similarity from which they count as the same,
    such as 0.8."""
    ngram: Annotated[int, Field(ge=1, le=20)] = 3
    """Consecutive words that `near` compares."""
    permutations: Annotated[int, Field(ge=16, le=512)] = 128
    """Of MinHash: the estimate's standard error is at most 0.5 / sqrt(permutations)."""


class OverlapConfig(Schema):
    """Rows that share words with the evaluation sets: those of `evaluation.tasks` and further files."""

    mode: Literal["ignore", "report", "drop"] = "ignore"
    ngram: Annotated[int, Field(ge=1, le=50)] = 8
    """Consecutive words in common that count as overlap."""
    files: tuple[str, ...] = ()
    """Further evaluation sets, in any form that a source can have."""


class FiltersConfig(Schema):
    """Each drop is counted by its reason. All work on any form and template."""

    whole_tokens: RangeConfig = RangeConfig()
    """Of the row, BOS and EOS included. `data.max_tokens` holds besides."""
    prompt_tokens: RangeConfig = RangeConfig()
    answer_tokens: RangeConfig = RangeConfig()
    """Labels, EOS included."""
    empty_answers: bool = True
    """Drop rows whose answer has no visible character: white space, control characters, invisible ones."""
    language: LanguageConfig = LanguageConfig()
    patterns: tuple[PatternConfig, ...] = ()
    function: Annotated[str, Field(pattern=r"^.+:\w+$")] | None = None
    """`module:function` or `file.py:function`; gets an Example, returns True (keep), False or a reason (drop)."""
    duplicates: DuplicatesConfig = DuplicatesConfig()
    overlap: OverlapConfig = OverlapConfig()
