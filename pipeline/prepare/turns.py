"""Which answers of a conversation are learnt: the last, each in a row of its own, or all in one row."""

from collections.abc import Iterator
from dataclasses import replace

from pipeline.prepare.config import Turns
from pipeline.prepare.example import Example, Rendered
from pipeline.prepare.record import Fault


def learnt(example: Example, turns: Turns) -> list[Example]:
    """The examples that a conversation makes, in its order: under `each`, one for every answer that may be learnt, as
    if the conversation ended there; otherwise one.

    Raises:
        Fault: an answer that would be learnt follows no message of the user or a tool.
    """
    if turns == "last":
        return [example]
    earlier = list(_earlier(example))
    return [*earlier, example] if turns == "each" else [example]


def turns_of(text: Rendered, turns: Turns, opening: str = "") -> list[Rendered]:
    """The turns of a rendered conversation that are learnt: under `all`, every answer with the text between it and the
    answer before; otherwise the whole as one turn.

    Args:
        opening: the EOS of a chat template, which later turns then start with: so they are tokenised as behind it.

    Raises:
        Fault: the template doesn't show earlier answers as if each were the last.
    """
    if turns != "all":
        return [text]
    if text.earlier is None:
        raise Fault("the template shows earlier turns differently")
    starts = [0, *(end for _, end in text.earlier)]
    ends = [*(start for start, _ in text.earlier), len(text.prompt)]
    answers = [*(text.prompt[start:end] for start, end in text.earlier), text.answer]
    first, *later = zip(starts, ends, answers, strict=True)
    inside = tuple(place for place in text.segments if place < ends[0])
    return [Rendered(text.prompt[: first[1]], first[2], inside), *(_later(text, *turn, opening) for turn in later)]


def _later(text: Rendered, start: int, end: int, answer: str, opening: str) -> Rendered:
    """A turn behind another. Its first message begins it, so that is no further segment."""
    prompt = opening + text.prompt[start:end].removeprefix(opening)
    moved = len(prompt) - end
    _, *segments = [place + moved for place in text.segments if start <= place < end] or [0]
    return Rendered(prompt, answer, tuple(segments))


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
