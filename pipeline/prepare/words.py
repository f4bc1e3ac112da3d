"""Words, as filters compare them."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

LABELS = ("role", "asker", "tools")
"""Fields of an example that are not its own words."""
WORD = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """Words in lower case, without punctuation."""
    return WORD.findall(text.lower())


def ngrams(text: str, n: int) -> Iterator[str]:
    """Each run of `n` words."""
    words = words_of(text)
    for start in range(len(words) - n + 1):
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
    elif is_dataclass(value):
        for field in fields(value):
            if field.name not in LABELS:
                yield from texts_of(getattr(value, field.name))
