"""Rows as text, with the tokens that are trained told from the others, and made safe to show."""

import unicodedata
from dataclasses import dataclass
from itertools import pairwise

from transformers import PreTrainedTokenizerFast

from pipeline.prepare import Row
from pipeline.prepare.tokens import answer_spans

BIDI = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}
"""Marks that turn the direction of the text behind them."""


@dataclass(frozen=True)
class Part:
    """A run of tokens."""

    text: str
    is_trained: bool


@dataclass(frozen=True)
class Sample:
    """A row as it is shown."""

    id: str
    tokens: int
    trained: int
    parts: list[Part]


def sample_of(row: Row, tokenizer: PreTrainedTokenizerFast) -> Sample:
    """The decoded row, special tokens included."""
    spans = answer_spans(row)
    bounds = sorted({0, len(row.input_ids), *(place for span in spans for place in span)})
    trained = {start for start, _ in spans}
    parts = [
        Part(visible(_text(row.input_ids, start, end, tokenizer)), start in trained) for start, end in pairwise(bounds)
    ]
    return Sample(visible(row.id), len(row.input_ids), sum(end - start for start, end in spans), parts)


def decode(ids: list[int], tokenizer: PreTrainedTokenizerFast) -> str:
    """Text of tokens, exactly as they say it."""
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _text(ids: list[int], start: int, end: int, tokenizer: PreTrainedTokenizerFast) -> str:
    """Decoded behind what stands before: on their own some decoders strip the leading space."""
    before, whole = decode(ids[:start], tokenizer), decode(ids[:end], tokenizer)
    return whole[len(before) :] if whole.startswith(before) else decode(ids[start:end], tokenizer)


def visible(text: str) -> str:
    """Control characters and marks of direction as signs: a row can't write to the terminal or hide words."""
    return "".join(_sign(letter) for letter in text)


def _sign(letter: str) -> str:
    code = ord(letter)
    if letter in "\n\t" or (code not in BIDI and unicodedata.category(letter) not in ("Cc", "Cs")):
        return letter
    return chr(0x2400 + code) if code < 32 else f"[U+{code:04X}]"
