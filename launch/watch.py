"""A table that is made again and again while its grid is still running."""

import time
from collections.abc import Callable

from pipeline.report import Table
from pipeline.stages import Tell


def follow(make: Callable[[], Table], seconds: float, tell: Tell) -> Table:
    """Make the table every so many seconds, until every planned number is there. Ctrl-C ends it at any time."""
    table = make()
    while missing := missing_numbers(table):
        tell(f"{missing} number{'s' if missing > 1 else ''} missing: again in {seconds:g} s, Ctrl-C ends")
        time.sleep(seconds)
        table = make()
    return table


def missing_numbers(table: Table) -> int:
    """How many planned numbers of the table are incomplete."""
    entries = [entry for row in table.rows for entry in row.entries if entry.published is None]
    return sum(not entry.complete for entry in entries if entry.expected)
