"""Mapping: the fields of a form from columns, places within columns, texts with blanks, and constants."""

from collections.abc import Mapping
from typing import Any

from pipeline.prepare.config import SourceConfig
from pipeline.prepare.record import Fault
from pipeline.prepare.sandbox import fill, is_template

ABSENT = object()


def map_row(row: dict[str, Any], config: SourceConfig) -> dict[str, Any]:
    """The row with the fields of `columns` and `constants` in place of the columns that they are made from.

    Raises:
        Fault: a text can't be filled in, or no completion is by the model that is asked for.
    """
    if config.answered_by is not None:
        row = {**row, "completions": _by(row.get("completions"), config.answered_by)}
    if not config.columns and not config.constants:
        return row
    used = {
        *config.columns,
        *(origin.partition(".")[0] for origin in config.columns.values()),
        *config.columns.values(),
    }
    kept = {name: value for name, value in row.items() if name not in used}
    found = {field: _value(row, field, origin) for field, origin in config.columns.items()}
    return {**kept, **{field: value for field, value in found.items() if value is not ABSENT}, **config.constants}


def _value(row: Mapping[str, Any], field: str, origin: str) -> Any:
    return fill(origin, row, f"columns.{field}") if is_template(origin) else place(row, origin)


def place(row: Any, path: str) -> Any:
    """The value at a column's name or at a dotted path (`doc.question`, `turns.0`); ABSENT where there is none."""
    if isinstance(row, Mapping) and path in row:
        return row[path]
    first, _, rest = path.partition(".")
    if isinstance(row, Mapping) and first in row and rest:
        return place(row[first], rest)
    if isinstance(row, list) and first.isdigit() and int(first) < len(row):
        return place(row[int(first)], rest) if rest else row[int(first)]
    return ABSENT


def _by(completions: Any, model: str) -> list[Any]:
    if not isinstance(completions, list):
        raise Fault("wrong type in 'completions'", "not a list")
    found = [one for one in completions if isinstance(one, dict) and one.get("model") == model]
    if not found:
        raise Fault(f"no completion by {model!r}")
    return found


def with_origin(fault: Fault, config: SourceConfig) -> Fault:
    """The fault, with the column that a field which isn't there was to be made from."""
    for field, origin in config.columns.items():
        if fault.reason == f"missing field {field!r}":
            return Fault(f"missing field {field!r} (columns.{field} is {origin!r}, which the row has not)")
    return fault
