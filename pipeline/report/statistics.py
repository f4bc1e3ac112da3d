"""Mean and spread over seeds. What is not there stays None; it never counts as 0."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

DDOF = 1
"""Delta degrees of freedom of every standard deviation here: the sample standard deviation."""

LARGEST = 1e30
"""What is larger was not measured, and its squares would overflow."""


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it can be computed with: no text, no truth, not NaN, not infinite, not beyond `LARGEST`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


@dataclass(frozen=True)
class Summary:
    """Mean, sample standard deviation (`DDOF`; None for a single value) and number of values."""

    mean: float
    std: float | None
    n: int


def summarise(values: Sequence[float | None]) -> Summary | None:
    """Summary of the values that are there, or None when there is none."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    std = statistics.stdev(present) if len(present) > 1 else None
    return Summary(statistics.fmean(present), std, len(present))


def mean_of_all(values: Sequence[float | None]) -> float | None:
    """The mean, or None as soon as one value is missing: an average over fewer tasks is another quantity."""
    present = [value for value in values if value is not None]
    return statistics.fmean(present) if present and len(present) == len(values) else None
