"""The table in a terminal, at whatever width it has."""

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from pipeline.report.entry import Entry, Table


def render_terminal(table: Table, console: Console) -> RenderableType:
    """The table with caption and notes. Too wide for one line a row: the spread moves below its value, and if
    that is still too wide, the columns are spread over several tables."""
    notes = [Text(f"{letter}  {text}", style="dim") for letter, text in table.notes]
    return Group(Text(table.title, style="bold"), *_grids(table, console), Text(table.caption, style="dim"), *notes)


def _grids(table: Table, console: Console) -> Sequence[Grid]:
    every = range(len(table.headings) - 1)
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
    grid.add_column(table.headings[0], overflow="fold", max_width=max(12, console.width // 3))
    for index in columns:
        grid.add_column(Text(table.headings[index + 1]), justify="right", no_wrap=True)
    for row in table.rows:
        texts = [_text(entry, stacked) for entry in row.entries]
        if table.has_difference:
            texts.append(Text(row.entries[-1].change))
        grid.add_row(Text(row.name), *(texts[index] for index in columns))
    return grid


def _text(entry: Entry, stacked: bool) -> Text:
    text = Text(entry.value, style="")
    text.stylize("bold" if entry.best else "")
    gap = "\n" if stacked else " "
    if entry.spread:
        text.append("\n±" if stacked else " ± ", style="dim").append(entry.spread, style="dim")
    if entry.change and not entry.is_average:
        text.append(f"{gap}({entry.change})", style="dim")
    if entry.mark:
        text.append(f"{gap if len(entry.mark) > 1 else ' '}{entry.mark}", style="yellow")
    return text
