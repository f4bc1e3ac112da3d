"""Extraction: the answer that a generated text states, as a number or as one of the choices."""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from pipeline.prepare.paper import SOLUTION_MARK

Responses = Iterable[Sequence[str]]
"""Of each document its generated texts; the first one counts."""
Documents = Iterable[Mapping[str, Any]]

DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
NUMBER = rf"(?:(?<![\w).])[-\u2212]\$?|\$[-\u2212]?)?(?:{DIGITS})"
"""A minus behind a digit, a letter or a bracket subtracts; elsewhere it is a sign."""
STATEMENT = re.compile(
    r"\b(?:answer|(?:best|correct|right)\s+(?:choice|option))(?:\s+(?:to|for|of|here)\b[^.:\n]{0,80}?)?"
    rf"(?:\s+(?:is|would\s+be|should\s+be)\b|[*_]*\s*:)|{SOLUTION_MARK}",
    re.IGNORECASE,
)
"""What announces an answer."""
LABEL = re.compile(
    r"(?:(?:option|choice|answer|number)\s+)?"
    r"(?:\(([a-z]|\d{1,2})\)|([a-z]|\d{1,2})(?=\s*$|\s*[).:,;/&](?!\d)|\s+(?:because|since|as|or|and)\b))[).:;]*\s*",
    re.IGNORECASE,
)
"""A choice named by letter or number at the start of a statement."""
BETWEEN = re.compile(r"\s*(?:,|/|&|or\b|and\b)\s*", re.IGNORECASE)
"""What stands between two labels of a list."""
EDGES = " \t\r\n\"'`*_.,;:!\u201c\u201d\u2018\u2019"


def number(text: str) -> str:
    """A number in one way of writing: `$1,000.50` -> `1000.5`, `-0` -> `0`."""
    value = Decimal(re.sub(r"[^\d.-]", "", text.replace("\u2212", "-"))).normalize()
    return format(value if value else Decimal(0), "f")


def solution_number(text: str) -> str | None:
    """The number behind the first `####`, as GSM8K's solutions end."""
    found = re.search(rf"{SOLUTION_MARK}\s*({NUMBER})", text)
    return number(found[1]) if found else None


def last_number(text: str) -> str | None:
    """The last number of a text."""
    found = re.findall(NUMBER, text)
    return number(found[-1]) if found else None


def stated_number(text: str) -> str | None:
    """The first number of the last statement (`The answer is ...`, `Answer: ...`, `#### ...`) that has one."""
    for statement in reversed(_statements(text)):
        found = re.search(NUMBER, statement)
        if found:
            return number(found[0])
    return None


def stated_choice(text: str, choices: Sequence[str]) -> int | None:
    """Index of the choice that a text decides for; None where it names none, or more than one (equal texts are one).

    The last statement that names a choice counts: by its text, by its letter, or by its number, counted from 1;
    a choice whose own text is that letter or number goes first. A text without any statement must end with a line
    that is nothing but a choice.
    """
    for statement in reversed(_statements(text)):
        named = _named(statement, choices)
        if named:
            return _single(named, choices)
    lines = [line for line in text.splitlines() if line.strip()]
    return _single(_whole(lines[-1], choices), choices) if lines and not _statements(text) else None


def _single(named: set[int], choices: Sequence[str]) -> int | None:
    """The one choice that is named, the first of those with its text."""
    return min(named) if len({same_choice(choices[index]) for index in named}) == 1 else None


def same_choice(text: str) -> str:
    """What two choices share that say the same."""
    return " ".join(text.split()).strip(EDGES)


def _statements(text: str) -> list[str]:
    """What follows each announcement of an answer: up to the end of the first line that says something."""
    starts = list(STATEMENT.finditer(text))
    ends = [*(match.start() for match in starts[1:]), len(text)]
    parts = [text[match.end() : end].lstrip(EDGES) for match, end in zip(starts, ends, strict=False)]
    return [part.partition("\n")[0] for part in parts]


def _named(statement: str, choices: Sequence[str]) -> set[int]:
    """Indices of the choices that a statement names; a label and the text behind it both count."""
    whole = _whole(statement, choices)
    if whole or re.match(r"not\b", statement, re.IGNORECASE):
        return whole
    return _leading(statement, choices) or _labelled(statement, choices) or _within(statement, choices)


def _whole(text: str, choices: Sequence[str]) -> set[int]:
    """The text is a choice and nothing else. Case matters only between choices that differ in nothing else."""
    found = {index for index, choice in enumerate(choices) if _plain(choice) == _plain(text)}
    return {index for index in found if same_choice(choices[index]) == same_choice(text)} or found


def _leading(text: str, choices: Sequence[str]) -> set[int]:
    """The text begins with a choice, and its sentence or thought ends there; of several the longest."""
    plain = _plain(text)
    ends = r"(?:[.;!?](?:\s|$)|\s*\(|,?\s+(?:because|since|as)\b)"
    found = [i for i, choice in enumerate(choices) if re.match(re.escape(_plain(choice)) + ends, plain)]
    longest = max((len(_plain(choices[index])) for index in found), default=0)
    return {index for index in found if len(_plain(choices[index])) == longest}


def _labelled(text: str, choices: Sequence[str]) -> set[int]:
    match = LABEL.match(text)
    if not match:
        return set()
    key = (match[1] or match[2]).upper()
    index = int(key) - 1 if key.isdigit() else ord(key) - ord("A")
    behind, more = text[match.end() :], BETWEEN.match(text, match.end())
    listed = _labelled(text[more.end() :], choices) if more else set()
    return ({index} if 0 <= index < len(choices) else set()) | _whole(behind, choices) | listed


def _within(text: str, choices: Sequence[str]) -> set[int]:
    """Choices that occur as whole words, but not only as a part of a longer choice that occurs too."""
    plain, found = _plain(text), set()
    for choice in sorted({_plain(choice) for choice in choices}, key=len, reverse=True):
        pattern = rf"(?<![\w-])(?<!\d\.){re.escape(choice)}(?![\w-]|\.\d)"
        if re.search(pattern, plain):
            found |= {index for index, text in enumerate(choices) if _plain(text) == choice}
            plain = re.sub(pattern, "\0", plain)
    return found


def _plain(text: str) -> str:
    return same_choice(text).casefold()


def solution_numbers(responses: Responses, documents: Documents) -> list[str | None]:
    """`solution_number` of each document, as a filter of lm-eval."""
    return [solution_number(texts[0]) for texts in responses]


def last_numbers(responses: Responses, documents: Documents) -> list[str | None]:
    """`last_number` of each document, as a filter of lm-eval."""
    return [last_number(texts[0]) for texts in responses]


def stated_numbers(responses: Responses, documents: Documents) -> list[str | None]:
    """`stated_number` of each document, as a filter of lm-eval."""
    return [stated_number(texts[0]) for texts in responses]


def stated_choices(responses: Responses, documents: Documents) -> list[int | None]:
    """`stated_choice` of each document, as a filter of lm-eval."""
    return [stated_choice(texts[0], doc["choices"]) for texts, doc in zip(responses, documents, strict=True)]


def matched(document: Mapping[str, Any], results: Sequence[Any]) -> dict[str, float]:
    """Whether what was extracted is the answer. Nothing extracted is wrong, and counted as `unparsed`."""
    (extracted,) = results
    return {"exact_match": float(extracted == document["answer"]), "unparsed": float(extracted is None)}


def chosen(document: Mapping[str, Any], results: Sequence[Any]) -> dict[str, float]:
    """The same for the index of a choice, as accuracy. Of choices with equal texts each is right where one is."""
    (extracted,), texts = results, [same_choice(choice) for choice in document["choices"]]
    right = extracted is not None and texts[extracted] == texts[document["answer"]]
    return {"acc": float(right), "unparsed": float(extracted is None)}
