"""Words, as filters compare them."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

LABELS = ("role", "asker", "tools")
"""Fields of an example that are not its own words."""
WORD = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """Words in lower case, without punctuation."""
    return WORD.findall(text.lower())


def ngrams(text: str, n: int) -> Iterator[str]:
    """Each run of `n` words."""
    yield from runs(words_of(text), n)


def runs(words: list[str], n: int, step: int = 1) -> Iterator[str]:
    """Runs of `n` words, one from every `step`-th word on."""
    for start in range(0, len(words) - n + 1, step):
        yield " ".join(words[start : start + n])


def texts_of(value: Any) -> Iterator[str]:
    """All texts of an example or of a row's values, however deep, without the template's words."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from texts_of(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from texts_of(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for name in _spoken(type(value)):
            yield from texts_of(getattr(value, name))


@cache
def _spoken(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind) if field.name not in LABELS]
