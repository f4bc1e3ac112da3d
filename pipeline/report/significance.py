"""Adding to every number of a table its interval, and to every difference whether it is more than noise."""

from collections.abc import Sequence

import numpy as np

from pipeline.report.comparison import Comparison
from pipeline.report.documents import Values, document_values
from pipeline.report.entry import Entry, Row
from pipeline.report.paired import compare, holm, interval_and_p
from pipeline.report.record import Record

Place = tuple[int, int]
"""Row and column of a number."""


class Significance:
    """Reads the per-document records of the runs in a table, each once."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], Values | None] = {}

    def annotate(self, rows: Sequence[Row], baseline: str | None) -> list[Row]:
        """The rows with intervals and comparisons, corrected for the number of tasks' and of averages' comparisons.

        Numbers that are incomplete, or whose documents are not there, get none.
        """
        rows = [self._with_intervals(row) for row in rows]
        found: dict[bool, dict[Place, Comparison]] = {True: {}, False: {}}
        bases = {row.group: row for row in reversed(rows) if row.name == baseline}
        for index, row in enumerate(rows):
            base = bases.get(row.group)
            for column, entry in enumerate(row.entries if base not in (None, row) else ()):
                comparison = self._compare(row, base, column) if base and entry.reference is not None else None
                if comparison:
                    found[entry.is_average][index, column] = comparison
        for places in found.values():
            for (index, column), comparison in holm(places).items():
                rows[index] = rows[index].with_entry(column, comparison=comparison)
        return rows

    def _with_intervals(self, row: Row) -> Row:
        for column, entry in enumerate(row.entries):
            values = [self._of(part) for part in _parts(row, column)] if entry.complete else []
            found = [one for one in values if one is not None and one.shape[1] > 1]  # one document has no variance
            if found and len(found) == len(values):
                row = row.with_entry(column, interval=interval_and_p(found)[0])
        return row

    def _compare(self, row: Row, base: Row, column: int) -> Comparison | None:
        if not row.entries[column].complete or not base.entries[column].complete:
            return None
        pairs = [self._paired(mine, other)
                 for mine, other in zip(_parts(row, column), _parts(base, column), strict=True)]  # fmt: skip
        complete = [pair for pair in pairs if pair is not None]
        return compare(complete) if complete and len(complete) == len(pairs) else None

    def _paired(self, row: Entry, base: Entry) -> tuple[Values, Values] | None:
        """Values of both, run by run with equal seeds; a run without a seed stands against each of the other's."""
        mine, other = self._of(row), self._of(base)
        if mine is None or other is None or mine.shape[1] != other.shape[1]:
            return None
        if row.seeds == [None] or base.seeds == [None]:
            mine, other = np.broadcast_arrays(mine, other)
            return mine, other
        return (mine, other) if set(row.seeds) == set(base.seeds) else None

    def _of(self, entry: Entry) -> Values | None:
        """[runs in the order of their seeds, documents], or None where a run's documents are not there."""
        records = sorted((r for r in entry.records if isinstance(r, Record)), key=lambda record: record.seed or 0)
        found = [self._read(record) for record in records]
        complete = [values for values in found if values is not None]
        return np.stack(complete) if complete and len(complete) == entry.expected else None

    def _read(self, record: Record) -> Values | None:
        key = str(record.file), record.evaluation.main_metric
        if key not in self._values:
            self._values[key] = document_values(record)
        return self._values[key]


def _parts(row: Row, column: int) -> list[Entry]:
    """The entry itself; of an average, those of its tasks with the seeds in one order."""
    entry = row.entries[column]
    if not entry.is_average:
        return [entry]
    tasks = [other for other in row.entries if not other.is_average]
    return [other for other in tasks if other.records and isinstance(other.records[0], Record)]
