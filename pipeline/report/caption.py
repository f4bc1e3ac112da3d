"""The sentence under a table: what was measured, over how many seeds, on how many documents."""

from collections import defaultdict

from pipeline.report.comparison import CONFIDENCE, SIGNIFICANCE, Comparison
from pipeline.report.cost import COSTS, PREFIX
from pipeline.report.entry import NOISE, UNTESTED, Column, Entry, Row, Table
from pipeline.report.layout import Layout
from pipeline.report.published import PAPER
from pipeline.report.record import Cost
from pipeline.report.statistics import DDOF

NAMED = 12
"""Rows that are named for their number of runs, at most; more of one number are "all others"."""


def caption(table: Table, layout: Layout) -> str:
    """Metric, seeds, ddof, documents, limits, and what bold and the difference mean."""
    parts = [
        _metric(table), _cost(table), _seeds(table, layout), _documents(table), _best(table), _difference(table),
        _noise(table), _gone(table), _published(table),
    ]  # fmt: skip
    return " ".join(part for part in parts if part)


def _metric(table: Table) -> str:
    tasks = [column for column in table.columns if column.metric]
    metrics = {f"{column.metric}{' in percent' if column.percent else ''}{_direction(column)}" for column in tasks}
    if not metrics:
        return "" if any(column.is_cost for column in table.columns) else "No evaluation has finished."
    if len(metrics) == 1:
        return f"Metric: {metrics.pop()}."
    named = [f"{c.name}: {c.metric}{' in percent' if c.percent else ''}{_direction(c)}" for c in tasks]
    return f"Metrics: {', '.join(named)}."


def _direction(column: Column) -> str:
    return " (less is better)" if column.lower_is_better else ""


def _cost(table: Table) -> str:
    columns = [column for column in table.columns if column.is_cost]
    if not columns:
        return ""
    words = "; ".join(f"{column.name}: {COSTS[column.key.removeprefix(PREFIX)].words}" for column in columns)
    records = [record for entry in _entries(table) for record in entry.records if isinstance(record, Cost)]
    devices = sorted({str(record.facts["device"]) for record in records})
    where = f" on {', '.join(devices)}" if devices else ""
    lengths = dict.fromkeys((record.conditions["prompt tokens"], record.conditions["new tokens"])
                            for record in records if record.conditions)  # fmt: skip
    tokens = "".join(f" One prompt has {prompt} tokens, its answer {new}." for prompt, new in lengths)
    return f"Cost, measured here{where}: {words}.{tokens}"


def _seeds(table: Table, layout: Layout) -> str:
    counts = _counts([row for row in table.rows if not row.is_published and _planned(row)])
    if list(counts) == [1]:
        return f"One run in each row (n = 1), so no spread {'over seeds ' if _has_intervals(layout) else ''}is given."
    means = {
        "std": f"Mean ± sample standard deviation over seeds (ddof = {DDOF})",
        "none": "Mean over seeds",
        "interval": f"Mean over seeds and its {CONFIDENCE:.0%} interval in square brackets (of documents and seeds; "
        f"variances with ddof = {DDOF})",
    }
    spread = means[layout.spread]
    if len(counts) == 1:
        return f"{spread}, n = {next(iter(counts))}."
    most = max(counts, key=lambda n: len(counts[n]), default=0)
    rest = most if len(counts.get(most, ())) > NAMED else None
    named = [f"n = {n}: {', '.join(names)}" for n, names in counts.items() if n != rest]
    named += [] if rest is None else [f"n = {rest}: all others"]
    return f"{spread}; {'; '.join(named)}." if named else ""


def _counts(rows: list[Row]) -> dict[int, list[str]]:
    """n -> names: a row's where it has one n in all blocks, else a block's, else both."""
    by_name: dict[str, set[int]] = defaultdict(set)
    by_group: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        by_name[row.name].add(_planned(row))
    uniform = {name for name, found in by_name.items() if len(found) == 1}
    for row in rows:
        if row.name not in uniform:
            by_group[row.group].add(_planned(row))
    counts: dict[int, dict[str, None]] = defaultdict(dict)
    for row in rows:
        block = by_group[row.group]
        name = row.name if row.name in uniform else row.group if len(block) == 1 else f"{row.group} {row.name}"
        counts[_planned(row)][name] = None
    return {count: list(names) for count, names in counts.items()}


def _has_intervals(layout: Layout) -> bool:
    return layout.spread == "interval"


def _planned(row: Row) -> int:
    return max(entry.expected for entry in row.entries)


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


def _best(table: Table) -> str:
    ranks = {entry.rank for entry in _entries(table)}
    if 1 not in ranks:
        return ""
    complete = "" if all(entry.complete or entry.published is not None for entry in _entries(table)) else (
        " complete number"
    )  # fmt: skip
    second = " Underlined: second best." if 2 in ranks else ""
    block = f" of its {table.group_heading}" if len(table.blocks) > 1 and table.group_heading else " of its column"
    return f"Bold: best{complete}{block}.{second}"


def _difference(table: Table) -> str:
    parts = []
    if table.has_difference:
        parts.append(f"Δ {table.baseline}: difference of the average to {table.baseline} in percentage points.")
    if any(entry.bracketed for entry in _entries(table)):
        parts.append(f"In brackets: difference to {table.baseline}.")
    return " ".join(parts)


def _noise(table: Table) -> str:
    shown = [entry for entry in _entries(table) if entry.change]
    tested = [entry.comparison for entry in shown if entry.comparison is not None]
    parts = [f"{NOISE}: within noise ({_test(tested)})."] if tested else []
    if len(tested) < len(shown):
        parts.append(f"{UNTESTED}: not tested (that needs complete numbers and the records of their documents).")
    return " ".join(parts)


def _test(tested: list[Comparison]) -> str:
    single = min(comparison.pairs for comparison in tested) == 1
    seeds = "; a single run says nothing about other seeds" if single else ""
    return (
        f"p ≥ {SIGNIFICANCE} in a paired t test with the variance of documents and of seeds, corrected for "
        f"{len(tested)} comparison{'s' if len(tested) > 1 else ''} after Holm{seeds}"
    )


def _gone(table: Table) -> str:
    count = len(table.models_gone)
    if not count:
        return ""
    return f"The trained model of {count} run{'s' if count > 1 else ''} is gone: its numbers can't be measured again."


def _published(table: Table) -> str:
    labels = [row.shown for row in table.rows if row.is_published]
    names = dict.fromkeys(f"rows with {PAPER}" if label.endswith(PAPER) else label for label in labels)
    return f"Published numbers, not measured here: {'; '.join(names)}." if names else ""


def _entries(table: Table) -> list[Entry]:
    return [entry for row in table.rows for entry in row.entries]
