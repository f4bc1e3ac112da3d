"""From a grid file to cells, and from cells to a plan."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from launch_inputs import tiny_grid, write_grid

from launch.grid import load_grid
from launch.plan import plan, summary
from pipeline.config import signature
from pipeline.errors import UserError

ROWS: dict[str, dict[str, Any]] = {
    "Pretrained": {"tuning": "none"},
    "LoRA": {"method": "causal"},
    "Bitune": {"method": "bitune"},
}


def test_rows_times_seeds_but_a_pretrained_model_once(tmp_path: Path) -> None:
    grid = load_grid(write_grid(tmp_path, {**tiny_grid(ROWS), "seeds": [42, 43]}))
    assert [(cell.row, cell.seed) for cell in grid.cells] == [
        ("Pretrained", None), ("LoRA", 42), ("LoRA", 43), ("Bitune", 42), ("Bitune", 43)]  # fmt: skip
    assert [cell.config.method.name for cell in grid.cells] == ["causal"] * 3 + ["bitune"] * 2
    assert all(cell.config.tuning.rank == 2 for cell in grid.cells)


def test_a_run_is_named_by_what_it_is(tmp_path: Path) -> None:
    first = load_grid(write_grid(tmp_path, tiny_grid({"LoRA": {"method": "causal"}})))
    renamed = tiny_grid({"new": {"method": "bitune"}, "plain": {"method": "causal"}})
    second = load_grid(write_grid(tmp_path, {**renamed, "name": "other"}))
    assert second.cells[1].folder == first.cells[0].folder
    assert first.cells[0].folder.root.name == f"stories260K-causal-lora-seed42-{signature(first.cells[0].config)}"


def test_overrides_change_every_run_or_the_grid(tmp_path: Path) -> None:
    path = write_grid(tmp_path, {**tiny_grid(ROWS), "baseline": "LoRA"})
    grid = load_grid(path, ["training.epochs=3", "seeds=[1,2,3]", "name=wide", "baseline=Bitune"])
    assert (grid.name, grid.baseline, len(grid.cells)) == ("wide", "Bitune", 7)
    assert {cell.config.training.epochs for cell in grid.cells} == {3.0}


def test_the_seed_of_a_grid_is_not_overridden_silently(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"seeds=\[42,43\]"):
        load_grid(write_grid(tmp_path, tiny_grid(ROWS)), ["seed=7"])


def test_a_run_configuration_is_a_grid_of_one(tmp_path: Path) -> None:
    config = tiny_grid({})["config"]
    grid = load_grid(write_grid(tmp_path, {"name": "one", "seed": 7, **config}))
    assert [(cell.row, cell.seed) for cell in grid.cells] == [("one", 7)]


def test_base_files_are_relative_to_the_grid(tmp_path: Path) -> None:
    grid = tiny_grid({"LoRA": {}})
    (tmp_path / "shared.yaml").write_text("training: {epochs: 9}\n", encoding="utf-8")
    cells = load_grid(write_grid(tmp_path, {**grid, "base": "shared.yaml"})).cells
    assert (cells[0].config.training.epochs, cells[0].config.training.batch_size) == (9.0, 4)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rowz": {}}, "rowz"),
        ({"rows": {"A": {"method": "bitun"}}}, "bitun"),
        ({"rows": {"A": {"trainig": {}}}}, "trainig"),
        ({"rows": {}}, "rows"),
        ({"rows": {"A": {}, "B": {"method": "causal"}}}, "'A' and 'B'"),
        ({"baseline": "C"}, "'C'"),
        ({"seeds": [1, 1]}, "twice"),
        ({"seeds": ["x"]}, "seeds.0"),
        ({"rows": {"A": {"name": "x"}}}, "name"),
        ({"rows": {"A": {"seed": 1}}}, "seed"),
        ({"name": "a/b"}, "a/b"),
        ({"base": "absent.yaml"}, "absent.yaml"),
    ],
)
def test_a_faulty_grid_is_one_sentence_that_names_the_culprit(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    path = write_grid(tmp_path, {**tiny_grid(ROWS), **change})
    with pytest.raises(UserError) as caught:
        load_grid(path)
    assert named in str(caught.value)
    assert "grid.yaml" in str(caught.value) or "absent.yaml" in str(caught.value)


def test_the_plan_of_an_untouched_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plans = plan(load_grid(write_grid(tmp_path, tiny_grid(ROWS))))
    assert [planned.missing for planned in plans] == [("evaluate",), *[("prepare", "train", "evaluate")] * 2]
    assert summary(plans) == "3 runs: 0 of 7 stages complete, 7 to do"
    assert not (tmp_path / "runs").exists()


def test_published_numbers_need_a_column(tmp_path: Path) -> None:
    values = {
        "name": "g", "rows": {"a": {"method": "causal"}}, "metrics": {"csqa_full": ["acc"], "logiqa": ["acc"]},
        "config": {"model": "m", "tuning": "none", "evaluation": {"tasks": ["csqa_full"]}},
        "reference": {"Paper": {"csqa_full:acc": 1, "logiqa:acc": 2}},
    }  # fmt: skip
    path = tmp_path / "grid.yaml"
    path.write_text(json.dumps(values), encoding="utf-8")
    assert load_grid(path).columns(["csqa_full"]) == ("csqa_full:acc",)
    path.write_text(json.dumps({**values, "reference": {"Paper": {"csqa_full": 1}}}), encoding="utf-8")
    with pytest.raises(
        UserError, match=re.escape("reference.Paper.csqa_full: no such column; there are csqa_full:acc")
    ):
        load_grid(path)
