"""The sentence under a table: what was measured, over how many seeds, on how many documents."""

from pipeline.report.entry import Column, Row, Table
from pipeline.report.statistics import DDOF


def caption(table: Table) -> str:
    """Metric, seeds, ddof, documents, limits, and what bold and the difference mean."""
    parts = [_metric(table), _seeds(table), _documents(table), _bold(table), _difference(table), _published(table)]
    return " ".join(part for part in parts if part)


def _metric(table: Table) -> str:
    tasks = [column for column in table.columns if column.metric]
    metrics = {f"{column.metric}{' in percent' if column.percent else ''}{_direction(column)}" for column in tasks}
    if not metrics:
        return "No evaluation has finished."
    if len(metrics) == 1:
        return f"Metric: {metrics.pop()}."
    named = [f"{c.name}: {c.metric}{' in percent' if c.percent else ''}{_direction(c)}" for c in tasks]
    return f"Metrics: {', '.join(named)}."


def _direction(column: Column) -> str:
    return " (less is better)" if column.lower_is_better else ""


def _seeds(table: Table) -> str:
    counts: dict[int, list[str]] = {}
    for row in (row for row in table.rows if not row.is_published):
        counts.setdefault(_planned(row), []).append(row.name)
    spread = f"mean ± sample standard deviation over seeds (ddof = {DDOF})"
    if list(counts) == [1]:
        return "One run in each row (n = 1), so no spread is given."
    if len(counts) == 1:
        return f"{_capital(spread)}, n = {next(iter(counts))}."
    named = "; ".join(f"n = {n}: {', '.join(names)}" for n, names in counts.items())
    return f"{_capital(spread)}; {named}."


def _planned(row: Row) -> int:
    return max(entry.expected for entry in row.entries)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _documents(table: Table) -> str:
    tasks = [column for column in table.columns if column.documents]
    if not tasks:
        return ""
    same = len({column.documents for column in tasks}) == 1
    numbers = str(tasks[0].documents) if same else ", ".join(f"{column.name} {column.documents}" for column in tasks)
    return f"Documents per task: {numbers}. {_limits(tasks)}"


def _limits(tasks: list[Column]) -> str:
    limited = [column.name for column in tasks if column.limit is not None]
    if not limited:
        return "Every task was evaluated in full."
    names = "Every task" if len(limited) == len(tasks) else ", ".join(limited)
    return f"{names} was limited to its first documents: not comparable with full evaluations."


def _bold(table: Table) -> str:
    entries = [entry for row in table.rows for entry in row.entries]
    if not any(entry.best for entry in entries):
        return ""
    complete = "" if all(entry.complete or entry.published is not None for entry in entries) else " complete number"
    return f"Bold: best{complete} of its column."


def _difference(table: Table) -> str:
    entries = [entry for row in table.rows for entry in row.entries if not entry.is_average]
    parts = []
    if table.has_difference:
        parts.append(f"Δ {table.baseline}: difference of the average to {table.baseline} in percentage points.")
    if any(entry.reference is not None for entry in entries):
        parts.append(f"In brackets: difference to {table.baseline}.")
    return " ".join(parts)


def _published(table: Table) -> str:
    names = [row.name for row in table.rows if row.is_published]
    return f"Published numbers, not measured here: {'; '.join(names)}." if names else ""
