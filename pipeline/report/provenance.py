"""Every number of a table with its origin, as plain values for report.json."""

from typing import Any

from pipeline.report.entry import Column, Entry, Row, Table
from pipeline.report.record import Missing, Record
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
    }


def _column(column: Column) -> dict[str, Any]:
    if column.is_average:
        return {"name": column.name}
    facts = {"metric": column.metric, "documents": column.documents, "limit": column.limit}
    return {"name": column.name, **facts, "lower_is_better": column.lower_is_better}


def _row(row: Row, table: Table) -> dict[str, Any]:
    cells = [{"column": column.name, **_cell(entry)} for column, entry in zip(table.columns, row.entries, strict=True)]
    return {"name": row.name, "cells": cells}


def _cell(entry: Entry) -> dict[str, Any]:
    if entry.published is not None:
        return {"published": entry.published}
    values: dict[str, Any] = {
        "value": entry.summary.mean if entry.summary else None,
        "std": entry.summary.std if entry.summary else None,
        "n": entry.n,
        "expected": entry.expected,
        "difference": entry.difference,
        "best": entry.best,
        "note": entry.letter or None,
    }
    if not entry.is_average:
        values |= {"runs": [_run(record) for record in entry.records], "missing": [_gap(m) for m in entry.missing]}
    return values


def _run(record: Record) -> dict[str, Any]:
    found = record.evaluation
    return {
        "seed": record.seed,
        "value": found.value,
        "folder": record.folder.as_posix(),
        "file": record.file.as_posix(),
        "signature": found.signature,
        "evaluation_signature": found.evaluation_signature,
        "model_fingerprint": found.model_fingerprint,
        "prepared_key": record.prepared_key,
        "template_hash": found.template_hash,
        "task_hash": found.task_hash,
        "task_version": found.task_version,
        "versions": found.versions,
    }


def _gap(missing: Missing) -> dict[str, Any]:
    return {"seed": missing.seed, "folder": missing.folder.as_posix(), "reason": missing.reason}
