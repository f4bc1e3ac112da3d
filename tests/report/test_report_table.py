"""The numbers of a table against values computed by hand."""

import json
from collections.abc import Callable
from dataclasses import replace
from math import isclose, sqrt
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.report import Cell, Table, build_table, report
from pipeline.report.layout import Layout

MakeRun = Callable[..., Cell]


def shown(table: Table) -> list[list[str]]:
    """Each row as a reader sees it: `value±spread(change)mark`, with * around the best."""

    def text(index: int, row: int) -> str:
        entry = table.rows[row].entries[index]
        value = f"*{entry.value}*" if entry.best else entry.value
        change = f"({entry.change})" if entry.change else ""
        return value + entry.spread.replace(" ", "") + change + (f" {entry.mark}" if entry.mark else "")

    return [
        [row.name, *(text(index, number) for index in range(len(row.entries)))] for number, row in enumerate(table.rows)
    ]


def test_the_demos_table(demo_cells: list[Cell]) -> None:
    table = build_table(demo_cells, "Demo", baseline="LoRA")
    assert table.headings == ["method", "piqa", "arc", "average", "Δ LoRA"]
    # LoRA piqa .5 .6, arc .3 .4, seeds' averages .4 and .5; each pair is .1 apart: std = .1 / sqrt(2) = .0707
    # Bitune arc .3 .5: std .2 / sqrt(2) = .1414; seeds' averages .5 and .6
    assert shown(table) == [
        ["Pretrained", "50.0", "25.0", "37.5(-7.5)"],
        ["LoRA", "55.0±7.1", "35.0±7.1", "45.0±7.1"],
        ["Bitune", "*70.0*±0.0", "*40.0*±14.1", "*55.0*±7.1(+10.0)"],
    ]
    average = table.rows[2].entries[2].summary
    assert average and isclose(average.mean, 0.55) and isclose(average.std or 0, 0.1 / sqrt(2)) and average.n == 2
    assert table.notes == ()


def test_the_caption_states_what_was_measured(demo_cells: list[Cell]) -> None:
    assert build_table(demo_cells, "Demo", baseline="LoRA").caption == (
        "Metric: acc in percent. Mean ± sample standard deviation over seeds (ddof = 1); n = 1: Pretrained; "
        "n = 2: LoRA, Bitune. Documents per task: 60. Every task was evaluated in full. Bold: best of its column. "
        "Δ LoRA: difference of the average to LoRA in percentage points. "
        "?: not tested (that needs complete numbers and the records of their documents)."
    )


def test_the_caption_names_limits_and_single_runs(make_run: MakeRun) -> None:
    cells = [make_run("A", 42, {"piqa": 0.5, "arc": 0.5}, limit=60, arc={"documents": 40})]
    assert build_table(cells, "T").caption == (
        "Metric: acc in percent. One run in each row (n = 1), so no spread is given. Documents per task: piqa 60, "
        "arc 40. piqa was limited to its first documents: not comparable with full evaluations."
    )


def test_differences_of_each_task_are_an_option(demo_cells: list[Cell]) -> None:
    table = build_table(demo_cells, "Demo", baseline="LoRA", layout=Layout(differences="tasks"))
    assert shown(table)[0] == ["Pretrained", "50.0(-5.0)", "25.0(-10.0)", "37.5(-7.5)"]
    assert "In brackets: difference to LoRA" in table.caption


def test_a_missing_seed_is_marked_and_not_averaged_away(make_run: MakeRun) -> None:
    cells = [
        make_run("LoRA", 42, {"piqa": 0.5, "arc": 0.3}),
        make_run("LoRA", 43, {"piqa": 0.6, "arc": float("nan")}),
        make_run("Bitune", 42, {"piqa": 0.4, "arc": 0.2}, method="bitune"),
        make_run("Bitune", 43, {"piqa": 0.4, "arc": 0.2}, method="bitune", trained=False),
        make_run("IA3", 42, {"piqa": None, "arc": 0.1}, tuning="ia3"),
    ]
    table = build_table(cells, "T", baseline="LoRA")
    assert shown(table) == [
        ["LoRA", "55.0±7.1", "30.0 1/2 a", "40.0 1/2 b"],
        ["Bitune", "40.0 1/2 c", "20.0 1/2 c", "30.0(-10.0) 1/2 b"],
        ["IA3", "- d", "10.0", "- e"],
    ]
    assert table.notes == (
        ("a", "seed 43: evaluation of arc failed: acc is nan"),
        ("b", "only seeds with every task"),
        ("c", "seed 43: not trained"),
        ("d", "seed 42: evaluation of piqa is missing"),
        ("e", "no seed has every task"),
    )


def test_incomplete_numbers_are_not_called_best(make_run: MakeRun) -> None:
    cells = [
        make_run("Pretrained", None, {"piqa": 0.5}),
        make_run("A", 42, {"piqa": 0.4}),
        make_run("B", 42, {"piqa": 0.9}, method="bitune"),
        make_run("B", 43, {"piqa": None}, method="bitune"),
    ]
    table = build_table(cells, "T")
    assert [row.entries[0].best for row in table.rows] == [True, False, False]
    assert "Bold: best complete number of its column." in table.caption


def test_what_looks_equal_is_a_tie(make_run: MakeRun) -> None:
    values = {"A": 0.70012, "B": 0.70043, "C": 0.699}
    cells = [
        make_run(row, 42, {"piqa": value}, training={"epochs": index + 1})
        for index, (row, value) in enumerate(values.items())
    ]
    table = build_table(cells, "T", baseline="A")
    assert shown(table) == [
        ["A", "*70.0*", "*70.0*"],
        ["B", "*70.0*", "*70.0*(0.0)"],
        ["C", "69.9", "69.9(-0.1)"],
    ]


def test_a_task_that_is_not_planned_leaves_no_average(make_run: MakeRun) -> None:
    cells = [
        make_run("A", 42, {"piqa": 0.5, "arc": 0.3}),
        make_run("B", 42, {"piqa": 0.9}, method="bitune"),
    ]
    table = build_table(cells, "T")
    assert shown(table)[1] == ["B", "*90.0*", "- a", "- b"]
    assert table.notes == (("a", "not planned"), ("b", "no seed has every task"))


def test_metrics_that_are_no_fractions_are_not_averaged(make_run: MakeRun) -> None:
    perplexity = {"main_metric": "perplexity", "higher_is_better": {"perplexity": False}}
    cells = [
        make_run(row, 42, {"piqa": 0.5, "lambada": 0.5}, method=method,
                 lambada={**perplexity, "metrics": {"perplexity": value}})
        for row, method, value in (("A", "causal", 9.0647), ("B", "bitune", 8.5))
    ]  # fmt: skip
    table = build_table(cells, "T", baseline="A", layout=Layout(differences="tasks"))
    assert shown(table) == [["A", "*50.0*", "9.06"], ["B", "*50.0*(0.0)", "*8.50*(-0.56)"]]
    assert table.headings == ["method", "piqa", "lambada"]
    assert "Metrics: piqa: acc in percent, lambada: perplexity (less is better)." in table.caption


def test_nothing_finished_is_still_a_table(make_run: MakeRun) -> None:
    table = build_table([make_run("A", 42, {"piqa": None})], "T", baseline="A")
    assert shown(table) == [["A", "- a", "- b"]] and table.caption.startswith("No evaluation has finished.")


def test_a_long_failure_stays_one_line(make_run: MakeRun) -> None:
    reason = "failed: first line\n\x1b[31msecond line " + "x" * 500
    table = build_table([make_run("A", 42, {"piqa": None}, reason=reason)], "T")
    text = table.notes[0][1]
    assert (
        text.startswith("seed 42: failed: first line \N{REPLACEMENT CHARACTER}[31msecond line xxx") and len(text) < 220
    )


def test_unknown_baseline_and_empty_input_are_refused(demo_cells: list[Cell]) -> None:
    with pytest.raises(UserError, match=r"baseline 'Lora' is not a row .* Pretrained, LoRA, Bitune"):
        build_table(demo_cells, "T", baseline="Lora")
    with pytest.raises(UserError, match="nothing to report"):
        build_table([], "T")


def test_several_metrics_of_a_task_and_published_numbers(make_run: MakeRun, tmp_path: Path) -> None:
    cells = [
        replace(
            make_run(row, None, {"piqa": value}, tasks=("piqa",), method=method), tasks=("piqa:acc", "piqa:acc_norm")
        )
        for row, method, value in (("Vanilla", "causal", 0.5), ("Slippery", "slippery", 0.25))
    ]
    published = {"Blog [1]": {"piqa:acc_norm": "52.18 ± 0.70"}}
    table = build_table(cells, "t", "Vanilla", reference=published)
    assert [[entry.value for entry in row.entries][:2] for row in table.rows] == [
        ["50.0", "99.0"], ["25.0", "99.0"], ["-", "52.18 ± 0.70"],
    ]  # fmt: skip
    assert table.notes == ()
    assert table.caption.endswith("Published numbers, not measured here: Blog [1].")
    report(cells, "t", None, tmp_path / "out", reference=published)
    assert "| Blog \\[1\\] | - | 52.18 ± 0.70 |" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert r"52.18 $\pm$ 0.70" in (tmp_path / "out" / "table.tex").read_text(encoding="utf-8")
    last = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["rows"][-1]
    assert last["cells"][1] == {"column": "piqa:acc_norm", "published": "52.18 ± 0.70"}


def test_a_metric_that_was_not_measured_is_missing(make_run: MakeRun) -> None:
    cell = replace(make_run("LoRA", None, {"piqa": 0.5}, tasks=("piqa",)), tasks=("piqa:perplexity",))
    table = build_table([cell], "t")
    assert "evaluation of piqa has no number for perplexity" in [text for _, text in table.notes]
