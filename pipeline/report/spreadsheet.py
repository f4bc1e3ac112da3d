"""Every number of a table as one line of CSV, unrounded, for spreadsheets and data frames."""

import csv
import io
from typing import Any

from pipeline.report.entry import Column, Entry, Row, Table
from pipeline.report.statistics import DDOF

HEADINGS = (
    "table", "model", "method", "column", "task", "metric", "value", "std", "ddof", "n", "planned", "low", "high",
    "baseline", "difference", "difference_low", "difference_high", "p", "p_holm", "p_bootstrap",
    "p_mcnemar", "p_seeds", "within_noise", "published", "documents", "limit", "seeds", "missing",
)  # fmt: skip
TEXTS = ("table", "model", "method", "column", "task", "metric", "baseline", "missing")
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def render_csv(table: Table) -> str:
    """UTF-8 text with a heading line. Fractions stay fractions, costs are in seconds, bytes and units."""
    text = io.StringIO()
    writer = csv.DictWriter(text, HEADINGS, lineterminator="\n")
    writer.writeheader()
    for row in table.rows:
        for column, entry in zip(table.columns, row.entries, strict=True):
            writer.writerow({key: _inert(key, value) for key, value in _line(table, row, column, entry).items()})
    return text.getvalue()


def _inert(key: str, value: Any) -> Any:
    """A text that a spreadsheet would compute (`=1+1`) gets an apostrophe, which makes it a text there."""
    return f"'{value}" if key in TEXTS and str(value or "").startswith(FORMULA) else value


def _line(table: Table, row: Row, column: Column, entry: Entry) -> dict[str, Any]:
    found = entry.comparison
    low, high = entry.interval or (None, None)
    least, most = (found and found.interval) or (None, None)
    return {
        "table": table.title,
        "model": row.group,
        "method": row.shown,
        "column": column.name,
        "task": column.key,
        "metric": column.metric,
        "value": entry.summary.mean if entry.summary else None,
        "std": entry.summary.std if entry.summary else None,
        "ddof": DDOF if entry.summary and entry.summary.std is not None else None,
        "n": entry.n,
        "planned": entry.expected,
        "low": low,
        "high": high,
        "baseline": table.baseline if entry.difference is not None else None,
        "difference": entry.difference,
        "difference_low": least,
        "difference_high": most,
        "p": found.p if found else None,
        "p_holm": found.adjusted if found else None,
        "p_bootstrap": found.bootstrap_p if found else None,
        "p_mcnemar": " ".join(map(str, found.mcnemar)) if found else None,
        "p_seeds": found.seeds_p if found else None,
        "within_noise": found.within_noise if found else None,
        "published": entry.published,
        "documents": column.documents,
        "limit": column.limit,
        "seeds": " ".join(dict.fromkeys(str(record.seed) for record in entry.records if record.seed is not None)),
        "missing": "; ".join(dict.fromkeys(missing.reason for missing in entry.missing)),
    }
