"""The table: rows are methods, columns are tasks, their average and its difference to the baseline."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pipeline.errors import UserError
from pipeline.report.arrangement import arranged
from pipeline.report.caption import caption
from pipeline.report.cell import Cell
from pipeline.report.collect import collect, models_gone, there
from pipeline.report.cost import COSTS, PREFIX
from pipeline.report.entry import Column, Entry, Row, Table
from pipeline.report.layout import PLAIN, Layout
from pipeline.report.notes import annotate
from pipeline.report.pivot import pivoted
from pipeline.report.published import with_published
from pipeline.report.record import Missing, Outcome, Record
from pipeline.report.statistics import mean_of_all, summarise
from pipeline.report.unit import BARE, PERCENT, Unit

MARK = "•"


def build_table(
    cells: Sequence[Cell],
    title: str,
    baseline: str | None = None,
    layout: Layout = PLAIN,
    reference: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    with_reference: bool = False,
) -> Table:
    """Collect the cells and compute every number of the table.

    Args:
        title: where the layout has none.
        baseline: the row that others are compared with, where the layout names none; None: no differences.
        reference: label -> column -> published number, which become the last rows.
        with_reference: show the layout's published numbers too, each under the row that it belongs to.

    Raises:
        UserError: there is nothing to show, the baseline is unknown, or a row mixes more than seeds.
    """
    placed, left_out = arranged(cells, layout)
    columns, places = _columns(placed, layout), _places(placed, layout, with_reference)
    if not columns and places:
        without = "no run has an evaluation task (evaluation.tasks)"
        raise UserError(f"nothing to report: {without if layout.columns is None else 'the layout has no columns'}")
    baseline = layout.baseline or baseline
    _check_baseline(baseline, places, layout)
    outcomes = collect(placed)
    columns = [_measured(column, outcomes, layout) for column in columns]
    rows = _rows(places, columns, outcomes, layout)
    columns, rows = _with_average(columns, rows, layout)
    rows = [row for group in _by_group(rows) for row in _ranked(group, columns, layout.highlight)]
    rows = _with_differences(rows, columns, baseline, layout)
    rows = _tested(rows, baseline, layout)
    rows = with_published(rows, columns, layout.reference if with_reference else {}, reference)
    table = Table(
        layout.title or title, "", baseline, tuple(columns), tuple(rows), (),
        group_heading=layout.block if layout.groups is not None else "",
        mark_headings=tuple(layout.marks), left_out=left_out, models_gone=tuple(models_gone(placed)),
    )  # fmt: skip
    table = pivoted(replace(table, caption=caption(table, layout)), layout)
    rows, notes = annotate(table.rows)
    return replace(table, rows=tuple(rows), notes=notes)


def cost_table(cells: Sequence[Cell], layout: Layout) -> Table | None:
    """What training took (and answering, where that was measured), by the rows of the layout; None where nothing was
    trained."""
    measured = any(there(cell.folder.inference) for cell in cells)
    costs = tuple(name for name, kind in COSTS.items() if kind.is_of_training or measured)
    changes: dict[str, Any] = {
        "title": "Cost of training", "columns": {}, "average": None, "cost": costs, "arrange": "tasks",
        "differences": "none", "highlight": 0, "spread": "std", "marks": {}, "reference": {},
        "rows": None, "groups": None if layout.groups is None else {}, "baseline": None,
    }  # fmt: skip
    placed, _ = arranged(cells, layout)
    table = build_table(_one_run_a_row(placed), "", None, layout.model_copy(update=changes))
    return table if any(entry.summary for row in table.rows for entry in row.entries) else None


def _one_run_a_row(cells: Sequence[Cell]) -> list[Cell]:
    """Where a row has a run for each task, its costs are told apart by task."""
    runs = Counter((cell.group, cell.row, cell.seed) for cell in cells)
    return [
        replace(cell, row=", ".join([cell.row, *(task for task in cell.tasks if not task.startswith(PREFIX))]))
        if runs[cell.group, cell.row, cell.seed] > 1
        else cell
        for cell in cells
    ]


def _columns(cells: Sequence[Cell], layout: Layout) -> list[Column]:
    tasks = dict.fromkeys(task for cell in cells for task in cell.tasks if not task.startswith(PREFIX))
    named = layout.columns if layout.columns is not None else {task: task for task in tasks}
    costs = [
        Column(COSTS[name].heading, f"{PREFIX}{name}", unit=COSTS[name].unit, is_cost=True,
               lower_is_better=COSTS[name].lower_is_better)
        for name in layout.cost
    ]  # fmt: skip
    return [*(Column(heading, task) for heading, task in named.items()), *costs]


Place = tuple[str, str]
"""Block and row."""


def _places(cells: Sequence[Cell], layout: Layout, with_reference: bool) -> list[Place]:
    """The rows of the table: those of the layout in every block that has a run (or a published number to show)."""
    found = dict.fromkeys((cell.group, cell.row) for cell in cells)
    published = [(group, row) for group, rows in layout.reference.items() for row in rows] if with_reference else []
    known = list((layout.groups or {}).values())
    groups = dict.fromkeys(group for group, _ in [*found, *published])
    ordered = sorted(groups, key=lambda group: known.index(group) if group in known else len(known))
    names = list(layout.rows) if layout.rows is not None else list(dict.fromkeys(row for _, row in found))
    return [(group, name) for group in ordered for name in names if layout.rows is not None or (group, name) in found]


def _check_baseline(baseline: str | None, places: Sequence[Place], layout: Layout) -> None:
    names = list(dict.fromkeys(row for _, row in places))
    if not names and layout.rows is None:
        raise UserError("nothing to report: there are no runs")
    if not names:
        rows = ", ".join(layout.rows or {})
        raise UserError(f"nothing to report: no run fits into a row of the layout (rows: {rows})")
    if baseline is not None and baseline not in names:
        raise UserError(f"baseline {baseline!r} is not a row of the table: use one of {', '.join(names)}")


def _measured(column: Column, outcomes: Sequence[Outcome], layout: Layout) -> Column:
    """What the column measures, from its records: `collect` made sure that they agree."""
    record = next((o for o in outcomes if isinstance(o, Record) and o.task == column.key), None)
    if record is None:
        return column
    found = record.evaluation
    return replace(
        column,
        metric=found.main_metric,
        unit=BARE if found.full_score is None else replace(PERCENT, decimals=layout.decimals),
        lower_is_better=found.lower_is_better,
        documents=found.documents,
        limit=found.cut,
    )


def _rows(places: Sequence[Place], columns: Sequence[Column], outcomes: Sequence[Outcome], layout: Layout) -> list[Row]:
    groups: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.group, outcome.row, outcome.task].append(outcome)
    return [
        Row(
            name,
            tuple(_entry(groups[group, name, column.key], column, layout) for column in columns),
            group=group,
            marks=tuple(MARK if name in names else "" for names in layout.marks.values()),
        )
        for group, name in places
    ]


def _entry(outcomes: Sequence[Outcome], column: Column, layout: Layout) -> Entry:
    records = tuple(outcome for outcome in outcomes if not isinstance(outcome, Missing))
    missing = tuple(outcome for outcome in outcomes if isinstance(outcome, Missing))
    return Entry(
        summarise([record.value for record in records]),
        expected=len(outcomes),
        unit=column.unit,
        records=records,
        missing=missing,
        shown_spread=layout.spread,
    )


def _with_average(columns: list[Column], rows: list[Row], layout: Layout) -> tuple[list[Column], list[Row]]:
    """An average exists only of percentages for which more is better. It stands behind the tasks."""
    tasks = [column for column in columns if not column.is_cost]
    if layout.average is None or not tasks or any(c.unit.name != PERCENT.name or c.lower_is_better for c in tasks):
        return columns, rows
    unit = replace(PERCENT, decimals=layout.decimals)
    average = Column(layout.average, is_average=True, unit=unit)
    end = len(tasks)
    rows = [
        replace(row, entries=(*row.entries[:end], _average(row.entries[:end], unit, layout), *row.entries[end:]))
        for row in rows
    ]
    return [*tasks, average, *columns[end:]], rows


def _average(entries: Sequence[Entry], unit: Unit, layout: Layout) -> Entry:
    """Over seeds, of each seed's mean over tasks. A seed without every task does not count."""
    seeds = dict.fromkeys(seed for entry in entries for seed in entry.seeds)
    values = [mean_of_all([entry.value_of(seed) for entry in entries]) for seed in seeds]
    return Entry(
        summarise(values),
        expected=len(seeds),
        unit=unit,
        is_average=True,
        records=tuple(record for entry in entries for record in entry.records),
        missing=tuple(missing for entry in entries for missing in entry.missing),
        shown_spread=layout.spread,
    )


def _tested(rows: list[Row], baseline: str | None, layout: Layout) -> list[Row]:
    """With intervals and tests, where the table shows some: reading every document takes time."""
    if (baseline is None or layout.differences == "none") and layout.spread != "interval":
        return rows
    from pipeline.report.significance import annotate as with_significance  # loads SciPy and statsmodels

    return with_significance(rows, baseline)


def _by_group(rows: Sequence[Row]) -> list[list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    return list(groups.values())


def _ranked(rows: list[Row], columns: Sequence[Column], highlight: int) -> list[Row]:
    for index, column in enumerate(columns):
        if column.is_cost:
            continue
        best = _best_texts([row.entries[index] for row in rows], column.lower_is_better)[:highlight]
        ranks = {text: rank for rank, text in enumerate(best, start=1)}
        rows = [
            row.with_entry(index, rank=ranks.get(row.entries[index].value, 0) if row.entries[index].complete else 0)
            for row in rows
        ]
    return rows


def _best_texts(entries: Sequence[Entry], lower_is_better: bool) -> list[str]:
    """How the complete values are shown, best first: what looks equal is a tie. []: there is nothing to compare."""
    complete = [(entry.summary.mean, entry.value) for entry in entries if entry.complete and entry.summary]
    if len(complete) < 2:
        return []
    return list(dict.fromkeys(text for _, text in sorted(complete, reverse=not lower_is_better)))


def _with_differences(rows: list[Row], columns: Sequence[Column], baseline: str | None, layout: Layout) -> list[Row]:
    """Set the baseline's means beside the others'. An average's difference stands in a column of its own."""
    if baseline is None or layout.differences == "none":
        return rows
    bases = {row.group: row for row in rows if row.name == baseline}
    wanted = [c.is_average or (layout.differences == "tasks" and not c.is_cost) for c in columns]
    for index in (index for index, is_wanted in enumerate(wanted) if is_wanted):
        separate = columns[index].is_average and layout.arrange == "tasks"
        for number, row in enumerate(rows):
            base = bases.get(row.group)
            summary = base.entries[index].summary if base is not None and base is not row else None
            reference = summary.mean if summary and row.name != baseline else None
            rows[number] = row.with_entry(index, reference=reference, separate=separate)
    return rows
