"""Summaries against hand computations."""

import math

from pipeline.report.statistics import DDOF, Summary, mean_of_all, summarise


def test_two_values_by_hand() -> None:
    # mean 0.35; deviations -0.05 and 0.05; variance 0.005 / (2 - 1)
    summary = summarise([0.3, 0.4])
    assert summary is not None and summary.n == 2 and DDOF == 1
    assert math.isclose(summary.mean, 0.35) and math.isclose(summary.std or 0, math.sqrt(0.005))


def test_three_values_use_the_sample_deviation() -> None:
    summary = summarise([1.0, 2.0, 6.0])  # mean 3, squares 4 + 1 + 9 = 14, 14 / 2 = 7; the population's would be 14 / 3
    assert summary is not None and math.isclose(summary.std or 0, math.sqrt(7))


def test_one_value_has_no_spread() -> None:
    assert summarise([0.5]) == Summary(0.5, None, 1)


def test_missing_values_do_not_count_as_zero() -> None:
    assert summarise([0.4, None, 0.6]) == summarise([0.4, 0.6])
    assert summarise([None, None]) is None and summarise([]) is None


def test_average_needs_every_task() -> None:
    assert mean_of_all([0.2, 0.4]) == 0.30000000000000004
    assert mean_of_all([0.2, None]) is None and mean_of_all([]) is None
