"""One evaluation file: read, checked, and turned into one number with its origin."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from pipeline.config import RunConfig
from pipeline.faults import explain
from pipeline.files import read_file
from pipeline.report.scale import full_score
from pipeline.report.statistics import LARGEST, is_number

ROUNDING = 1e-9
"""By which a mean of ones may be larger than 1."""


class UnusableError(Exception):
    """Why a run or an evaluation does not count; the message becomes a footnote of the table."""


SETTINGS = ("add_bos", "apply_chat_template", "system_instruction", "longest_input_asked")
"""Of an evaluation's settings, those that make another question of the same document."""


class AbsentError(UnusableError):
    """Nothing was written yet; what the planner knows about the run says more."""


def unreadable(error: Exception) -> str:
    """What an attempt to read a file said."""
    return f"cannot be read ({getattr(error, 'strerror', None) or error})"


def texts(values: Any) -> dict[str, str]:
    """Names and versions; what is no text is left out."""
    found = values.items() if isinstance(values, dict) else ()
    return {name: value for name, value in found if isinstance(value, str) and value.isprintable()}


class Evaluation(BaseModel):
    """The keys of evaluate/TASK.json that a table needs; others are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", protected_namespaces=(), allow_inf_nan=False)

    task: str
    signature: str
    limit: int | None
    documents: Annotated[int, Field(ge=1, lt=2**53)]
    metrics: dict[str, Any]
    main_metric: str
    higher_is_better: dict[str, bool | None] = {}
    evaluation_signature: str | None = None
    model_fingerprint: str | None = None
    task_version: str | int | float | None = None
    task_hash: str | None = None
    template_hash: str | None = None
    settings: dict[str, Any] = {}
    versions: Annotated[dict[str, str], BeforeValidator(texts)] = {}

    @property
    def full_score(self) -> int | None:
        """What the main metric is when all is right; None: it is no share."""
        return full_score(self.task, self.main_metric)

    @property
    def value(self) -> float:
        """The main metric: a fraction, unless it is no share."""
        return float(self.metrics[self.main_metric]) / (self.full_score or 1) + 0.0  # never -0.0

    @property
    def cut(self) -> int | None:
        """The limit, if it can have left documents out."""
        return self.limit if self.limit is not None and self.documents >= self.limit else None

    @property
    def lower_is_better(self) -> bool:
        return self.higher_is_better.get(self.main_metric) is False

    @property
    def conditions(self) -> dict[str, Any]:
        """What must be equal for two numbers to stand in one column."""
        return {
            "limit": self.cut,
            "documents": self.documents,
            "metric": self.main_metric,
            "task version": self.task_version,
            "task hash": self.task_hash,
            **{name.replace("_", " "): self.settings.get(name) for name in SETTINGS},
        }


@dataclass(frozen=True)
class Planned:
    """A number that the table asks for: of one run, on one task (or one cost)."""

    row: str
    group: str
    task: str
    seed: int | None
    folder: Path

    def missing(self, reason: str) -> "Missing":
        return Missing(self.row, self.group, self.task, self.seed, self.folder, reason)


@dataclass(frozen=True)
class Record(Planned):
    """A number that counts: the evaluation of one run on one task."""

    file: Path
    evaluation: Evaluation
    prepared_key: str | None

    @property
    def value(self) -> float:
        return self.evaluation.value

    @property
    def conditions(self) -> dict[str, Any]:
        return self.evaluation.conditions

    @property
    def is_full(self) -> bool:
        return self.evaluation.cut is None

    @property
    def facts(self) -> dict[str, Any]:
        """What the number was measured with."""
        found = self.evaluation
        return {
            "signature": found.signature,
            "evaluation_signature": found.evaluation_signature,
            "model_fingerprint": found.model_fingerprint,
            "prepared_key": self.prepared_key,
            "template_hash": found.template_hash,
            "task_hash": found.task_hash,
            "task_version": found.task_version,
            "versions": found.versions,
        }


@dataclass(frozen=True)
class Cost(Planned):
    """A number that counts: what one run took, as measured (seconds, bytes, tokens a second, parameters)."""

    file: Path
    value: float
    facts: dict[str, Any]
    conditions: dict[str, Any]
    """What must be equal for two of them to stand in one column."""
    is_full = True


Measurement = Record | Cost


@dataclass(frozen=True)
class Missing(Planned):
    """A number that was planned and is not there (or does not count), and why."""

    reason: str


Outcome = Measurement | Missing


def read_evaluation(path: Path, task: str, config: RunConfig, signature: str, metric: str | None = None) -> Evaluation:
    """The evaluation at `path`, if it is whole, finished and made by this configuration.

    Args:
        metric: the one to show, in place of the task's main metric.

    Raises:
        UnusableError: saying what is missing or wrong.
    """
    try:
        evaluation = Evaluation.model_validate_json(read_file(path))
    except (FileNotFoundError, NotADirectoryError):
        raise AbsentError(f"evaluation of {task} is missing") from None
    except ValidationError as error:
        broken = any(fault["type"] == "json_invalid" for fault in error.errors(include_url=False))
        words = "not whole JSON" if broken else "; ".join(explain(error, Evaluation))
        raise UnusableError(f"evaluation of {task} is damaged ({words})") from None
    except (OSError, ValueError) as error:
        raise UnusableError(f"evaluation of {task} {unreadable(error)}") from None
    evaluation = evaluation.model_copy(update={"main_metric": metric}) if metric else evaluation
    _check_origin(evaluation, task, config, signature)
    _check_value(evaluation)
    return evaluation


def _check_origin(evaluation: Evaluation, task: str, config: RunConfig, signature: str) -> None:
    if evaluation.task != task:
        raise UnusableError(f"evaluation of {task} holds the results of {evaluation.task}")
    if evaluation.signature != signature:
        raise UnusableError(f"evaluation of {task} belongs to another configuration (signature {evaluation.signature})")
    if evaluation.limit != config.evaluation.limit:
        raise UnusableError(
            f"evaluation of {task} is limited differently: {_shown_limit(evaluation.limit)}, "
            f"the configuration asks for {_shown_limit(config.evaluation.limit)}"
        )


def _shown_limit(limit: int | None) -> str:
    return "all documents" if limit is None else f"the first {limit} documents"


def _check_value(evaluation: Evaluation) -> None:
    name = evaluation.main_metric
    value = evaluation.metrics.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnusableError(f"evaluation of {evaluation.task} has no number for {name}")
    if not is_number(value):
        shown = value if isinstance(value, float) else f"beyond {LARGEST:g}"
        raise UnusableError(f"evaluation of {evaluation.task} failed: {name} is {shown}")
    full = evaluation.full_score
    if full is not None and not 0 <= evaluation.value <= 1 + ROUNDING:
        share = "a fraction from 0 to 1" if full == 1 else f"percent, as {evaluation.task} reports it"
        raise UnusableError(f"evaluation of {evaluation.task} failed: {name} is {value}, not {share}")
