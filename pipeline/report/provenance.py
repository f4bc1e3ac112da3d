"""Every number of a table with its origin, as plain values for report.json."""

from dataclasses import asdict
from typing import Any

from pipeline.report.entry import Column, Entry, Row, Table
from pipeline.report.record import Measurement, Missing
from pipeline.report.statistics import DDOF


def provenance(table: Table) -> dict[str, Any]:
    """Values are as measured (fractions for accuracies), unrounded."""
    return {
        "title": table.title,
        "caption": table.caption,
        "baseline": table.baseline,
        "ddof": DDOF,
        "columns": [_column(column) for column in table.columns],
        "rows": [_row(row, table) for row in table.rows],
        "notes": dict(table.notes),
        "left_out": list(table.left_out),
        "models_gone": [path.as_posix() for path in table.models_gone],
    }


def _column(column: Column) -> dict[str, Any]:
    if column.is_average:
        return {"name": column.name}
    if column.is_cost:
        return {"name": column.name, "unit": column.unit.name, "scale": column.unit.scale}
    facts = {"metric": column.metric, "documents": column.documents, "limit": column.limit}
    return {"name": column.name, "task": column.key, **facts, "lower_is_better": column.lower_is_better}


def _row(row: Row, table: Table) -> dict[str, Any]:
    cells = [{"column": column.name, **_cell(entry)} for column, entry in zip(table.columns, row.entries, strict=True)]
    return {"name": row.shown, **({"group": row.group} if row.group else {}), "cells": cells}


def _cell(entry: Entry) -> dict[str, Any]:
    if entry.published is not None:
        return {"published": entry.published}
    return {
        "value": entry.summary.mean if entry.summary else None,
        "std": entry.summary.std if entry.summary else None,
        "n": entry.n,
        "expected": entry.expected,
        "interval": entry.interval,
        "difference": entry.difference,
        "comparison": _comparison(entry),
        "best": entry.best,
        "note": entry.letter or None,
        "runs": [_run(record) for record in entry.records],
        "missing": [_gap(missing) for missing in entry.missing],
    }


def _comparison(entry: Entry) -> dict[str, Any] | None:
    found = entry.comparison
    return None if found is None else {**asdict(found), "within_noise": found.within_noise}


def _run(record: Measurement) -> dict[str, Any]:
    return {
        "task": record.task,
        "seed": record.seed,
        "value": record.value,
        "folder": record.folder.as_posix(),
        "file": record.file.as_posix(),
        **record.facts,
    }


def _gap(missing: Missing) -> dict[str, Any]:
    return {"task": missing.task, "seed": missing.seed, "folder": missing.folder.as_posix(), "reason": missing.reason}
