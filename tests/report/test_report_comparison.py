"""Paired tests: against SciPy and statsmodels, against hand computations, and by simulation."""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from math import comb, isclose, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from pipeline.report import Cell, Layout, build_table, report
from pipeline.report.caption import caption
from pipeline.report.paired import bootstrap_means, compare, holm, interval_and_p, mcnemar_p

MakeRun = Callable[..., Cell]
GENERATOR = np.random.default_rng(7)


def answers(runs: int, documents: int, rate: float, generator: np.random.Generator = GENERATOR) -> np.ndarray:
    return (generator.random((runs, documents)) < rate).astype(float)


def test_the_bootstrap_is_scipys() -> None:
    row, base = answers(3, 200, 0.6), answers(3, 200, 0.5)
    change = (row - base).mean(axis=0)
    found = compare([(row, base)])
    theirs = stats.bootstrap((change,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(1))
    assert found is not None
    assert np.allclose(found.bootstrap, theirs.confidence_interval, atol=0.006)
    assert isclose(float(bootstrap_means(change).std()), float(theirs.standard_error), rel_tol=0.05)


def test_the_bootstrap_of_many_different_values_goes_in_parts() -> None:
    values = GENERATOR.normal(size=3000)
    means = bootstrap_means(values, resamples=4000)
    assert means.shape == (4000,) and isclose(float(means.std()), float(values.std()) / sqrt(3000), rel_tol=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_mcnemar_is_that_of_statsmodels(seed: int) -> None:
    generator = np.random.default_rng(seed)
    row, base = answers(1, 120, 0.6, generator), answers(1, 120, 0.5, generator)
    table = [[int(((row == a) & (base == b)).sum()) for b in (1, 0)] for a in (1, 0)]
    found = compare([(row, base)])
    assert found is not None and isclose(found.mcnemar[0], mcnemar(table, exact=True).pvalue)


def test_mcnemar_by_hand() -> None:
    # 10 documents differ, 8 of them gained: 2 * (C(10,0) + C(10,1) + C(10,2)) / 2^10
    assert isclose(mcnemar_p(8, 2), 2 * (comb(10, 0) + comb(10, 1) + comb(10, 2)) / 2**10)
    assert mcnemar_p(0, 0) == 1.0


def test_a_single_run_is_a_paired_t_test_over_documents() -> None:
    row, base = answers(1, 80, 0.7), answers(1, 80, 0.5)
    found, theirs = compare([(row, base)]), stats.ttest_rel(row[0], base[0])
    assert found is not None and isclose(found.p, theirs.pvalue) and found.seeds_p is None
    assert np.allclose(found.interval, theirs.confidence_interval())


def test_seeds_alone_are_a_paired_t_test_over_seeds() -> None:
    row, base = answers(4, 50, 0.7), answers(4, 50, 0.5)
    found = compare([(row, base)])
    assert found is not None and found.seeds_p is not None
    assert isclose(found.seeds_p, stats.ttest_rel(row.mean(axis=1), base.mean(axis=1)).pvalue)


def test_documents_and_seeds_by_hand() -> None:
    # two seeds of four documents; differences by seed: (1, 1, 0, 0) and (1, 0, 0, 0), their means 0.5 and 0.25
    row = np.array([[1.0, 1, 0, 0], [1, 0, 0, 0]])
    found = compare([(row, np.zeros((2, 4)))])
    seeds = 0.25**2 / 2 / 2  # variance of (0.5, 0.25) is 0.25^2 / 2, over 2 seeds
    # documents' means 1, 0.5, 0, 0: mean 0.375, squares .390625 + .015625 + .140625 + .140625 = .6875, / 3, over 4
    documents = 0.6875 / 3 / 4
    freedom = (seeds + documents) ** 2 / (seeds**2 / 1 + documents**2 / 3)
    half = stats.t.ppf(0.975, freedom) * sqrt(seeds + documents)
    assert found is not None and np.allclose(found.interval, (0.375 - half, 0.375 + half))


def test_no_difference_and_one_that_never_varies() -> None:
    same = answers(2, 30, 0.5)
    found = compare([(same, same)])
    assert found is not None and found.p == 1.0 and found.within_noise and found.interval is None
    always = compare([(np.ones((1, 12)), np.zeros((1, 12)))])
    assert always is not None and isclose(always.p, 2 * 0.5**12)
    assert compare([(np.ones((1, 1)), np.zeros((1, 1)))]) is None


def test_holm_is_that_of_statsmodels_and_by_hand() -> None:
    base = compare([(answers(1, 40, 0.6), answers(1, 40, 0.5))])
    assert base is not None
    raw = {"a": 0.01, "b": 0.04, "c": 0.03}
    found = holm({key: replace(base, p=p) for key, p in raw.items()})
    # sorted: 0.01 * 3, 0.03 * 2, max(0.06, 0.04 * 1)
    assert [round(found[key].adjusted or 0, 9) for key in "abc"] == [0.03, 0.06, 0.06]
    assert np.allclose([found[key].adjusted for key in "abc"], multipletests(list(raw.values()), method="holm")[1])
    assert [found[key].within_noise for key in "abc"] == [False, True, True]


@pytest.mark.parametrize(("runs", "documents", "seed_spread"), [(1, 200, 0.0), (3, 200, 0.02), (5, 60, 0.05)])
def test_the_interval_covers_the_truth(runs: int, documents: int, seed_spread: float) -> None:
    """Documents and seeds are drawn anew 600 times: 95% of the intervals hold the true difference, or somewhat more.

    Three standard errors of a share of 0.95 in 600 trials are 0.027.
    """
    generator, truth, covered = np.random.default_rng(3), 0.08, 0
    for _ in range(600):
        hardness = generator.normal(0, 0.15, documents)
        levels = generator.normal(0, seed_spread, (2, runs, 1))
        rates = np.clip(0.5 + hardness + levels + np.array([[[truth]], [[0.0]]]), 0, 1)
        row, base = (generator.random((2, runs, documents)) < rates).astype(float)
        low, high = interval_and_p([row - base])[0]
        covered += low <= truth <= high
    assert 0.95 - 0.027 <= covered / 600 <= 0.995


def test_noise_is_found_without_a_difference() -> None:
    """Of 400 comparisons of equal methods not many more than 5% may look like more than noise."""
    generator = np.random.default_rng(5)
    changes = [answers(3, 100, 0.5, generator) - answers(3, 100, 0.5, generator) for _ in range(400)]
    assert sum(interval_and_p([change])[1] < 0.05 for change in changes) / 400 < 0.05 + 0.033


def test_tasks_are_drawn_independently() -> None:
    """The interval of an average over two tasks of equal documents is narrower by sqrt(2)."""
    task = (answers(1, 150, 0.6), answers(1, 150, 0.5))
    one, two = compare([task]), compare([task, task])
    assert one is not None and two is not None
    assert isclose(np.ptp(one.bootstrap) / np.ptp(two.bootstrap), sqrt(2), rel_tol=0.06)
    assert isclose(np.ptp(one.interval) / np.ptp(two.interval), sqrt(2), rel_tol=0.02)


def rights(count: int, of: int = 60) -> list[int]:
    return [1] * count + [0] * (of - count)


def test_a_table_marks_what_is_within_noise(make_run: MakeRun) -> None:
    cells = [
        make_run("LoRA", 42, {"piqa": rights(20), "arc": rights(20)}),
        make_run("LoRA", 43, {"piqa": rights(20), "arc": rights(20)}),
        make_run("Bitune", 42, {"piqa": rights(55), "arc": rights(50)}, method="bitune"),
        make_run("Bitune", 43, {"piqa": rights(55), "arc": rights(50)}, method="bitune"),
        make_run("Close", 42, {"piqa": rights(21), "arc": rights(20)}, method="no_mixing"),
        make_run("Close", 43, {"piqa": rights(20), "arc": rights(21)}, method="no_mixing"),
    ]
    table = build_table(cells, "t", "LoRA", Layout(differences="tasks"))
    assert [[entry.noise for entry in row.entries] for row in table.rows] == [["", "", ""], ["", "", ""], ["≈"] * 3]
    assert [row.change for row in table.rows] == ["", "+54.2", "+0.8 ≈"]
    assert "≈: within noise (p ≥ 0.05 in a paired t test with the variance of documents and of seeds, corrected" in (
        table.caption
    )
    assert "corrected for 6 comparisons after Holm)." in table.caption
    found = table.rows[1].entries[0].comparison
    assert found is not None and found.pairs == 2 and found.documents == 60 and len(found.mcnemar) == 2
    assert isclose(found.difference, 35 / 60) and isclose(found.mcnemar[0], 2 * 0.5**35)


def test_a_single_pretrained_run_is_paired_with_every_seed(make_run: MakeRun) -> None:
    cells = [
        make_run("Pretrained", None, {"piqa": rights(20)}),
        *(make_run("LoRA", seed, {"piqa": rights(40 + seed % 2)}) for seed in (42, 43)),
    ]
    table = build_table(cells, "t", "LoRA")
    found = table.rows[0].entries[1].comparison
    assert found is not None and found.pairs == 2 and isclose(found.difference, (20 - 40.5) / 60)


@pytest.mark.parametrize("fault", ["missing", "short", "edited", "seed"])
def test_what_cannot_be_paired_is_not_tested(make_run: MakeRun, fault: str) -> None:
    seed = 44 if fault == "seed" else 42
    cells = [
        make_run("LoRA", 42, {"piqa": rights(20)}),
        make_run("Bitune", seed, {"piqa": rights(50)}, method="bitune"),
    ]
    path = cells[1].folder.samples("piqa")
    lines = path.read_text().splitlines()
    if fault == "missing":
        path.unlink()
    elif fault == "short":
        path.write_text("\n".join(lines[:-1]))
    elif fault == "edited":
        path.write_text("\n".join([lines[-1], *lines[1:]]))
    table = build_table(cells, "t", "LoRA")
    assert table.rows[1].change == "+50.0 ?" and "?: not tested (that needs complete numbers" in table.caption


@pytest.mark.parametrize("differences", ["average", "tasks"])
def test_what_is_not_tested_has_a_mark_of_its_own_in_every_file(
    make_run: MakeRun, tmp_path: Path, differences: Any
) -> None:
    cells = [
        make_run(row, 42, {"piqa": rights(count), "arc": rights(count)}, training={"epochs": epochs})
        for epochs, (row, count) in enumerate({"A": 20, "Better": 55, "Lost": 55}.items(), start=1)
    ]
    cells[2].folder.samples("arc").unlink()
    console = Console(file=io.StringIO(), width=200)
    table = report(cells, "t", "A", tmp_path, console, Layout(differences=differences, average="average"))
    assert [row.entries[2].noise for row in table.rows] == ["", "", "?"]
    assert table.rows[1].entries[0].noise == "" and table.caption.count("?") == 1 and "≈: within" in table.caption
    shown = [console.file.getvalue(), *((tmp_path / f"report.{kind}").read_text() for kind in ("md", "html", "tex"))]  # type: ignore[attr-defined]
    lost = r"(\+58\.3|\$\+58\.3) (\\,)?\?"
    assert all(len(re.findall(lost, text)) == (1 if differences == "average" else 2) for text in shown)
    report(cells[:2], "t", "A", tmp_path, console)
    assert "?" not in (tmp_path / "report.md").read_text()


def test_an_interval_of_all_right_or_all_wrong_is_exact(make_run: MakeRun) -> None:
    cells = [make_run("A", seed, {"all": [1] * 20, "none": [0] * 20, "some": rights(9, 20)}) for seed in (42, 43)]
    entries = build_table(cells, "t", layout=Layout(spread="interval", average=None)).rows[0].entries
    bound = 0.025 ** (1 / 20)  # so small a rate of right answers gives 20 of 20 once in 40 times
    assert np.allclose(entries[0].interval, (bound, 1)) and np.allclose(entries[1].interval, (0, 1 - bound))
    assert entries[0].spread == "[83.2, 100.0]" and entries[2].interval[0] > 0.2  # type: ignore[index]


@pytest.mark.parametrize("values", [[0.7] * 20, [[1, 0], [0, 1]]])
def test_equal_values_that_are_not_all_or_none_have_no_interval(values: list[Any]) -> None:
    assert interval_and_p([np.atleast_2d(np.array(values, dtype=float))])[0] is None


def test_intervals_in_place_of_deviations(make_run: MakeRun) -> None:
    cells = [make_run("A", seed, {"piqa": rights(count)}) for seed, count in ((42, 30), (43, 33))]
    table = build_table(cells, "t", layout=Layout(spread="interval"))
    # documents' means: 30 of 1, 3 of 0.5, 27 of 0: mean 0.525; variance by the sum of squares; seeds 0.5 and 0.55
    squares = 30 * 0.475**2 + 3 * 0.025**2 + 27 * 0.525**2
    documents, seeds = squares / 59 / 60, 0.05**2 / 2 / 2
    half = stats.t.ppf(0.975, (documents + seeds) ** 2 / (documents**2 / 59 + seeds**2)) * sqrt(documents + seeds)
    assert table.rows[0].entries[0].spread == f"[{100 * (0.525 - half):.1f}, {100 * (0.525 + half):.1f}]"
    assert "95% interval in square brackets" in caption(table, Layout(spread="interval"))
