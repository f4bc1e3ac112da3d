"""The table in a terminal, at whatever width it has."""

import math
from collections.abc import Sequence
from dataclasses import replace

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from pipeline.report.entry import Entry, Row, Table
from pipeline.report.text import printable

MOST_ROWS = 300
"""More are not for reading in a terminal, and take it a long time."""


def render_terminal(table: Table, console: Console) -> RenderableType:
    """The table with caption and notes. Too wide for one line a row: the spread moves below its value, and if
    that is still too wide, the columns are spread over several tables."""
    notes = [Text(f"{letter}  {text}", style="dim") for letter, text in table.notes]
    if len(table.rows) > MOST_ROWS:
        notes.append(Text(f"the first {MOST_ROWS} of {len(table.rows)} rows: the files have all", style="yellow"))
        table = replace(table, rows=table.rows[:MOST_ROWS])
    title, caption = Text(printable(table.title), style="bold"), Text(printable(table.caption), style="dim")
    return Group(title, *_grids(table, console), caption, *notes)


def _grids(table: Table, console: Console) -> Sequence[Grid]:
    every = range(len(table.headings) - len(table.lead_headings))
    for stacked in (False, True):
        if _fits(_grid(table, every, stacked, console), console):
            return [_grid(table, every, stacked, console)]
    part = next((n for n in range(len(every), 1, -1) if _fits(_grid(table, every[:n], True, console), console)), 1)
    part = math.ceil(len(every) / math.ceil(len(every) / part))  # tables of about equal width
    return [_grid(table, every[start : start + part], True, console) for start in range(0, len(every), part)]


def _fits(grid: Grid, console: Console) -> bool:
    return Measurement.get(console, console.options.update(max_width=10_000), grid).maximum <= console.width


def _grid(table: Table, columns: Sequence[int], stacked: bool, console: Console) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=stacked)
    for heading in table.lead_headings:
        grid.add_column(Text(printable(heading)), overflow="fold", max_width=max(12, console.width // 3))
    for index in columns:
        heading = table.headings[len(table.lead_headings) + index]
        grid.add_column(Text(printable(heading)), justify="right", no_wrap=True)
    for block in table.blocks:
        for number, row in enumerate(block):
            texts = [_text(entry, stacked) for entry in row.entries]
            texts += [Text(row.change)] if table.has_difference else []
            grid.add_row(*_lead(table, row, number), *(texts[index] for index in columns))
        grid.add_section()
    return grid


def _lead(table: Table, row: Row, number: int) -> list[Text]:
    """Texts in front of the numbers; a group is named in its first row only."""
    texts = table.lead(row)
    return [
        Text("" if number and table.group_heading and not place else printable(text))
        for place, text in enumerate(texts)
    ]


def _text(entry: Entry, stacked: bool) -> Text:
    text = Text(entry.value, style="")
    text.stylize({1: "bold", 2: "underline"}.get(entry.rank, ""))
    gap = "\n" if stacked else " "
    if entry.spread:
        text.append(f"{gap}{entry.spread.replace('± ', '±') if stacked else entry.spread}", style="dim")
    if entry.bracketed:
        text.append(f"{gap}({f'{entry.bracketed} {entry.noise}'.strip()})", style="dim")
    if entry.mark:
        text.append(f"{gap if len(entry.mark) > 1 else ' '}{entry.mark}", style="yellow")
    return text
