"""Grids that choose values: candidates, who waits, the choice and what it is kept with."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from launch_inputs import dualtune, tiny_grid, write_grid
from rich.console import Console

from launch.cells import Grid, GridCell
from launch.choice import best_of, resolve
from launch.grid import load_grid
from launch.plan import plan, summary, table
from launch.tables import source_of_grids
from pipeline.config import signature
from pipeline.errors import UserError
from pipeline.files import write_text

RATE = "training.learning_rate"
RATES = [1e-4, 3e-4, 1e-3]
ROWS: dict[str, dict[str, Any]] = {
    "Pretrained": {"tuning": "none"},
    "LoRA": {"method": "causal"},
    "Bitune": {"method": "bitune"},
    "Fixed": {"method": "bitune", "training": {"learning_rate": 5e-3}},
}
TUNE = {"at": {"row": "LoRA"}, "over": {RATE: RATES}}


def load(folder: Path, *overrides: str, tune: dict[str, Any] | None = None, **changes: Any) -> Grid:
    grid = tiny_grid(ROWS, data={"validation_fraction": 0.25}, paths={"runs": str(folder / "runs")})
    return load_grid(write_grid(folder, {**grid, "tune": TUNE | (tune or {}), **changes}), overrides)


def refused(folder: Path, *overrides: str, **changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(folder, *overrides, **changes)
    return str(caught.value)


def trained(cell: GridCell, loss: float | None) -> None:
    """A run folder as a finished training leaves it."""
    cell.folder.create(cell.config)
    cell.folder.model.mkdir(exist_ok=True)
    (cell.folder.model / "weights").write_bytes(b"1")
    result: dict[str, Any] = {"signature": signature(cell.config), "prepared_key": "k", "steps": 1, "final_loss": 1.0}
    cell.folder.train_result.parent.mkdir(exist_ok=True)
    result |= {"model_files": {"weights": 1}, "validation_loss": loss}
    write_text(cell.folder.train_result, json.dumps(result))


def candidates(grid: Grid) -> list[GridCell]:
    return [cell for cell in grid.cells if cell.tunes]


def measured(grid: Grid, losses: list[float | None]) -> Grid:
    for cell, loss in zip(candidates(grid), losses, strict=True):
        trained(cell, loss)
    return grid


def quiet(_words: str) -> None:
    return


def test_what_depends_on_the_choice_waits_for_it(tmp_path: Path) -> None:
    grid = load(tmp_path, seeds=[42, 43])
    assert [str(cell) for cell in candidates(grid)] == [
        f"LoRA, learning_rate {rate}, seed 42" for rate in ("0.0001", "0.0003", "0.001")]  # fmt: skip
    assert [str(cell) for cell in grid.cells[3:]] == ["Pretrained", "Fixed, seed 42", "Fixed, seed 43"]
    assert [str(one.cell) for one in grid.waiting] == [
        f"{row}, seed {seed}" for row in ("LoRA", "Bitune") for seed in (42, 43)]  # fmt: skip
    assert {one.words for one in grid.waiting} == {"waits for the choice of learning_rate"}
    assert all(not cell.config.evaluation.tasks for cell in candidates(grid))  # the loss alone decides
    assert grid.tasks == ("csqa_full",)


def test_the_best_is_chosen_and_written_with_its_numbers(tmp_path: Path) -> None:
    heard: list[str] = []
    resolved, problems = resolve(measured(load(tmp_path), [2.0, 1.0, 3.0]), heard.append)
    assert not problems and not resolved.waiting
    assert [str(cell) for cell in resolved.cells] == [
        "Pretrained", "LoRA, seed 42", "Bitune, seed 42", "Fixed, seed 42"]  # fmt: skip
    assert [c.config.training.learning_rate for c in resolved.cells[1:]] == [3e-4, 3e-4, 5e-3]
    assert all(cell.config.evaluation.tasks == ("csqa_full",) for cell in resolved.cells)
    (file,) = tmp_path.glob("runs/reports/tiny/choices/learning_rate-*.json")
    record = json.loads(file.read_text(encoding="utf-8"))
    assert record["chosen"] == "learning_rate 0.0003" and record["tied"] == []
    assert [found["mean"] for found in record["candidates"].values()] == [2.0, 1.0, 3.0]
    assert resolved.cells[1].folder.root.name in record["candidates"]["learning_rate 0.0003"]["runs"]
    assert "learning_rate 0.0003" in heard[0] and str(file) in heard[0]
    again = load(tmp_path)
    assert again.cells == resolved.cells and not again.waiting


def test_ties_are_named(tmp_path: Path) -> None:
    heard: list[str] = []
    resolved, _ = resolve(measured(load(tmp_path), [2.0, 1.0, 1.0]), heard.append)
    assert resolved.cells[1].config.training.learning_rate == 3e-4
    assert "the first of 2 that are equal (learning_rate 0.001)" in heard[0]
    assert best_of({"a": 1.0, "b": 3.0, "c": 3.0}, "max") == ["b", "c"]


@pytest.mark.parametrize("loss, words", [(None, "has no validation_loss"), (float("nan"), "validation_loss is nan")])
def test_a_candidate_without_a_number_is_named(tmp_path: Path, loss: float | None, words: str) -> None:
    resolved, (problem,) = resolve(measured(load(tmp_path), [2.0, loss, 3.0]), quiet)
    assert f"candidate LoRA, learning_rate 0.0003, seed 42: {words}" in problem
    assert len(resolved.waiting) == 2 and not list(tmp_path.glob("runs/reports/*/choices/*"))


def test_a_candidate_that_is_not_complete_is_named(tmp_path: Path) -> None:
    grid = load(tmp_path)
    trained(candidates(grid)[0], 1.0)
    _, (problem,) = resolve(grid, quiet)
    assert "no choice of learning_rate: candidate LoRA, learning_rate 0.0003, seed 42: prepare: to do" in problem


def test_a_choice_holds_until_what_it_came_from_changes(tmp_path: Path) -> None:
    first, *rest = candidates(measured(load(tmp_path), [1.0, 2.0, 3.0]))
    resolve(load(tmp_path), quiet)
    for cell in rest:
        cell.folder.root.rename(tmp_path / cell.folder.root.name)
    assert load(tmp_path).cells[1].config.training.learning_rate == 1e-4
    trained(first, 5.0)
    assert len(load(tmp_path).waiting) == 2
    trained(first, 1.0)
    assert not load(tmp_path).waiting
    assert load(tmp_path, tune={"seeds": [1]}).waiting  # other candidates


def test_one_choice_for_each_value_of_an_axis(tmp_path: Path) -> None:
    axes = {"model": {"A": {"tuning.rank": 3}, "B": {"tuning.rank": 5}}}
    grid = load(tmp_path, axes=axes, tune={"by": ["model"], "seeds": [1, 2]})
    assert [choice.name for choice in grid.choices] == ["learning_rate for A", "learning_rate for B"]
    assert len(candidates(grid)) == 2 * 3 * 2
    for cell in candidates(grid)[:6]:
        trained(cell, {1e-4: 3.0, 3e-4: 2.0, 1e-3: 1.0}[cell.config.training.learning_rate] + cell.config.seed)
    resolved, problems = resolve(grid, quiet)
    assert len(problems) == 1 and "learning_rate for B" in problems[0]
    assert {one.choice for one in resolved.waiting} == {"learning_rate for B"}
    assert len(candidates(resolved)) == 6
    lora = next(cell for cell in resolved.cells if cell.label == "LoRA, A")
    assert lora.config.training.learning_rate == 1e-3
    names = [str(one if isinstance(one, GridCell) else one.cell) for one in resolved.shown]
    assert names == [f"{row}, {model}" + ("" if row == "Pretrained" else ", seed 42")
                     for row in ROWS for model in "AB"]  # fmt: skip


def test_the_plan_and_the_table_show_what_waits(tmp_path: Path) -> None:
    grid = load(tmp_path)
    console = Console(width=250, record=True, file=StringIO())
    console.print(table(plan(grid), grid.waiting))
    text = console.export_text()
    assert "candidate: LoRA, learning_rate 0.0001" in text
    assert text.count("waits for the choice of learning_rate") == 2
    assert summary(plan(grid), grid.waiting).endswith("2 more wait for the choice of learning_rate")
    cells = source_of_grids([grid]).cells
    assert [cell.row for cell in cells] == list(ROWS)
    assert [cell.reason for cell in cells] == [None, *["waits for the choice of learning_rate"] * 2, None]


def test_the_command_line_decides(tmp_path: Path) -> None:
    grid = load(tmp_path, f"{RATE}=7e-4", rows={name: ROWS[name] for name in ("Pretrained", "LoRA", "Bitune")})
    assert not grid.choices and grid.cells[2].config.training.learning_rate == 7e-4


def test_several_keys_give_every_combination(tmp_path: Path) -> None:
    grid = load(tmp_path, tune={"over": {RATE: [1e-4, 1e-3], "training.weight_decay": {"none": 0, "some": 0.1}}})
    assert list(grid.choices[0].candidates) == [
        "learning_rate 0.0001, none", "learning_rate 0.0001, some",
        "learning_rate 0.001, none", "learning_rate 0.001, some"]  # fmt: skip
    assert grid.choices[0].name == "learning_rate and weight_decay"


@pytest.mark.parametrize(
    "tune, words",
    [
        ({"at": {"row": "LORA16"}}, "tune.at.row = 'LORA16': there is no such row"),
        ({"at": {"seed": 1}}, "the seeds of the baseline are tune.seeds"),
        ({"at": {"row": ["LoRA", "Bitune"]}}, "it names LoRA; Bitune"),
        ({"at": {"row": "Pretrained"}}, "Pretrained is the same run whatever is chosen"),
        ({"at": {"row": "Fixed"}}, "Fixed is the same run whatever is chosen"),
        ({"over": {RATE: [1e-4]}}, "alone leaves no choice"),
        ({"over": {"training.learning_rat": [1, 2]}}, "training.learning_rat"),
        ({"over": {"evaluation.add_bos": [False, True]}, "metric": "csqa_full", "mode": "max"},
         "tune.over: no run is another one by another evaluation.add_bos: nothing to choose"),
        ({"by": ["rows"]}, "tune.by: there is no axis 'rows', did you mean 'row'?"),
        ({"metric": "csqa_full"}, "mode is missing"),
        ({"metrics": "csqa_full"}, "tune.metrics"),
    ],
)  # fmt: skip
def test_a_choice_without_sense_is_refused(tmp_path: Path, tune: dict[str, Any], words: str) -> None:
    assert words in refused(tmp_path, tune=tune)


def test_the_validation_loss_needs_rows_that_are_held_out(tmp_path: Path) -> None:
    assert "set data.validation_fraction" in refused(tmp_path, "data.validation_fraction=0")
    scored = load(tmp_path, "data.validation_fraction=0", tune={"metric": "csqa_full:acc", "mode": "max"})
    assert all(cell.config.evaluation.tasks == ("csqa_full",) for cell in candidates(scored))


def test_a_run_that_one_choice_would_give_twice_is_refused(tmp_path: Path) -> None:
    extra = [{"row": "Bitune", RATE: 1e-3}]
    assert "describe the same run if learning_rate 0.001 is chosen" in refused(tmp_path, cells=extra)


@pytest.mark.slow
def test_one_command_runs_candidates_choice_and_table(tmp_path: Path) -> None:
    config = {"data": {"validation_fraction": 0.25}, "training": {"max_steps": 1}}
    write_grid(tmp_path, {**tiny_grid({row: ROWS[row] for row in ("LoRA", "Bitune")}, **config),
                          "tune": {"at": {"row": "LoRA"}, "over": {RATE: [1e-5, 1e-2]}}})  # fmt: skip
    first = dualtune("run", "grid.yaml", folder=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "choice of learning_rate: learning_rate 0.0" in first.stderr
    trainings = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/train/result.json")}
    assert len(trainings) == 3  # two candidates, one of which is the table's LoRA, and Bitune
    table = (tmp_path / "runs" / "reports" / "tiny" / "report.md").read_text(encoding="utf-8")
    assert "LoRA" in table and "Bitune" in table and "0.01" not in table
    again = dualtune("run", "grid.yaml", folder=tmp_path)
    assert again.returncode == 0 and "2 runs: all 6 stages are complete, nothing to compute" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in trainings} == trainings


@pytest.mark.slow
def test_a_candidate_that_fails_holds_up_who_waits_and_no_other(tmp_path: Path) -> None:
    rows = {"Pretrained": {"tuning": "none"}, "LoRA": {"method": "causal"}}
    sources = {"here": tiny_grid({})["config"]["data"], "torn": {"sources": [{"path": "torn.jsonl"}]}}
    over = {"data": {name: {"data": {**data, "validation_fraction": 0.25}} for name, data in sources.items()}}
    (tmp_path / "torn.jsonl").write_text("not JSON\n")
    write_grid(tmp_path, {**tiny_grid(rows, training={"max_steps": 1}), "tune": {"at": {"row": "LoRA"}, "over": over}})
    found = dualtune("run", "grid.yaml", folder=tmp_path)
    assert found.returncode == 1
    assert "no choice of data: candidate LoRA, torn, seed 42: prepare: " in found.stderr
    table = (tmp_path / "runs" / "reports" / "tiny" / "report.md").read_text(encoding="utf-8")
    assert "waits for the choice of data" in table
