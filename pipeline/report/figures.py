"""The figures of a page: what runs logged while they trained, mixing ratios, accuracy against cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.report.cell import Cell
from pipeline.report.chart import Series, line_chart, scatter
from pipeline.report.collect import there
from pipeline.report.cost import COSTS
from pipeline.report.curves import QUANTITIES, Curves, read_curves
from pipeline.report.entry import Entry, Row, Table

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
    """The average, or the first task where there is none, against the hours of training."""
    index = next((number for number, column in enumerate(table.columns) if column.is_average), 0)
    column, hours = table.columns[index], {(row.group, row.name): row.entries[0] for row in cost.rows}
    drawn = [(row, row.entries[index], hours.get((row.group, row.name))) for row in table.rows if not row.is_published]
    series, errors = [], []
    for row, entry, time in drawn:
        spent = _hours(time)
        if entry.summary is None or spent is None:
            continue
        name, mean = " ".join(filter(None, [row.group, row.name])), entry.unit.scale * entry.summary.mean
        label = f"{name}: {' '.join(filter(None, [entry.value, entry.spread]))}, {spent:.3g} h"
        series.append(Series(label, name, [(spent, mean)], places.get(name, 0)))
        errors.append(entry.unit.scale * (entry.summary.std or 0.0))
    title = f"{column.name} against cost"
    svg = scatter(series, title, "training, hours x devices", f"{column.name} ({_unit(drawn)})", errors)
    note = "Bars: standard deviation over seeds." if any(errors) else ""
    return Figure(title[:1].upper() + title[1:], svg, note) if svg else None


def _unit(drawn: Sequence[tuple[Row, Entry, Entry | None]]) -> str:
    """Unit of the numbers, in words."""
    return next((entry.unit.name for _, entry, _ in drawn if entry.unit.name), "as measured")


def _hours(entry: Entry | None) -> float | None:
    """None where it is not known; a model that is not trained costs nothing."""
    if entry is None:
        return None
    if entry.summary is not None:
        return COSTS["hours"].unit.scale * entry.summary.mean
    return 0.0 if any(missing.reason == "nothing is trained" for missing in entry.missing) else None
