"""The report as one HTML page that needs no server and no network: tables, origins of numbers, figures, failures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipeline.report.cell import Cell
from pipeline.report.entry import Column, Entry, Row, Table
from pipeline.report.figures import Figures, draw
from pipeline.report.origin import Origins

WEB = Path(__file__).parent / "web"


@dataclass(frozen=True)
class ShownCell:
    """One number on the page; `sheet` is the number of its fact sheet, `order` what the column is sorted by."""

    entry: Entry
    sheet: int | None
    order: float | None


@dataclass(frozen=True)
class ShownRow:
    """One line of a table on the page; `name` is what the filter and the figures know it by."""

    row: Row
    name: str
    lead: list[str]
    cells: list[ShownCell]


@dataclass(frozen=True)
class ShownTable:
    """A table on the page."""

    table: Table
    name: str
    rows: list[ShownRow]


def render_page(table: Table, cost: Table | None, cells: Sequence[Cell]) -> str:
    """The whole page.

    Args:
        cells: the runs in the rows of the table, whose curves are drawn.
        cost: what training took, by the same rows.
    """
    origins = Origins({cell.folder.root: cell.config for cell in cells}, table.baseline)
    origins.remember_baselines(cells)
    sheets: list[dict[str, Any]] = []
    tables = [_shown(one, name, origins, sheets) for one, name in ((table, "results"), (cost, "cost")) if one]
    figures = draw(cells, table, cost)
    data = {"sheets": sheets, "runs": origins.runs, "settings": origins.settings, "ratios": figures.ratios,
            "baseline": table.baseline}  # fmt: skip
    return _template().render(table=table, tables=tables, figures=figures, failures=failures(table), data=data,
                              counts=_counts(cells, figures))  # fmt: skip


def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(WEB), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.globals["asset"] = lambda name: Markup((WEB / name).read_text(encoding="utf-8"))
    environment.filters["svg"] = Markup  # our own drawing, whose texts are escaped
    return environment.get_template("page.html.jinja")


def _shown(table: Table, name: str, origins: Origins, sheets: list[dict[str, Any]]) -> ShownTable:
    return ShownTable(table, name, [_row(table, row, origins, sheets) for row in table.rows])


def _row(table: Table, row: Row, origins: Origins, sheets: list[dict[str, Any]]) -> ShownRow:
    name = " ".join(filter(None, [row.group, row.name]))
    cells = []
    for column, entry in zip(table.columns, row.entries, strict=True):
        number = None
        if entry.published is None and (entry.records or entry.missing):
            number = len(sheets)
            sheets.append(origins.sheet(table, entry, f"{name}, {column.name}"))
        cells.append(ShownCell(entry, number, _order(entry, column)))
    return ShownRow(row, name, table.lead(row), cells)


def _order(entry: Entry, column: Column) -> float | None:
    """The number as measured; of a published text its first number, turned back into what is measured."""
    if entry.summary is not None:
        return entry.summary.mean
    try:
        return float((entry.published or "").split()[0]) / column.unit.scale
    except (IndexError, ValueError):
        return None


def failures(table: Table) -> list[dict[str, str]]:
    """What is missing and why: one line for each run and reason, with its tasks."""
    tasks: dict[tuple[str, str, str, str], dict[str, None]] = {}
    for row in table.rows:
        for entry in row.entries:
            for missing in entry.missing:
                run = " ".join(filter(None, [missing.group, missing.row]))
                seed = "" if missing.seed is None else str(missing.seed)
                key = run, seed, missing.reason, missing.folder.as_posix()
                tasks.setdefault(key, {})[missing.task] = None
    return [{"run": run, "seed": seed, "reason": reason, "folder": folder, "tasks": ", ".join(names)}
            for (run, seed, reason, folder), names in tasks.items()]  # fmt: skip


def _counts(cells: Sequence[Cell], figures: Figures) -> str:
    runs = len({cell.folder.root for cell in cells})
    rows = len({(cell.group, cell.row) for cell in cells})
    return f"{runs} run{'s' if runs != 1 else ''} in {rows} row{'s' if rows != 1 else ''}"
