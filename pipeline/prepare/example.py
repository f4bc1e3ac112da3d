"""An example: one question with its answer, as every form is read into it and every template writes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.prepare.record import Fault


@dataclass(frozen=True)
class Turn:
    """An earlier turn of a conversation."""

    role: str
    """`user`, `assistant`, `tool` or `system`."""
    text: str
    trained: bool = True
    """False for an answer that must not be learnt (`weight: 0`)."""


@dataclass(frozen=True)
class Example:
    """One question and its answer, and the conversation before them."""

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
    history: tuple[Turn, ...] = ()
    """Turns between the system message and the question, oldest first."""
    asker: str = "user"
    """Role of the turn that `question` is: `user`, or `tool` where the answer follows a tool's result."""
    tools: str = ""
    """Definitions of the tools that the conversation may call, as a JSON list."""


@dataclass(frozen=True)
class Rendered:
    """The text of one row: what the prompt says and what the answer says, special tokens of the template included."""

    prompt: str
    answer: str
    segments: tuple[int, ...] = ()
    """Characters of the prompt where a further segment starts: a further message of a conversation, or an
    instruction's input."""
    earlier: tuple[tuple[int, int], ...] | None = ()
    """Spans (first character, end) in the prompt of earlier answers that may be trained on, each with what closes it,
    as `answer` would be if it were the last. None where they can't be located: the template shows an earlier answer
    differently from a last one."""


def text_of(row: Mapping[str, Any], field: str, optional: bool = False) -> str:
    """The text of a field; an optional one that is blank counts as absent.

    Raises:
        Fault: it is missing, null, not text, or (unless optional) blank.
    """
    value = row.get(field)
    if optional and (value is None or (isinstance(value, str) and not value.strip())):
        return ""
    if value is None:
        raise Fault(f"{'null' if field in row else 'missing'} field {field!r}")
    if not isinstance(value, str):
        raise Fault(f"wrong type in {field!r}", f"{type(value).__name__}, not text")
    if not value.strip():
        raise Fault(f"empty field {field!r}")
    return value
