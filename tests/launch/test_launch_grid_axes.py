"""Axes, presets, extra cells and exclusions of a grid."""

import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from launch_inputs import ROOT, tiny_grid, write_grid
from rich.console import Console

from launch.grid import Grid, load_grid
from launch.tables import source_of_grids, write_report
from pipeline.errors import UserError

ROWS: dict[str, dict[str, Any]] = {"LoRA": {"method": "causal"}, "Bitune": {"method": "bitune"}}
RATE = "training.learning_rate"
AXES: dict[str, Any] = {RATE: [1e-4, 3e-4], "tuning.rank": {"small": 8, "large": 16}}


def load(folder: Path, *overrides: str, **changes: Any) -> Grid:
    return load_grid(write_grid(folder, {**tiny_grid(ROWS), **changes}), overrides)


def refused(folder: Path, *overrides: str, **changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(folder, *overrides, **changes)
    return str(caught.value)


def test_rows_times_axes_times_seeds(tmp_path: Path) -> None:
    grid = load(tmp_path, axes=AXES, seeds=[1, 2])
    assert len(grid.cells) == len({cell.folder.root for cell in grid.cells}) == 2 * 2 * 2 * 2
    settings = [(c.config.method.name, c.config.training.learning_rate, c.config.tuning.rank) for c in grid.cells[::2]]
    assert settings == [(m, rate, rank) for m in ("causal", "bitune") for rate in (1e-4, 3e-4) for rank in (8, 16)]
    assert str(grid.cells[0]) == "LoRA, learning_rate 0.0001, small, seed 1"
    assert dict(grid.cells[0].values) == {"row": "LoRA", RATE: "0.0001", "tuning.rank": "small"}


def test_a_new_value_renames_nothing(tmp_path: Path) -> None:
    few = {cell.folder.root for cell in load(tmp_path, axes={RATE: [1e-4]}).cells}
    many = {cell.folder.root for cell in load(tmp_path, axes=AXES | {"tuning.rank": {"tiny": 2, "large": 16}}).cells}
    assert few < many


def test_the_last_layer_wins(tmp_path: Path) -> None:
    rows = {"LoRA": {}, "Own": {RATE: 7e-4}}
    grid = load(tmp_path, "tuning.rank=4", rows=rows, axes={"size": {"a": {RATE: 5e-4, "tuning": {"rank": 16}}}})
    assert [(c.config.training.learning_rate, c.config.tuning.rank) for c in grid.cells] == [(5e-4, 4), (7e-4, 4)]


def test_presets_are_used_by_rows_axes_cells_and_each_other(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text("training: {epochs: 9}\n", encoding="utf-8")
    presets = {"long": {"base": "long.yaml"}, "wide": {"use": "long", "tuning": {"rank": 16}}}
    grid = load(
        tmp_path, presets=presets, rows={"LoRA": {}, "Wide": "wide"}, axes={"duration": ["long"]},
        cells=[{"row": "LoRA", "use": "wide", "method": "bitune", "label": "Extra"}],
    )  # fmt: skip
    assert [cell.row for cell in grid.cells] == ["LoRA", "Wide", "Extra"]
    assert [(c.config.training.epochs, c.config.tuning.rank) for c in grid.cells] == [(9, 2), (9, 16), (9, 16)]


def test_cells_name_known_and_new_values(tmp_path: Path) -> None:
    cells = [{"row": "Bitune", RATE: 1e-3, "seeds": [5]}, {"row": "LoRA", RATE: 1e-4, "training.epochs": 3}]
    extra = load(tmp_path, axes={RATE: [1e-4]}, cells=cells).cells[2:]
    assert [str(cell) for cell in extra] == [
        "Bitune, learning_rate 0.001, seed 5", "LoRA, learning_rate 0.0001, epochs 3, seed 42"]  # fmt: skip
    assert [cell.config.training.learning_rate for cell in extra] == [1e-3, 1e-4]


def test_exclusions(tmp_path: Path) -> None:
    exclude = [{"row": "LoRA", "tuning.rank": ["small", "large"], RATE: 1e-4}, {"row": "Bitune", "seed": 2}]
    grid = load(tmp_path, axes=AXES, seeds=[1, 2], exclude=exclude)
    assert [cell.seed for cell in grid.cells] == [1, 2, 1, 2, 1, 1, 1, 1]
    assert all(cell.row != "LoRA" or cell.values[RATE] == "0.0003" for cell in grid.cells)


def test_blocks_and_columns_share_rows_of_the_table(tmp_path: Path) -> None:
    axes = {
        "model": {"A": {"tuning.rank": 3}, "B": {"tuning.rank": 5}},
        "task": {"one": {"evaluation": {"tasks": ["csqa_full"]}}, "two": {"evaluation.tasks": ["arc_full"], RATE: 1}},
    }
    grid = load(tmp_path, axes=axes, blocks="model", columns="task")
    assert [cell.row for cell in grid.cells] == ["LoRA", "LoRA", "Bitune", "Bitune"] * 2
    source = source_of_grids([grid])
    assert source.block == "model" and [cell.group for cell in source.cells] == ["A"] * 4 + ["B"] * 4


def test_blocks_are_headed_by_their_axis(tmp_path: Path) -> None:
    axes = {"tuning.rank": {"small": 3, "large": 5}}
    grid = load(tmp_path, f"paths.runs={tmp_path}", axes=axes, blocks="tuning.rank")
    table = write_report(source_of_grids([grid]), console=Console(file=StringIO()))
    assert table.headings[:2] == ["rank", "method"]
    assert [tuple(table.lead(row)) for row in table.rows] == [
        (size, row) for size in ("small", "large") for row in ("LoRA", "Bitune")]  # fmt: skip
    assert source_of_grids([grid, load(tmp_path, axes=axes)]).block == "model"


def test_a_grid_based_on_a_grid(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text(yaml.safe_dump({**tiny_grid(ROWS), "axes": AXES, "name": "p"}), "utf-8")
    child = {"name": "c", "base": "parent.yaml", "rows": {"LoRA": None}, "axes": {RATE: [1]}, "config": {"seed": None}}
    del child["config"]
    grid = load_grid(write_grid(tmp_path, child), ["axes.tuning.rank=[4]", "rows.Bitune.training.epochs=2"])
    assert (grid.name, [cell.row for cell in grid.cells]) == ("c", ["Bitune"])
    config = grid.cells[0].config
    assert (config.training.learning_rate, config.tuning.rank, config.training.epochs) == (1, 4, 2)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"axes": {"modle": ["a"]}}, "'modle' is no key of a run, so its values must hold keys or name presets"),
        ({"axes": {"training.lerning_rate": [1]}}, "did you mean 'learning_rate'?"),
        ({"axes": {RATE: []}}, "must be a list of values"),
        ({"axes": {RATE: [1, 1]}}, "names a value twice"),
        ({"axes": {"method": [{"name": "bitune"}]}}, "need labels"),
        ({"axes": {"seed": [1]}}, "seeds: [42, 43]"),
        ({"presets": {"long": {}}, "rows": {"A": "lnog"}}, "rows.A: there is no preset 'lnog', did you mean 'long'?"),
        ({"presets": {"a": {}}, "axes": {"x": ["a", "b"]}}, "axes.x.b: there is no preset 'b'"),
        ({"presets": {"a": {"use": "b"}, "b": {"use": "a"}}, "rows": {"A": "a"}}, "a -> b -> a"),
        ({"cells": [{"row": "Bitun"}]}, "there is no such row, did you mean 'Bitune'?"),
        ({"cells": [{"rwo": "Bitune"}]}, "'rwo' is neither an axis nor a key of a run, did you mean 'row'?"),
        ({"axes": AXES, "cells": [{"row": "LoRA", "tuning.rank": "smal"}]}, "did you mean 'small'?"),
        ({"cells": [{"row": "LoRA", "label": "again"}]}, "'LoRA' and 'again' describe the same run"),
        ({"cells": [{"row": "LoRA", "label": "LoRA", "training.epochs": 2}]}, "two runs are called 'LoRA, seed 42'"),
        ({"cells": [{"row": "LoRA", "seeds": "x"}]}, "cells.0.seeds = 'x'"),
        ({"exclude": [{"row": "LoRA", "seed": 7}]}, "exclude.0: {row: LoRA, seed: 7} matches no run"),
        ({"exclude": [{"rows": "LoRA"}]}, "there is no axis 'rows', did you mean 'row'?"),
        ({"exclude": [{"seed": 42}]}, "no run is left"),
        ({"blocks": "modl", "axes": {"model": ["a"]}}, "there is no axis 'modl', did you mean 'model'?"),
        ({"rows": {}}, "a grid needs rows, axes or cells"),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_a_suggestion(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    text = refused(tmp_path, **changes)
    assert expected in text and "grid.yaml" in text


def test_an_override_of_an_unknown_axis_is_refused(tmp_path: Path) -> None:
    assert f"did you mean '{RATE}'?" in refused(tmp_path, "axes.training.learning_rat=[1]", axes=AXES)


def test_the_grids_of_the_document_load(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "grids.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    sizes = []
    for block in blocks:
        (tmp_path / "grid.yaml").write_text(block, encoding="utf-8")
        sizes.append(len(load_grid(tmp_path / "grid.yaml", [f"paths.runs={tmp_path}"]).cells))
    assert sizes == [2 * (2 * 2 * 2 + 1 - 1), 3 * 2, 4 + 1 + 2]
