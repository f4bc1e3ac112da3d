"""Forms: how a row's columns become the fields that a template needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import UserError
from pipeline.prepare.choices import has_choices, read_choices
from pipeline.prepare.config import Form, SourceConfig
from pipeline.prepare.record import Fault


@dataclass(frozen=True)
class Example:
    """One question and its answer."""

    question: str
    answer: str
    """Text of the answer; with choices, the text of the right one."""
    input: str = ""
    context: str = ""
    choices: tuple[str, ...] = ()
    index: int = 0
    """Position of the right choice, from 0."""
    system: str = ""
    reasoning: str = ""
    """Steps that lead to the answer; only the template `cot` uses them."""


def _text(row: Mapping[str, Any], field: str, optional: bool = False) -> str:
    value = row.get(field)
    if optional and value in (None, ""):
        return ""
    if value is None:
        raise Fault(f"{'null' if field in row else 'missing'} field {field!r}")
    if not isinstance(value, str):
        raise Fault(f"wrong type in {field!r}", f"{type(value).__name__}, not text")
    if not value.strip():
        raise Fault(f"empty field {field!r}")
    return value


def _alpaca(row: dict[str, Any]) -> Example:
    return Example(_text(row, "instruction"), _text(row, "output"), input=_text(row, "input", optional=True))


def _prompt_completion(row: dict[str, Any]) -> Example:
    return Example(_text(row, "prompt"), _text(row, "completion"))


def _messages(row: dict[str, Any]) -> Example:
    turns = row.get("messages")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise Fault("wrong type in 'messages'" if turns is not None else "missing field 'messages'")
    roles = [turn.get("role") for turn in turns]
    if roles[-1:] != ["assistant"]:
        raise Fault("no answer: the last message is not the assistant's")
    if roles.count("user") > 1 or roles.count("assistant") > 1:
        raise Fault("more than one turn")
    if roles not in (["user", "assistant"], ["system", "user", "assistant"]):
        raise Fault("messages are not [system,] user, assistant", ", ".join(map(str, roles)))
    contents = {str(turn["role"]): _text(turn, "content", optional=turn["role"] == "system") for turn in turns}
    return Example(contents["user"], contents["assistant"], system=contents.get("system", ""))


def _question_choices(row: dict[str, Any]) -> Example:
    question = row.get("question")
    stem = _text(question, "stem") if isinstance(question, dict) else _text(row, _question_column(row))
    context = _text(row, "context", optional=True)
    steps = row.get("reasoning")
    reasoning = steps if isinstance(steps, str) else ""  # a column of that name means nothing to other templates
    if has_choices(row):
        choices, index = read_choices(row)
        return Example(stem, choices[index], context=context, choices=choices, index=index, reasoning=reasoning)
    return Example(stem, _text(row, "answer"), input=context, reasoning=reasoning)


def _question_column(row: dict[str, Any]) -> str:
    return "goal" if "goal" in row and "question" not in row else "question"  # PIQA


def _looks_like_question(row: dict[str, Any]) -> bool:
    return bool({"question", "goal"} & row.keys()) and ("answer" in row or has_choices(row))


@dataclass(frozen=True)
class FormReader:
    """A form: how to tell it, how to read it, and the fields that `columns:` may name."""

    fits: Callable[[dict[str, Any]], bool]
    read: Callable[[dict[str, Any]], Example]
    fields: tuple[str, ...]


FORMS: dict[Form, FormReader] = {
    "alpaca": FormReader(lambda row: row.keys() >= {"instruction", "output"}, _alpaca,
                         ("instruction", "input", "output")),
    "prompt_completion": FormReader(lambda row: row.keys() >= {"prompt", "completion"}, _prompt_completion,
                                    ("prompt", "completion")),
    "messages": FormReader(lambda row: "messages" in row, _messages, ("messages",)),
    "question_choices": FormReader(_looks_like_question, _question_choices,
                                   ("question", "context", "choices", "answer", "reasoning")),
}  # fmt: skip
"""A new form is one more entry."""


def rename(row: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The row with the fields of `columns` (field -> column) taken from their columns."""
    if not columns:
        return row
    kept = {name: value for name, value in row.items() if name not in columns and name not in columns.values()}
    return {**kept, **{field: row[column] for field, column in columns.items() if column in row}}


def check_columns(config: SourceConfig) -> None:
    """Refuse a mapping from a field that the form doesn't have.

    Raises:
        UserError: naming the field and those allowed.
    """
    forms = list(FORMS) if config.form == "auto" else [config.form]
    allowed = sorted({field for form in forms for field in FORMS[form].fields})
    for field in config.columns:
        if field not in allowed:
            raise UserError(f"{config.path}: columns.{field}: not a field of form {config.form} ({', '.join(allowed)})")


def detect_form(rows: list[dict[str, Any]], path: str) -> Form:
    """The form of the first row that fits any.

    Raises:
        UserError: no row fits a form, or one fits several.
    """
    for row in rows:
        fitting = [name for name, form in FORMS.items() if form.fits(row)]
        if len(fitting) > 1:
            raise UserError(f"{path}: the columns fit several forms ({', '.join(fitting)}): name one as `form:`")
        if fitting:
            return fitting[0]
    seen = ", ".join(sorted(map(str, rows[0]))) if rows else "none that can be read"
    raise UserError(f"{path}: the columns ({seen}) fit no form ({', '.join(FORMS)}): set `form:` and `columns:`")
