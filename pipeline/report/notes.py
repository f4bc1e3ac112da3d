"""Footnotes: why a number is incomplete or not there."""

from collections.abc import Sequence
from string import ascii_lowercase

from pipeline.report.entry import Entry, Row
from pipeline.report.text import shortened

LONGEST = 200
"""Characters of one reason; a longer failure message is cut."""


def annotate(rows: Sequence[Row]) -> tuple[list[Row], tuple[tuple[str, str], ...]]:
    """Give each incomplete entry the letter of its footnote; equal texts share one."""
    letters: dict[str, str] = {}
    for row in rows:
        for text in map(_note, row.entries):
            if text:
                letters.setdefault(text, _letter(len(letters)))
    return [_marked(row, letters) for row in rows], tuple((letter, text) for text, letter in letters.items())


def _marked(row: Row, letters: dict[str, str]) -> Row:
    for index, entry in enumerate(row.entries):
        row = row.with_entry(index, letter=letters.get(_note(entry), ""))
    return row


def _note(entry: Entry) -> str:
    if entry.complete or entry.published is not None:
        return ""
    if entry.is_average:
        return "only seeds with every task" if entry.n else "no seed has every task"
    return _reasons(entry) or "not planned"


def _reasons(entry: Entry) -> str:
    seeds: dict[str, list[str]] = {}
    for missing in entry.missing:
        named = [] if missing.seed is None else [str(missing.seed)]
        seeds.setdefault(shortened(missing.reason, LONGEST), []).extend(named)
    return "; ".join(f"{_named(names)}{reason}" for reason, names in seeds.items())


def _named(seeds: list[str]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}: " if seeds else ""


def _letter(index: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    prefix = _letter(index // 26 - 1) if index >= 26 else ""
    return prefix + ascii_lowercase[index % 26]
