"""What a comparison with the baseline says."""

from dataclasses import dataclass

CONFIDENCE = 0.95
SIGNIFICANCE = 0.05

Interval = tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """A row against the baseline, on one task or on the average of several.

    `interval` (None where every document changed by the same) and `p` are of documents and seeds together, `bootstrap`
    and `bootstrap_p` of documents alone, `seeds_p` of seeds alone (None for fewer than two pairs). `mcnemar` is the
    exact test of each pair of runs, on one task whose documents are right or wrong. `adjusted` is p after Holm's
    correction.
    """

    difference: float
    interval: Interval | None
    p: float
    documents: int
    pairs: int
    bootstrap: Interval
    bootstrap_p: float
    seeds_p: float | None
    mcnemar: tuple[float, ...] = ()
    adjusted: float | None = None

    @property
    def within_noise(self) -> bool:
        return (self.p if self.adjusted is None else self.adjusted) >= SIGNIFICANCE
