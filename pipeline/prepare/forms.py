"""Forms: how a row's columns become the fields that a template needs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.errors import UserError
from pipeline.prepare.choices import has_choices, read_choices
from pipeline.prepare.config import Form, SourceConfig
from pipeline.prepare.conversations import read_messages, read_sharegpt
from pipeline.prepare.example import Example as Example
from pipeline.prepare.example import Turn as Turn
from pipeline.prepare.example import text_of
from pipeline.prepare.preferences import read_completions, read_prompt, read_tree
from pipeline.prepare.record import Fault
from pipeline.prepare.sandbox import compile_text, is_template


def _alpaca(row: dict[str, Any]) -> Example:
    return Example(text_of(row, "instruction"), text_of(row, "output"), input=text_of(row, "input", optional=True),
                   system=text_of(row, "system", optional=True), history=_pairs(row.get("history")))  # fmt: skip


def _pairs(history: Any) -> tuple[Turn, ...]:
    """Alpaca's earlier turns: [[question, answer], ...]."""
    if history is None:
        return ()
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise Fault("wrong type in 'history'", "not a list of [question, answer]")
    pairs = [{"question": question, "answer": answer} for question, answer in history]
    return tuple(
        turn
        for pair in pairs
        for turn in (Turn("user", text_of(pair, "question")), Turn("assistant", text_of(pair, "answer")))
    )


def _question_choices(row: dict[str, Any]) -> Example:
    question = row.get("question")
    stem = text_of(question, "stem") if isinstance(question, dict) else text_of(row, _question_column(row))
    context = text_of(row, "context", optional=True)
    steps = row.get("reasoning")
    reasoning = steps if isinstance(steps, str) else ""  # a column of that name means nothing to other templates
    if has_choices(row):
        choices, index = read_choices(row)
        return Example(stem, choices[index], context=context, choices=choices, index=index, reasoning=reasoning)
    return Example(stem, text_of(row, "answer"), input=context, reasoning=reasoning)


def _question_column(row: dict[str, Any]) -> str:
    return "goal" if "goal" in row and "question" not in row else "question"  # PIQA


def _looks_like_question(row: dict[str, Any]) -> bool:
    return bool({"question", "goal"} & row.keys()) and ("answer" in row or has_choices(row))


def _looks_like_tree(row: dict[str, Any]) -> bool:
    return isinstance(row.get("prompt"), dict) and "replies" in row["prompt"]


@dataclass(frozen=True)
class FormReader:
    """A form: how to tell it, how to read it, and the fields that `columns:` may name."""

    fits: Callable[[dict[str, Any]], bool]
    read: Callable[[dict[str, Any]], Example]
    fields: tuple[str, ...]


FORMS: dict[Form, FormReader] = {
    "alpaca": FormReader(lambda row: row.keys() >= {"instruction", "output"}, _alpaca,
                         ("instruction", "input", "output", "system", "history")),
    "prompt_completion": FormReader(lambda row: row.keys() >= {"prompt", "completion"},
                                    lambda row: read_prompt(row, "completion"),
                                    ("prompt", "completion", "system", "tools")),
    "messages": FormReader(lambda row: "messages" in row, read_messages, ("messages", "tools")),
    "sharegpt": FormReader(lambda row: "conversations" in row, read_sharegpt, ("conversations", "system", "tools")),
    "tree": FormReader(_looks_like_tree, read_tree, ("prompt",)),
    "preference": FormReader(lambda row: row.keys() >= {"chosen", "rejected"}, lambda row: read_prompt(row, "chosen"),
                             ("prompt", "chosen", "rejected", "system", "tools")),
    "completions": FormReader(lambda row: row.keys() >= {"instruction", "completions"}, read_completions,
                              ("instruction", "completions")),
    "question_choices": FormReader(_looks_like_question, _question_choices,
                                   ("question", "context", "choices", "answer", "reasoning")),
}  # fmt: skip
"""A new form is one more entry."""


def check_columns(config: SourceConfig) -> None:
    """Refuse a mapping from a field that the form doesn't have.

    Raises:
        UserError: naming the field and those allowed.
    """
    forms = list(FORMS) if config.form == "auto" else [config.form]
    allowed = sorted({field for form in forms for field in FORMS[form].fields})
    for key, fields in (("columns", config.columns), ("constants", config.constants)):
        for field in fields:
            if field not in allowed:
                raise UserError(
                    f"{config.path}: {key}.{field}: not a field of form {config.form} ({', '.join(allowed)})"
                )
    for field, origin in config.columns.items():
        if is_template(origin):
            compile_text(origin, f"{config.path}: columns.{field}")
    if config.answered_by is not None and config.form not in ("auto", "completions"):
        raise UserError(f"{config.path}: answered_by: is of form completions, not {config.form}")


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
