"""The parts of a table and how its numbers are written."""

from dataclasses import dataclass, replace
from typing import Any

from pipeline.report.record import Missing, Record
from pipeline.report.statistics import Summary


@dataclass(frozen=True)
class Column:
    """One task, or the average of all tasks."""

    name: str
    metric: str | None = None
    percent: bool = True
    lower_is_better: bool = False
    documents: int | None = None
    limit: int | None = None
    is_average: bool = False


@dataclass(frozen=True)
class Entry:
    """One number: a summary over seeds (as measured, not in percent), and everything it is made of.

    `expected` counts the planned runs, `reference` is the baseline's mean, `mark` the footnote's letter.
    """

    summary: Summary | None
    expected: int
    percent: bool = True
    is_average: bool = False
    records: tuple[Record, ...] = ()
    missing: tuple[Missing, ...] = ()
    best: bool = False
    reference: float | None = None
    letter: str = ""
    published: str | None = None
    """The number as another source states it, where nothing was measured."""

    @property
    def n(self) -> int:
        return self.summary.n if self.summary else 0

    @property
    def complete(self) -> bool:
        """Every planned run is in the number."""
        return self.n == self.expected > 0

    @property
    def difference(self) -> float | None:
        """Mean minus the baseline's mean, both unrounded."""
        if self.summary is None or self.reference is None:
            return None
        return self.summary.mean - self.reference

    @property
    def value(self) -> str:
        """The mean, in percent with one decimal (metrics that are no fractions: two decimals); "-" without one."""
        if self.published is not None:
            return self.published
        return "-" if self.summary is None else self._written(self.summary.mean)

    @property
    def spread(self) -> str:
        """The standard deviation, "" for a single run."""
        return "" if self.summary is None or self.summary.std is None else self._written(self.summary.std)

    @property
    def change(self) -> str:
        """The difference to the baseline, in percentage points with its sign; "" without one."""
        if self.difference is None:
            return ""
        text = f"{'+' if self.difference > 0 else ''}{self._written(self.difference)}"
        return text.lstrip("+-") if float(text) == 0 else text

    @property
    def mark(self) -> str:
        """`n/N a` for an incomplete number, `a` for none at all, "" for a complete one."""
        return f"{self.n}/{self.expected} {self.letter}" if 0 < self.n < self.expected else self.letter

    @property
    def seeds(self) -> list[int | None]:
        """Every planned seed; None stands for the run that has none."""
        return [*(record.seed for record in self.records), *(missing.seed for missing in self.missing)]

    def value_of(self, seed: int | None) -> float | None:
        """The value of the run with this seed, if it is there."""
        return next((record.evaluation.value for record in self.records if record.seed == seed), None)

    def _written(self, value: float) -> str:
        return f"{100 * value:.1f}" if self.percent else f"{value:.2f}"


@dataclass(frozen=True)
class Row:
    """One method: an entry for each column."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def is_published(self) -> bool:
        """Another source's numbers, not measured here."""
        return any(entry.published is not None for entry in self.entries)

    def change(self, index: int, **values: Any) -> "Row":
        """The row with some fields of one entry replaced."""
        entries = list(self.entries)
        entries[index] = replace(entries[index], **values)
        return replace(self, entries=tuple(entries))


@dataclass(frozen=True)
class Table:
    """All numbers of a report, in the order in which they are shown."""

    title: str
    caption: str
    baseline: str | None
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[tuple[str, str], ...]
    """Footnotes: letter and text."""

    @property
    def headings(self) -> list[str]:
        """Column titles; the difference of the average stands in a column of its own."""
        names = [column.name for column in self.columns]
        return ["method", *names, *([f"Δ {self.baseline}"] if self.has_difference else [])]

    @property
    def has_difference(self) -> bool:
        return self.baseline is not None and self.columns[-1].is_average
