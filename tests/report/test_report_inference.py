"""Inference times: measured with a real model, shown among the costs, and never beside those of other lengths."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.errors import UserError
from pipeline.inference import measure_inference, median_seconds
from pipeline.model import build_model
from pipeline.model.config import MethodConfig, ModelConfig, TuningConfig
from pipeline.report import Cell, Layout, build_table
from pipeline.report.table import cost_table

MakeRun = Callable[..., Cell]
STORIES = Path(__file__).parents[1] / "fixtures" / "stories260K"
TIMES = Layout(columns={}, cost=("prefill", "generation"), average=None)


def trained(make_run: MakeRun) -> Cell:
    cell = make_run("Bitune", 42, {"piqa": 0.5}, method="bitune")
    config = ModelConfig(name=str(STORIES), precision="fp32")
    model = build_model(config, MethodConfig.model_validate("bitune"), TuningConfig(kind="lora"), seed=1)
    model.save_pretrained(cell.folder.model)
    return cell


@pytest.mark.slow
def test_a_real_model_is_timed_and_reported(make_run: MakeRun) -> None:
    cell = trained(make_run)
    command = ["time", str(cell.folder.root), "--prompt-tokens", "40", "--new-tokens", "8", "--rounds", "1"]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0 and "prefill" in done.output
    found = json.loads(cell.folder.inference.read_text())
    assert (found["prompt_tokens"], found["new_tokens"], found["rounds"]) == (40, 8, 1)
    assert found["prefill_seconds"] > 0 and found["generation_seconds"] > 0

    table = build_table([cell], "T", layout=TIMES)
    assert [entry.summary.mean for entry in table.rows[0].entries if entry.summary] == [
        found["prefill_seconds"],
        found["generation_seconds"],
    ]
    assert "One prompt has 40 tokens, its answer 8." in table.caption
    with pytest.raises(UserError, match=r"--prompt-tokens and --new-tokens make 5000 tokens, the model reads \d+"):
        measure_inference(cell.folder, 4000, 1000)


def test_the_first_round_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0, 100, 100, 101, 101, 104, 104, 106])  # rounds of 100, 1, 3 and 2 seconds
    monkeypatch.setattr("pipeline.inference.time.perf_counter", lambda: next(clock))
    calls: list[int] = []
    assert median_seconds(lambda: calls.append(1), rounds=3) == 2
    assert len(calls) == 4


def test_times_that_cannot_be_compared_are_set_aside(make_run: MakeRun) -> None:
    times = {"prefill_seconds": 0.5, "generation_seconds": 8.0}
    cells = [
        make_run("A", 42, {"piqa": 0.5}, inference=times),
        make_run("A", 43, {"piqa": 0.5}, inference={**times, "prefill_seconds": 0.7}),
        make_run("Short", 42, {"piqa": 0.5}, method="bitune", inference={**times, "prompt_tokens": 100}),
        make_run("Other", 42, {"piqa": 0.5}, method="no_mixing", inference={**times, "signature": "x"}),
        make_run("None", 42, {"piqa": 0.5}, method="only_causal"),
        make_run("Broken", 42, {"piqa": 0.5}, method="anti_causal", inference={"generation_seconds": float("nan")}),
    ]
    table = build_table(cells, "T", layout=TIMES)
    assert [row.entries[0].value for row in table.rows] == ["0.600", "-", "-", "-", "-"]
    assert [row.entries[0].missing[0].reason for row in table.rows[1:]] == [
        "not comparable: prompt tokens 100, the column has 2000",
        "measured with another configuration (signature x)",
        "not measured: dualtune time RUN",
        "inference.json has no number for prefill s",
    ]


def test_the_page_has_the_columns_where_something_was_measured(make_run: MakeRun) -> None:
    cells = [make_run("A", 42, {"piqa": 0.5}), make_run("B", 42, {"piqa": 0.5}, method="bitune")]
    without = cost_table(cells, Layout())
    times = {"prefill_seconds": 0.5, "generation_seconds": 8.0}
    cells[0] = make_run("A", 42, {"piqa": 0.5}, inference=times)
    found = cost_table(cells, Layout())
    assert without and [column.name for column in without.columns][-1] == "trained M"
    assert found and [column.name for column in found.columns][-2:] == ["prefill s", "generation s"]
    assert found.rows[0].entries[-1].value == "8.00"


def test_a_folder_without_a_model(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no trained model"):
        measure_inference(make_run("P", None, {"piqa": 0.5}).folder, 10, 10)
