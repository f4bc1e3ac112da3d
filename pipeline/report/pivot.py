"""Tables whose columns are models or methods: their numbers are the averages of a table by tasks."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from pipeline.report.entry import Column, Entry, Row, Table
from pipeline.report.layout import Layout
from pipeline.report.published import PAPER

NOTHING = Entry(None, 0, published="-")


def pivoted(table: Table, layout: Layout) -> Table:
    """The table as the layout arranges it. Best numbers stay those of their model."""
    if layout.arrange == "tasks":
        return table
    if not any(column.is_average for column in table.columns):
        return table
    return _by_models(table) if layout.arrange == "models" else _by_methods(table)


def _by_models(table: Table) -> Table:
    numbers = _averages(table)
    groups = dict.fromkeys(row.group for row in table.rows if row.group)
    rows = [
        Row(
            row.name,
            tuple(numbers.get((group, row.name, row.is_published), NOTHING) for group in groups),
            label=row.label,
            marks=row.marks,
        )
        for row in _distinct(table.rows, lambda row: row.name)
    ]
    return replace(table, columns=_columns(table, groups), rows=tuple(rows), group_heading="")


def _by_methods(table: Table) -> Table:
    numbers = _averages(table)
    names = dict.fromkeys(row.name for row in table.rows if row.group)
    rows = [
        Row(
            row.group,
            tuple(numbers.get((row.group, name, row.is_published), NOTHING) for name in names),
            label=f"{row.group} {PAPER}" if row.is_published else "",
        )
        for row in _distinct(table.rows, lambda row: row.group)
    ]
    return replace(
        table,
        columns=_columns(table, names),
        rows=tuple(rows),
        group_heading="",
        row_heading="model",
        mark_headings=(),
    )


def _averages(table: Table) -> dict[tuple[str, str, bool], Entry]:
    """Block, row and whether it is published -> the average, which is a number like any other from now on."""
    index = next(number for number, column in enumerate(table.columns) if column.is_average)
    return {
        (row.group, row.name, row.is_published): replace(row.entries[index], is_average=False) for row in table.rows
    }


def _columns(table: Table, names: Iterable[str]) -> tuple[Column, ...]:
    average = next(column for column in table.columns if column.is_average)
    return tuple(replace(average, name=name) for name in names)


def _distinct(rows: Sequence[Row], key: Callable[[Row], str]) -> list[Row]:
    """One row for each key, and one for the published numbers that belong to it, in the order of the keys."""
    keys = dict.fromkeys(map(key, rows))
    seen: dict[tuple[str, bool], Row] = {}
    for row in rows:
        seen.setdefault((key(row), row.is_published), row)
    return [seen[name, published] for name in keys for published in (False, True) if (name, published) in seen]
