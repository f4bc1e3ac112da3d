"""Numbers that another source states, as rows among ours."""

from collections.abc import Mapping, Sequence

from pipeline.report.entry import Column, Entry, Row

PAPER = "(paper)"
"""Behind the label of a row with the numbers that a layout has from its paper."""

Texts = Mapping[str, str | float]
"""Heading of a column -> the number as text."""


def with_published(
    rows: Sequence[Row],
    columns: Sequence[Column],
    beside: Mapping[str, Mapping[str, Texts]],
    last: Mapping[str, Texts],
) -> list[Row]:
    """The rows with published ones among them.

    Args:
        beside: block -> row -> texts; they stand under the row they belong to, or in its place if no run was planned.
        last: label -> texts; they stand at the end.
    """
    found: list[Row] = []
    for row in rows:
        texts = beside.get(row.group, {}).get(row.name)
        if not texts or any(entry.expected for entry in row.entries):
            found.append(row)
        if texts:
            found.append(Row(row.name, _entries(texts, columns), row.group, f"{row.name} {PAPER}", row.marks))
    marks = ("",) * len(rows[0].marks) if rows else ()
    return [*found, *(Row(label, _entries(texts, columns), marks=marks) for label, texts in last.items())]


def _entries(texts: Texts, columns: Sequence[Column]) -> tuple[Entry, ...]:
    return tuple(Entry(None, 0, published=str(texts.get(column.name, "-"))) for column in columns)
