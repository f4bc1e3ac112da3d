"""Which answers of a conversation are learnt: the last, or each in a row of its own."""

from collections.abc import Iterator
from dataclasses import replace

from pipeline.prepare.config import Turns
from pipeline.prepare.example import Example
from pipeline.prepare.record import Fault


def learnt(example: Example, turns: Turns) -> list[Example]:
    """The examples that a conversation makes, in its order: under `each`, one for every answer that may be learnt, as
    if the conversation ended there.

    Raises:
        Fault: an answer that would be learnt follows no message of the user or a tool.
    """
    return [example] if turns == "last" else [*_earlier(example), example]


def names_of(name: str, count: int) -> list[str]:
    """Ids of the rows that one conversation makes: NAME@1, NAME@2, ...; NAME where it makes one row."""
    return [name] if count == 1 else [f"{name}@{number}" for number in range(1, count + 1)]


def _earlier(example: Example) -> Iterator[Example]:
    for place, turn in enumerate(example.history):
        if turn.role != "assistant" or not turn.trained:
            continue
        if place == 0 or example.history[place - 1].role not in ("user", "tool"):
            raise Fault("no question: the answer follows no message of the user or a tool")
        asked = example.history[place - 1]
        alone = replace(example, input="", context="", choices=(), index=0, reasoning="")
        yield replace(
            alone, question=asked.text, answer=turn.text, history=example.history[: place - 1], asker=asked.role
        )
