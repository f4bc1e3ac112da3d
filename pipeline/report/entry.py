"""The parts of a table and how its numbers are written."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.report.comparison import Comparison
from pipeline.report.record import Measurement, Missing
from pipeline.report.statistics import Summary
from pipeline.report.unit import PERCENT, Unit


@dataclass(frozen=True)
class Column:
    """One task, the average of all tasks, or a cost.

    `key` is what the runs call it (task, or task:metric), `name` is its heading.
    """

    name: str
    key: str = ""
    metric: str | None = None
    unit: Unit = PERCENT
    lower_is_better: bool = False
    documents: int | None = None
    limit: int | None = None
    is_average: bool = False
    is_cost: bool = False

    @property
    def percent(self) -> bool:
        return self.unit.name == PERCENT.name


@dataclass(frozen=True)
class Entry:
    """One number: a summary over seeds (as measured, not in percent), and everything it is made of.

    `expected` counts the planned runs, `reference` is the baseline's mean, `letter` the footnote's, `rank` 1 for the
    best of its column, 2 for the second best, 0 otherwise.
    """

    summary: Summary | None
    expected: int
    unit: Unit = PERCENT
    is_average: bool = False
    records: tuple[Measurement, ...] = ()
    missing: tuple[Missing, ...] = ()
    rank: int = 0
    reference: float | None = None
    letter: str = ""
    published: str | None = None
    """The number as another source states it, where nothing was measured."""
    separate: bool = False
    """The difference to the baseline stands in a column of its own."""
    shown_spread: str = "std"
    comparison: Comparison | None = None
    """With the baseline, document by document."""
    interval: tuple[float, float] | None = None

    @property
    def best(self) -> bool:
        return self.rank == 1

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
        return "-" if self.summary is None else self.unit.written(self.summary.mean)

    @property
    def spread(self) -> str:
        """`± 7.1`, the standard deviation, or `[53.1, 57.0]`, the interval; "" where there is none or none is asked."""
        if self.shown_spread == "interval" and self.interval is not None:
            low, high = map(self.unit.written, self.interval)
            return f"[{low}, {high}]"
        if self.shown_spread != "std" or self.summary is None or self.summary.std is None:
            return ""
        return f"± {self.unit.written(self.summary.std)}"

    @property
    def change(self) -> str:
        """The difference to the baseline, in percentage points with its sign; "" without one."""
        return "" if self.difference is None else self.unit.signed(self.difference)

    @property
    def noise(self) -> str:
        """The mark of a difference that is within noise, or of which nobody knows whether it is."""
        if not self.change:
            return ""
        return UNTESTED if self.comparison is None else NOISE if self.comparison.within_noise else ""

    @property
    def bracketed(self) -> str:
        """The difference where it stands behind the number."""
        return "" if self.separate else self.change

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
        return next((record.value for record in self.records if record.seed == seed), None)


NOISE, UNTESTED = "≈", "?"


@dataclass(frozen=True)
class Row:
    """One method (of one group): an entry for each column.

    `label` is what it is called in the table, `name` the method. They differ where published numbers stand beside
    ours. `marks` are the texts of the columns in front of the numbers.
    """

    name: str
    entries: tuple[Entry, ...]
    group: str = ""
    label: str = ""
    marks: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        return self.label or self.name

    @property
    def is_published(self) -> bool:
        """Another source's numbers, not measured here."""
        return any(entry.published is not None for entry in self.entries) and not any(e.expected for e in self.entries)

    @property
    def change(self) -> str:
        """The difference that stands in a column of its own, with the mark of noise."""
        found = [entry for entry in self.entries if entry.separate]
        return f"{found[0].change} {found[0].noise}".strip() if found else ""

    def with_entry(self, index: int, **values: Any) -> "Row":
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
    group_heading: str = ""
    row_heading: str = "method"
    mark_headings: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Rows of the grids that have no place in the layout."""
    models_gone: tuple[Path, ...] = ()
    """Runs in the table whose trained model has been removed."""

    @property
    def lead_headings(self) -> list[str]:
        """Titles of the columns in front of the numbers."""
        return [*([self.group_heading] if self.group_heading else []), self.row_heading, *self.mark_headings]

    def lead(self, row: Row) -> list[str]:
        """Texts of the columns in front of the numbers."""
        return [*([row.group] if self.group_heading else []), row.shown, *row.marks]

    @cached_property
    def headings(self) -> list[str]:
        """Column titles; the difference of the average stands in a column of its own."""
        difference = [f"Δ {self.baseline}"] if self.has_difference else []
        return [*self.lead_headings, *(column.name for column in self.columns), *difference]

    @cached_property
    def has_difference(self) -> bool:
        return any(entry.separate for row in self.rows for entry in row.entries)

    @property
    def blocks(self) -> list[list[Row]]:
        """The rows of each group, between which a line is drawn."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.group, []).append(row)
        return list(groups.values())
