"""The figures of a page: what runs logged while they trained, mixing ratios, accuracy against cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.report.cell import Cell
from pipeline.report.chart import Point, Series, line_chart, scatter
from pipeline.report.collect import there
from pipeline.report.cost import COSTS
from pipeline.report.curves import QUANTITIES, Curves, read_curves
from pipeline.report.entry import Entry, Table

MOST_RUNS = 500
"""Runs whose curves are drawn."""


@dataclass(frozen=True)
class Figure:
    """A diagram (SVG) with its title and what there is to know about it."""

    title: str
    svg: str
    note: str = ""


@dataclass(frozen=True)
class Figures:
    """All figures; `legend` gives every row its colour, `ratios` are the data of the heat maps."""

    legend: list[Series] = field(default_factory=list)
    curves: list[Figure] = field(default_factory=list)
    final_ratios: Figure | None = None
    ratios: list[dict[str, Any]] = field(default_factory=list)
    cost: Figure | None = None
    left_out: int = 0


def draw(cells: Sequence[Cell], table: Table, cost: Table | None) -> Figures:
    """Every figure for which there are numbers."""
    rows = list(dict.fromkeys(map(_name, cells)))
    legend = [Series(row, row, (), place) for place, row in enumerate(rows)]
    runs = list({cell.folder.root: cell for cell in cells if there(cell.folder.metrics)}.values())
    logged = [(cell, read_curves(cell.folder.metrics)) for cell in runs[:MOST_RUNS]]
    places = {row: place for place, row in enumerate(rows)}
    return Figures(
        legend=legend,
        curves=[figure for name in QUANTITIES if (figure := _curve(name, logged, places)).svg],
        final_ratios=_final_ratios(logged, places),
        ratios=[_ratios(cell, curves) for cell, curves in logged if curves.ratio_steps],
        cost=_cost(table, cost, places) if cost else None,
        left_out=max(0, len(runs) - MOST_RUNS),
    )


def _name(cell: Cell) -> str:
    return " ".join(filter(None, [cell.group, cell.row]))


def _label(cell: Cell) -> str:
    return _name(cell) if cell.seed is None else f"{_name(cell)}, seed {cell.seed}"


def _curve(name: str, logged: Sequence[tuple[Cell, Curves]], places: dict[str, int]) -> Figure:
    series = [Series(_label(cell), _name(cell), curves.lines[name], places[_name(cell)]) for cell, curves in logged]
    words = QUANTITIES[name]
    title = words[:1].upper() + words[1:]
    return Figure(title, line_chart(series, f"{title} by update, one line a run", "update", words))


def _final_ratios(logged: Sequence[tuple[Cell, Curves]], places: dict[str, int]) -> Figure | None:
    series = [
        Series(f"{_label(cell)}, {part}s", _name(cell), list(enumerate(curves.ratios[part][-1])), places[_name(cell)],
               dashed=part == "value")
        for cell, curves in logged if curves.ratio_steps
        for part in ("key", "value")
    ]  # fmt: skip
    svg = line_chart(series, "Mixing ratio by layer at the end of training", "layer", "alpha")
    return Figure("At the end of training", svg, "Solid: keys. Dashed: values.") if svg else None


def _ratios(cell: Cell, curves: Curves) -> dict[str, Any]:
    """In hundredths, to keep the page small."""
    hundredths = {part: [[round(100 * a) for a in report] for report in curves.ratios[part]] for part in curves.ratios}
    return {"label": _label(cell), "row": _name(cell), "steps": curves.ratio_steps, **hundredths}


def _cost(table: Table, cost: Table, places: dict[str, int]) -> Figure | None:
    """The averages, or the first task's numbers where there are none, against the hours of training."""
    what, numbers = _numbers(table)
    hours = {(row.group, row.name): _hours(row.entries[0]) for row in cost.rows}
    drawn = [(entry, mean, spent) for entry, mean in numbers if (spent := hours.get(_place(entry))) is not None]
    series = [_point(entry, (spent, mean), places) for entry, mean, spent in drawn]
    errors = [entry.unit.scale * ((entry.summary and entry.summary.std) or 0.0) for entry, _, _ in drawn]
    unit = next((entry.unit.name for entry, _, _ in drawn if entry.unit.name), "as measured")
    svg = scatter(series, f"{what} against cost", "training, hours x devices", f"{what} ({unit})", errors)
    note = "Bars: standard deviation over seeds." if any(errors) else ""
    return Figure(f"{what[:1].upper()}{what[1:]} against cost", svg, note) if svg else None


def _numbers(table: Table) -> tuple[str, list[tuple[Entry, float]]]:
    """What is drawn, and all that there are of it: of one column, or of every one where all are averages."""
    tasks = [index for index, column in enumerate(table.columns) if not column.is_cost]
    averages = [index for index in tasks if table.columns[index].is_average]
    what = "average" if averages else table.columns[tasks[0]].name if tasks else ""
    entries = [row.entries[index] for row in table.rows for index in averages or tasks[:1]]
    return what, [(entry, entry.unit.scale * entry.summary.mean) for entry in entries if entry.summary]


def _place(entry: Entry) -> tuple[str, str]:
    """Block and row of its runs, wherever the table shows it."""
    return entry.records[0].group, entry.records[0].row


def _point(entry: Entry, point: Point, places: dict[str, int]) -> Series:
    name = " ".join(filter(None, _place(entry)))
    label = f"{name}: {' '.join(filter(None, [entry.value, entry.spread]))}, {point[0]:.3g} h"
    return Series(label, name, [point], places.get(name, 0))


def _hours(entry: Entry) -> float | None:
    """None where it is not known; a model that is not trained costs nothing."""
    if entry.summary is not None:
        return COSTS["hours"].unit.scale * entry.summary.mean
    return 0.0 if any(missing.reason == "nothing is trained" for missing in entry.missing) else None
