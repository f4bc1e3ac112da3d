"""The table: rows are methods, columns are tasks, their average and its difference to the baseline."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from pipeline.errors import UserError
from pipeline.report.caption import caption
from pipeline.report.collect import Cell, collect
from pipeline.report.entry import Column, Entry, Row, Table
from pipeline.report.notes import annotate
from pipeline.report.record import Missing, Outcome, Record, is_fraction
from pipeline.report.statistics import mean_of_all, summarise

AVERAGE = "average"


def build_table(
    cells: Sequence[Cell],
    title: str,
    baseline: str | None = None,
    task_differences: bool = False,
    reference: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> Table:
    """Collect the cells and compute every number of the table.

    Args:
        baseline: the row that others are compared with; None: no differences.
        task_differences: also give each task's difference to the baseline.
        reference: label -> column -> published number, which become the last rows.

    Raises:
        UserError: there is nothing to show, the baseline is unknown, or a row mixes more than seeds.
    """
    names = list(dict.fromkeys(cell.row for cell in cells))
    tasks = list(dict.fromkeys(task for cell in cells for task in cell.tasks))
    if not tasks:
        raise UserError("nothing to report: no run has an evaluation task (evaluation.tasks)")
    if baseline is not None and baseline not in names:
        raise UserError(f"baseline {baseline!r} is not a row of the table: use one of {', '.join(names)}")
    outcomes = collect(cells)
    columns = [_column(task, outcomes) for task in tasks]
    rows = _rows(names, columns, outcomes)
    columns = _with_average(columns)
    rows = [replace(row, entries=row.entries[: len(columns)]) for row in rows]
    rows = _with_differences(_with_best(rows, columns), columns, baseline, task_differences)
    rows, notes = annotate([*rows, *(_published(label, texts, columns) for label, texts in reference.items())])
    table = Table(title, "", baseline, tuple(columns), tuple(rows), notes)
    return replace(table, caption=caption(table))


def _column(task: str, outcomes: Sequence[Outcome]) -> Column:
    """What the column measures, from its records: `collect` made sure that they agree."""
    record = next((o for o in outcomes if isinstance(o, Record) and o.task == task), None)
    if record is None:
        return Column(task)
    found = record.evaluation
    return Column(
        task,
        metric=found.main_metric,
        percent=is_fraction(found.main_metric),
        lower_is_better=found.lower_is_better,
        documents=found.documents,
        limit=found.limit,
    )


def _rows(names: Sequence[str], columns: Sequence[Column], outcomes: Sequence[Outcome]) -> list[Row]:
    groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.row, outcome.task].append(outcome)
    tasks = [[_entry(groups[name, column.name], column) for column in columns] for name in names]
    return [Row(name, (*entries, _average(entries))) for name, entries in zip(names, tasks, strict=True)]


def _entry(outcomes: Sequence[Outcome], column: Column) -> Entry:
    records = tuple(outcome for outcome in outcomes if isinstance(outcome, Record))
    missing = tuple(outcome for outcome in outcomes if isinstance(outcome, Missing))
    return Entry(
        summarise([record.evaluation.value for record in records]),
        expected=len(outcomes),
        percent=column.percent,
        records=records,
        missing=missing,
    )


def _published(label: str, texts: Mapping[str, str], columns: Sequence[Column]) -> Row:
    return Row(label, tuple(Entry(None, 0, published=texts.get(column.name, "-")) for column in columns))


def _average(entries: Sequence[Entry]) -> Entry:
    """Over seeds, of each seed's mean over tasks. A seed without every task does not count."""
    seeds = dict.fromkeys(seed for entry in entries for seed in entry.seeds)
    values = [mean_of_all([entry.value_of(seed) for entry in entries]) for seed in seeds]
    return Entry(summarise(values), expected=len(seeds), is_average=True)


def _with_average(columns: list[Column]) -> list[Column]:
    """An average exists only of percentages for which more is better."""
    if all(column.percent and not column.lower_is_better for column in columns):
        return [*columns, Column(AVERAGE, is_average=True)]
    return columns


def _with_best(rows: list[Row], columns: Sequence[Column]) -> list[Row]:
    for index, column in enumerate(columns):
        best = _best_text([row.entries[index] for row in rows], column.lower_is_better)
        rows = [
            row.change(index, best=row.entries[index].complete and row.entries[index].value == best) for row in rows
        ]
    return rows


def _best_text(entries: Sequence[Entry], lower_is_better: bool) -> str | None:
    """How the best complete value is shown: what looks equal is a tie. None: there is nothing to compare."""
    complete = [entry for entry in entries if entry.complete]
    if len(complete) < 2:
        return None
    pick = min if lower_is_better else max
    return pick(complete, key=lambda entry: entry.summary.mean if entry.summary else 0.0).value


def _with_differences(
    rows: list[Row], columns: Sequence[Column], baseline: str | None, task_differences: bool
) -> list[Row]:
    base = next((row for row in rows if row.name == baseline), None)
    for index, column in enumerate(columns):
        if base is not None and (column.is_average or task_differences):
            reference = base.entries[index].summary
            rows = [
                row if row.name == baseline else row.change(index, reference=reference and reference.mean)
                for row in rows
            ]
    return rows
