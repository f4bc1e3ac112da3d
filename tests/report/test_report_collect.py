"""What counts, what is set aside and why, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UserError
from pipeline.report import Cell, Layout, build_table, cells_of
from pipeline.report.caption import caption
from pipeline.report.collect import collect
from pipeline.report.record import Missing, Record
from pipeline.report.statistics import Summary
from pipeline.run_folder import RunFolder

MakeRun = Callable[..., Cell]


def reasons(cells: list[Cell]) -> list[str | None]:
    return [outcome.reason if isinstance(outcome, Missing) else None for outcome in collect(cells)]


def test_a_whole_run_counts(make_run: MakeRun) -> None:
    cell = make_run("LoRA", 42, {"piqa": 0.5, "arc": 1})
    outcomes = collect([cell])
    assert [(o.task, o.evaluation.value) for o in outcomes if isinstance(o, Record)] == [("piqa", 0.5), ("arc", 1.0)]
    assert all(o.file == cell.folder.evaluation(o.task) for o in outcomes if isinstance(o, Record))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "evaluation of piqa failed: acc is nan"),
        (float("inf"), "evaluation of piqa failed: acc is inf"),
        (50.0, "evaluation of piqa failed: acc is 50.0, not a fraction from 0 to 1"),
        (-0.1, "evaluation of piqa failed: acc is -0.1, not a fraction from 0 to 1"),
        ("0.5", "evaluation of piqa has no number for acc"),
        (True, "evaluation of piqa has no number for acc"),
    ],
)
def test_a_value_that_is_no_fraction_does_not_count(make_run: MakeRun, value: Any, reason: str) -> None:
    assert reasons([make_run("LoRA", 42, {"piqa": value})]) == [reason]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"signature": "other"}, "evaluation of piqa belongs to another configuration (signature other)"),
        ({"task": "arc"}, "evaluation of piqa holds the results of arc"),
        ({"main_metric": "f1"}, "evaluation of piqa has no number for f1"),
        ({"documents": 0}, "evaluation of piqa is damaged (documents = 0: "),
        ({"limit": 10}, "evaluation of piqa is limited differently: the first 10 documents, the configuration asks"),
    ],
)
def test_a_result_that_is_not_the_runs_own_does_not_count(make_run: MakeRun, change: dict, reason: str) -> None:
    (found,) = reasons([make_run("LoRA", 42, {"piqa": 0.5}, piqa=change)])
    assert found and found.startswith(reason)


@pytest.mark.parametrize("metric", ["perplexity", "bleu,cut"])
def test_a_metric_that_is_no_fraction_may_be_large(make_run: MakeRun, metric: str) -> None:
    changes = {"main_metric": metric, "metrics": {metric: 9889.73}, "higher_is_better": {metric: None}}
    assert reasons([make_run("LoRA", 42, {"lambada": 0.5}, lambada=changes)]) == [None]


@pytest.mark.parametrize(
    ("task", "metric", "reported", "value"),
    [
        ("squadv2", "f1", 67.3, 0.673),
        ("squadv2", "HasAns_exact", 0.9, 0.009),
        ("scrolls_quality", "em", 25.0, 0.25),
        ("scrolls_quality", "acc_norm", 0.25, 0.25),
        ("xquad_en", "f1", 0.9, 0.9),
        ("truthfulqa_gen", "rouge1_acc", 0.4, 0.4),
    ],
)
def test_the_task_says_whether_a_share_is_in_percent(
    make_run: MakeRun, task: str, metric: str, reported: float, value: float
) -> None:
    measured = {"metrics": {metric: reported}, "main_metric": metric, "higher_is_better": {metric: True}}
    table = build_table([make_run("LoRA", 42, {task: 0.5}, **{task: measured})], "T")
    assert table.rows[0].entries[0].summary == Summary(pytest.approx(value), None, 1)
    assert table.columns[0].percent and table.columns[-1].is_average


@pytest.mark.parametrize(
    ("metric", "value"),
    [("rouge1_diff", -3.2), ("likelihood_diff", 4.1), ("age_bias", -0.7), ("eqbench", 61.4), ("wer", 1.2)],
)
def test_a_metric_that_is_no_share_is_shown_as_it_is(make_run: MakeRun, metric: str, value: float) -> None:
    measured = {"metrics": {metric: value}, "main_metric": metric, "higher_is_better": {metric: True}}
    table = build_table([make_run("LoRA", 42, {"t": 0.5}, t=measured)], "T")
    assert table.rows[0].entries[0].value == f"{value:.2f}" and not table.columns[0].percent


@pytest.mark.parametrize(
    ("task", "value", "reason"),
    [
        ("xquad_en", 67.3, "evaluation of xquad_en failed: f1 is 67.3, not a fraction from 0 to 1"),
        ("squadv2", 167.3, "evaluation of squadv2 failed: f1 is 167.3, not percent, as squadv2 reports it"),
    ],
)
def test_a_share_outside_its_scale_is_no_share(make_run: MakeRun, task: str, value: float, reason: str) -> None:
    measured = {"metrics": {"f1": value}, "main_metric": "f1", "higher_is_better": {"f1": True}}
    assert reasons([make_run("LoRA", 42, {task: 0.5}, **{task: measured})]) == [reason]


def test_documents_in_percent_are_tested_as_fractions(make_run: MakeRun) -> None:
    rights = {"A": [1, 0, 0, 1], "B": [1, 1, 0, 1]}
    cells = []
    for row, method in (("A", "causal"), ("B", "bitune")):
        measured = {"metrics": {"em": 25.0 * sum(rights[row])}, "main_metric": "em", "higher_is_better": {"em": True}}
        cell = make_run(row, 42, {"scrolls_quality": rights[row]}, method=method, scrolls_quality=measured)
        lines = "".join(
            f'{{"doc_id": {i}, "metrics": {{"em": {100.0 * right}}}}}\n' for i, right in enumerate(rights[row])
        )
        cell.folder.samples("scrolls_quality").write_text(lines)
        cells.append(cell)
    comparison = build_table(cells, "T", baseline="A", layout=Layout(differences="tasks")).rows[1].entries[0].comparison
    assert comparison is not None and comparison.difference == pytest.approx(0.25)


def test_a_damaged_file_does_not_count(make_run: MakeRun) -> None:
    cell = make_run("LoRA", 42, {"piqa": 0.5, "arc": 0.5, "csqa": 0.5})
    cell.folder.evaluation("piqa").write_text(cell.folder.evaluation("piqa").read_text()[:40])
    content = json.loads(cell.folder.evaluation("arc").read_text())
    del content["metrics"]
    cell.folder.evaluation("arc").write_text(json.dumps(content))
    assert reasons([cell]) == [
        "evaluation of piqa is damaged (not whole JSON)",
        "evaluation of arc is damaged (metrics is missing)",
        None,
    ]


def test_a_missing_result_has_a_reason(make_run: MakeRun, tmp_path: Path) -> None:
    untrained = make_run("A", 42, {"piqa": 0.5}, trained=False)
    unevaluated = make_run("B", 42, {"piqa": None}, method="bitune")
    nothing = Cell("C", 42, RunFolder(tmp_path / "nothing"), ("piqa",))
    failed = Cell("D", 42, RunFolder(tmp_path / "failed"), ("piqa",), "failed: disk is full")
    expected = ["not trained", "evaluation of piqa is missing", "not started", "failed: disk is full"]
    assert reasons([untrained, unevaluated, nothing, failed]) == expected


def test_a_known_reason_never_hides_a_number_or_a_fault(make_run: MakeRun) -> None:
    cell = make_run("A", 42, {"piqa": 0.5, "arc": float("nan"), "csqa": None}, reason="failed: killed")
    assert reasons([cell]) == [None, "evaluation of arc failed: acc is nan", "failed: killed"]


def test_training_of_another_configuration_does_not_count(make_run: MakeRun) -> None:
    cell = make_run("A", 42, {"piqa": 0.5})
    cell.folder.train_result.write_text('{"signature": "old"}')
    assert reasons([cell]) == ["trained with another configuration (signature old)"]


def test_tasks_scored_on_different_weights_do_not_count(make_run: MakeRun) -> None:
    cell = make_run("A", 42, {"piqa": 0.5, "arc": 0.5}, piqa={"model_fingerprint": "older weights"})
    assert reasons([cell]) == ["its tasks were scored on different weights: evaluate it again"] * 2


def test_mixed_limits_are_set_aside_for_the_full_ones(make_run: MakeRun) -> None:
    limited = make_run("A", 42, {"piqa": 0.9}, limit=60)
    full = make_run("B", 42, {"piqa": 0.5}, method="bitune", piqa={"documents": 1838})
    expected = "not comparable: limit 60, the column has none; documents 60, the column has 1838"
    assert reasons([limited, full]) == [expected, None]


def test_a_limit_that_left_nothing_out_is_none(make_run: MakeRun) -> None:
    cells = [make_run("A", 42, {"piqa": 0.9}, limit=400), make_run("B", 42, {"piqa": 0.5}, method="bitune")]
    assert reasons(cells) == [None, None]
    assert "evaluated in full" in caption(build_table(cells, "T"), Layout())


def test_another_task_hash_is_set_aside(make_run: MakeRun) -> None:
    cells = [
        make_run("A", 42, {"piqa": 0.5}),
        make_run("A", 43, {"piqa": 0.9}, piqa={"task_hash": "changed"}),
        make_run("B", 42, {"piqa": 0.5}, method="bitune"),
    ]
    expected = "not comparable: task hash changed, the column has hash-piqa"
    assert reasons(cells) == [None, expected, None]


def test_two_halves_that_disagree_are_both_set_aside(make_run: MakeRun) -> None:
    cells = [
        make_run("A", 42, {"piqa": 0.5}),
        make_run("A", 43, {"piqa": 0.9}, piqa={"task_hash": "changed"}),
        make_run("B", None, {"piqa": 0.5}, piqa={"limit": 60}, limit=60),
    ]
    other = "not comparable: task hash {}, as many of the column have {}"
    limited = "not comparable: limit 60, the column has none"
    assert reasons(cells) == [other.format("hash-piqa", "changed"), other.format("changed", "hash-piqa"), limited]


def test_two_seeds_trained_on_other_data_are_both_set_aside(make_run: MakeRun) -> None:
    cells = [make_run("A", seed, {"piqa": 0.5}, prepared_key=f"data-{seed}") for seed in (42, 43)]
    other = "not comparable: prepared data data-{}, as many of the row have data-{}"
    assert reasons(cells) == [other.format(42, 43), other.format(43, 42)]
    (row,) = build_table(cells, "T").rows
    assert (row.entries[0].value, row.entries[0].n, row.entries[0].expected) == ("-", 0, 2)


def test_full_evaluations_win_over_more_limited_ones(make_run: MakeRun) -> None:
    cells = [make_run(f"{seed}", seed, {"piqa": 0.9}, limit=60) for seed in (42, 43, 44)]
    full = make_run("B", 42, {"piqa": 0.5}, method="bitune", piqa={"documents": 1838})
    expected = "not comparable: limit 60, the column has none; documents 60, the column has 1838"
    assert reasons([*cells, full]) == [expected] * 3 + [None]


def test_seeds_trained_on_other_data_are_set_aside(make_run: MakeRun) -> None:
    cells = [make_run("A", seed, {"piqa": 0.5}, prepared_key=f"data-{seed > 43}") for seed in (42, 43, 44)]
    expected = "not comparable: prepared data data-True, the row has data-False"
    assert reasons(cells) == [None, None, expected]


def test_a_row_that_mixes_more_than_seeds_is_refused(make_run: MakeRun) -> None:
    cells = [
        make_run("LoRA", 42, {"piqa": 0.5}),
        make_run("LoRA", 43, {"piqa": 0.5}, training={"learning_rate": 0.001}),
    ]
    with pytest.raises(UserError, match=r"row 'LoRA' would mix runs .* differ in training\.learning_rate$"):
        collect(cells)


def test_a_run_is_counted_once(make_run: MakeRun) -> None:
    cell = make_run("LoRA", 42, {"piqa": 0.5})
    with pytest.raises(UserError, match="row 'LoRA' counts a run twice"):
        collect([cell, Cell("LoRA", 43, cell.folder, cell.tasks)])
    other = make_run("LoRA", 43, {"piqa": 0.5})
    with pytest.raises(UserError, match="counts a run twice"):
        collect([cell, Cell("LoRA", 42, other.folder, other.tasks)])
    with pytest.raises(UserError, match="has seed 43, but row 'LoRA' expects seed 44"):
        collect([cell, Cell("LoRA", 44, other.folder, other.tasks)])


def test_a_run_is_counted_once_before_it_has_started(tmp_path: Path) -> None:
    planned = Cell("LoRA", 42, RunFolder(tmp_path / "planned"), ("piqa",))
    with pytest.raises(UserError, match="row 'LoRA' counts a run twice"):
        collect([planned, Cell("LoRA", 43, planned.folder, planned.tasks)])
    with pytest.raises(UserError, match="row 'LoRA' counts a run twice"):
        collect([planned, Cell("LoRA", 42, RunFolder(tmp_path / "other"), planned.tasks)])


def test_separate_runs_for_separate_tasks_make_one_row(make_run: MakeRun) -> None:
    cells = [
        make_run("LoRA", 42, {"piqa": 0.5}),
        make_run("LoRA", 42, {"arc": 0.5}, training={"epochs": 5}),
    ]
    assert reasons(cells) == [None, None]


def test_bare_folders_are_grouped_by_everything_but_the_seed(make_run: MakeRun) -> None:
    cells = [
        make_run("?", 42, {"piqa": 0.5}),
        make_run("?", 42, {"piqa": 0.5}, training={"learning_rate": 0.001}),
        make_run("?", 43, {"piqa": 0.5}),
        make_run("?", 42, {"piqa": 0.5}, method="bitune"),
        make_run("?", None, {"piqa": 0.5}),
    ]
    assert [(cell.row, cell.seed, cell.tasks) for cell in cells_of([cell.folder for cell in cells])] == [
        ("pretrained", None, ("piqa",)),
        ("causal (lora), learning_rate 0.0003", 42, ("piqa",)),
        ("causal (lora), learning_rate 0.0003", 43, ("piqa",)),
        ("causal (lora), learning_rate 0.001", 42, ("piqa",)),
        ("bitune (lora)", 42, ("piqa",)),
    ]


def test_labels_of_bare_folders_are_readable(make_run: MakeRun) -> None:
    sources = [[{"path": "data/a.jsonl"}], [{"path": "data/b.jsonl", "limit": 8}]]
    cells = [make_run("?", 42, {"piqa": 0.5}, data={"sources": source}) for source in sources]
    cells.append(make_run("?", 42, {"piqa": 0.5}, data={"sources": sources[0]}, training={"betas": [0.8, 0.999]}))
    assert [cell.row for cell in cells_of([cell.folder for cell in cells])] == [
        "causal (lora), limit none, path a.jsonl, betas.1 0.9",
        "causal (lora), limit 8, path b.jsonl, betas.1 0.9",
        "causal (lora), limit none, path a.jsonl, betas.1 0.8",
    ]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        cells_of([RunFolder(tmp_path)])


def test_two_damaged_folders_of_one_name_are_two_rows(make_run: MakeRun, tmp_path: Path) -> None:
    whole = make_run("A", 42, {"piqa": 0.5})
    folders = [RunFolder(tmp_path / name / "run") for name in ("first", "second")]
    for folder in folders:
        folder.root.mkdir(parents=True)
        folder.config.write_text("seed: [")
    table = build_table(cells_of([whole.folder, *folders]), "T")
    assert [row.name for row in table.rows[1:]] == [str(folder.root) for folder in folders]
