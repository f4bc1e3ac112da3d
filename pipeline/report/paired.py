"""Is a difference to the baseline more than noise? Paired over documents and over seeds.

A score varies for two reasons: other documents could have been asked, and another seed could have been trained with.
The interval here takes both: the variance of the mean difference is that of the seeds' differences over their number
plus that of the documents' differences over theirs, with the degrees of freedom of Welch and Satterthwaite. A single
run says nothing about other seeds: then the interval speaks for this run only.

Beside it stand the usual tests that take the documents alone (paired bootstrap, McNemar) or the seeds alone (paired
t test).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import bdtr, stdtr, stdtrit
from statsmodels.stats.multitest import multipletests

from pipeline.report.comparison import CONFIDENCE, Comparison, Interval

RESAMPLES = 5_000
FEW = 250
"""Documents whose draws are kept: 5 MB of them, which a processor's cache holds."""
EQUAL = 1e-12
"""Standard error over mean of values that differ by rounding alone."""
ROUNDING = 1e-6
"""Between means in float32 of changes that cancel each other. A true mean of so few documents is 0 or far larger."""

Values = NDArray[np.float64]
Key = TypeVar("Key")


def compare(tasks: Sequence[tuple[Values, Values]]) -> Comparison | None:
    """Compare on the mean of the tasks' scores.

    Args:
        tasks: of each task the values of the row and of the baseline, [pairs of runs, documents] both.

    Returns:
        None where a task has fewer than two documents.
    """
    changes = [row - baseline for row, baseline in tasks]
    if any(change.shape[1] < 2 for change in changes):
        return None
    seeds = np.mean([change.mean(axis=1) for change in changes], axis=0)
    difference = float(seeds.mean())
    resampled = np.mean([bootstrap_means(c.mean(axis=0), seed=number) for number, c in enumerate(changes)], axis=0)
    return Comparison(
        difference,
        *interval_and_p(changes),
        documents=sum(change.shape[1] for change in changes),
        pairs=len(seeds),
        bootstrap=_percentiles(resampled),
        bootstrap_p=_bootstrap_p(resampled),
        seeds_p=_p_of_seeds(seeds),
        mcnemar=_mcnemar(*tasks[0]) if len(tasks) == 1 else (),
    )


class Moments(NamedTuple):
    """What an interval needs of the values of one task."""

    seeds: Values
    """Mean of each run."""
    variance: float
    """Of the mean, by the documents that were asked."""
    documents: int


def moments(values: Values) -> Moments:
    """Of one task's values, [runs, documents]."""
    documents = values.shape[1]
    return Moments(values.mean(axis=1), float(values.mean(axis=0).var(ddof=1)) / documents, documents)


def interval_and_p(tasks: Sequence[Values]) -> tuple[Interval | None, float]:
    """Confidence interval of the mean over tasks (None where all values are equal: nothing says how far others would
    be), and the probability of one as far from zero if there were none.

    Args:
        tasks: of each task the values, [runs, documents].
    """
    return interval_of([moments(values) for values in tasks])


def interval_of(tasks: Sequence[Moments]) -> tuple[Interval | None, float]:
    """The same from what was worked out of each task's values."""
    seeds = tasks[0].seeds if len(tasks) == 1 else np.mean([task.seeds for task in tasks], axis=0)
    mean = float(seeds.mean())
    parts = [(task.variance / len(tasks) ** 2, task.documents - 1) for task in tasks]
    if len(seeds) > 1:
        parts.append((float(seeds.var(ddof=1)) / len(seeds), len(seeds) - 1))
    variance = sum(part for part, _ in parts)
    if math.sqrt(variance) <= EQUAL * abs(mean):
        return None, _p_without_variance(mean, min(task.documents for task in tasks))
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(variance)
    return (mean - half, mean + half), _p_of_t(mean / math.sqrt(variance), freedom)


def interval_of_all_or_none(task: Moments) -> Interval | None:
    """Clopper and Pearson's exact interval of the share of right answers where all are right, or none; else None."""
    if {*task.seeds} not in ({0}, {1}):
        return None
    right = int(task.seeds[0]) * task.documents
    low, high = stats.binomtest(right, task.documents).proportion_ci(CONFIDENCE, method="exact")
    return float(low), float(high)


def _p_of_t(t: float, freedom: float) -> float:
    """Two-sided, of Student's t. SciPy's special function: its distributions take a hundred times as long a call."""
    return float(2 * stdtr(freedom, -abs(t)))


def _p_without_variance(mean: float, documents: int) -> float:
    """Every document changed by the same amount: a test of signs."""
    return 1.0 if mean == 0 else float(stats.binomtest(documents, documents).pvalue)


def bootstrap_means(changes: Values, resamples: int = RESAMPLES, seed: int = 0) -> Values:
    """Means of the documents drawn anew with replacement, [resamples].

    Same distribution as `scipy.stats.bootstrap` gives, in a fraction of the time: a few documents are drawn once for
    all comparisons of their number; among many, right and wrong answers take few values, so that only the number of
    documents with each value has to be drawn.
    """
    if len(changes) <= FEW:
        return (_shares(len(changes), resamples, seed) @ changes.astype(np.float32)).astype(np.float64)
    values, counts = np.unique(changes, return_counts=True)
    generator = np.random.default_rng(seed)
    size = max(1, 10_000_000 // len(values))  # draws at a time, within 80 MB
    parts = [min(size, resamples - start) for start in range(0, resamples, size)]
    shares = counts / len(changes)
    return np.concatenate([generator.multinomial(len(changes), shares, part) @ values for part in parts]) / len(changes)


@lru_cache(maxsize=8)
def _shares(documents: int, resamples: int, seed: int) -> NDArray[np.float32]:
    """[resamples, documents]: how often each document was drawn, over their number."""
    even = np.full(documents, 1 / documents)
    return (np.random.default_rng(seed).multinomial(documents, even, resamples) / documents).astype(np.float32)


def _percentiles(resampled: Values) -> Interval:
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _bootstrap_p(resampled: Values) -> float:
    """Two-sided, never zero: the observed sample is one of the resamples."""
    below, above = int((resampled <= ROUNDING).sum()), int((resampled >= -ROUNDING).sum())
    return min(1.0, 2 * (min(below, above) + 1) / (len(resampled) + 1))


def _p_of_seeds(seeds: Values) -> float | None:
    """Paired t test over seeds; None where it is not defined."""
    if len(seeds) < 2 or np.ptp(seeds) < 1e-12:
        return None
    error = float(seeds.std(ddof=1)) / math.sqrt(len(seeds))
    return _p_of_t(float(seeds.mean()) / error, len(seeds) - 1)


def _mcnemar(row: Values, baseline: Values) -> tuple[float, ...]:
    """Exact McNemar test of each pair of runs; () where documents are not just right or wrong."""
    if not are_right_or_wrong(row, baseline):
        return ()
    return tuple(mcnemar_p(*flips(*pair)) for pair in zip(row, baseline, strict=True))


def are_right_or_wrong(*values: Values) -> bool:
    return all(np.isin(one, (0, 1)).all() for one in values)


def flips(row: Values, baseline: Values) -> tuple[int, int]:
    """Documents that only the row got right, and that only the baseline got right."""
    return int((row > baseline).sum()), int((row < baseline).sum())


def mcnemar_p(gained: int, lost: int) -> float:
    """The probability of so uneven a split of the documents on which two runs disagree."""
    return min(1.0, float(2 * bdtr(min(gained, lost), gained + lost, 0.5)))


def holm(comparisons: Mapping[Key, Comparison]) -> dict[Key, Comparison]:
    """The comparisons with p corrected for their number, after Holm."""
    if not comparisons:
        return {}
    adjusted = multipletests([found.p for found in comparisons.values()], method="holm")[1]
    return {
        key: replace(found, adjusted=float(p)) for (key, found), p in zip(comparisons.items(), adjusted, strict=True)
    }
