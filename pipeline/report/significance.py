"""Adding to every number of a table its interval, and to every difference whether it is more than noise."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipeline.report.comparison import Comparison, Interval
from pipeline.report.documents import Values, document_values
from pipeline.report.entry import Entry, Row
from pipeline.report.paired import Moments, compare, holm, interval_of, interval_of_all_or_none, moments
from pipeline.report.record import Record
from pipeline.report.unit import PERCENT, Unit

Place = tuple[int, int]
"""Row and column of a number."""


def annotate(rows: Sequence[Row], baseline: str | None) -> list[Row]:
    """The rows with intervals and comparisons, corrected for the number of tasks' and of averages' comparisons.

    Reads the per-document records of every run in the table once. Numbers that are incomplete, or whose documents are
    not there, get none.
    """
    scored = [_Scored(row) for row in rows]
    bases = {one.row.group: one for one in reversed(scored) if one.row.name == baseline}
    found: dict[bool, dict[Place, Comparison]] = {True: {}, False: {}}
    for index, one in enumerate(scored):
        base = bases.get(one.row.group)
        for column, entry in enumerate(one.row.entries if base not in (None, one) else ()):
            comparison = one.compared(base, column) if base and entry.reference is not None else None
            if comparison:
                found[entry.is_average][index, column] = comparison
    annotated = [one.with_intervals() for one in scored]
    for places in found.values():
        for (index, column), comparison in holm(places).items():
            annotated[index] = annotated[index].with_entry(column, comparison=comparison)
    return annotated


class _Scored:
    """A row with what its runs got right, document by document."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.values = [_values(entry) for entry in row.entries]

    def with_intervals(self) -> Row:
        spreads = [None if one is None or one.shape[1] < 2 else moments(one) for one in self.values]
        entries = []
        for column, entry in enumerate(self.row.entries):
            parts = [spreads[part] for part in _parts(self.row, column)] if entry.complete else []
            known = [part for part in parts if part is not None]  # one document has no variance
            interval = _interval(known, entry.unit) if known and len(known) == len(parts) else None
            entries.append(replace(entry, interval=interval))
        return replace(self.row, entries=tuple(entries))

    def compared(self, base: "_Scored", column: int) -> Comparison | None:
        if not self.row.entries[column].complete or not base.row.entries[column].complete:
            return None
        parts = zip(_parts(self.row, column), _parts(base.row, column), strict=True)
        pairs = [self._paired(mine, base, other) for mine, other in parts]
        complete = [pair for pair in pairs if pair is not None]
        return compare(complete) if complete and len(complete) == len(pairs) else None

    def _paired(self, column: int, base: "_Scored", other: int) -> tuple[Values, Values] | None:
        """Values of both, run by run with equal seeds; a run without a seed stands against each of the other's."""
        mine, theirs = self.values[column], base.values[other]
        if mine is None or theirs is None or mine.shape[1] != theirs.shape[1]:
            return None
        seeds, others = self.row.entries[column].seeds, base.row.entries[other].seeds
        if seeds == [None] or others == [None]:
            mine, theirs = np.broadcast_arrays(mine, theirs)
            return mine, theirs
        return (mine, theirs) if set(seeds) == set(others) else None


def _interval(tasks: Sequence[Moments], unit: Unit) -> Interval | None:
    interval, _ = interval_of(tasks)
    if interval is None and len(tasks) == 1 and unit.name == PERCENT.name:
        return interval_of_all_or_none(tasks[0])
    return interval


def _values(entry: Entry) -> Values | None:
    """[runs in the order of their seeds, documents]; None for an average, and where a run's documents are not there."""
    if entry.is_average or not entry.complete:
        return None
    records = sorted((r for r in entry.records if isinstance(r, Record)), key=lambda record: record.seed or 0)
    found = [values for record in records if (values := document_values(record)) is not None]
    return np.stack(found) if found and len(found) == entry.expected else None


def _parts(row: Row, column: int) -> list[int]:
    """The column itself; of an average, those of its tasks."""
    if not row.entries[column].is_average:
        return [column]
    tasks = [(index, other) for index, other in enumerate(row.entries) if not other.is_average]
    return [index for index, other in tasks if other.records and isinstance(other.records[0], Record)]
