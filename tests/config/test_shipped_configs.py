"""Every configuration that is shipped loads, and says what the paper says."""

import re
from pathlib import Path

import pytest

from launch.cells import Grid, GridCell
from launch.grid import load_grid
from launch.tables import source_of_grids
from pipeline.config import RunConfig, load_config, read_yaml
from pipeline.evaluate.catalogue import TASKS, template_of
from pipeline.report.arrangement import arranged
from pipeline.report.layout import load_layout

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
FILES = {
    str(path.relative_to(CONFIGS)): path for path in sorted(CONFIGS.rglob("*.yaml")) if path.parent.name != "clusters"
}  # profiles, not runs
PARTS = [
    name
    for name in FILES
    if name in ("bitune/base.yaml", "small/base.yaml", "small/instruction.yaml", "local_data.yaml")
    or "/models/" in name
    or name.startswith("data/")  # tests/prepare/test_data_configs.py reads these
]
WHOLE = [name for name in FILES if name not in PARTS]

LEARNING_RATES = {  # Table 11: UltraFeedback, and the downstream tasks
    "gemma_2b": (3e-4, 1e-3), "gemma_7b": (3e-4, 3e-4), "llama2_7b": (3e-4, 1e-3),
    "llama3_8b": (3e-4, 1e-3), "phi_2": (3e-4, 1e-3),
}  # fmt: skip
LEFT_OUT = {"table6": ("VeRA", "Bitune (VeRA)"), "table16": ("Segment",)}
"""Rows of ours that the paper's tables don't have."""
EPOCHS = {"ultrafeedback": 3, "piqa": 1, "arc": 5, "csqa": 1, "siqa": 1, "gsm8k": 1}  # Table 10


def with_bases(folder: Path, *names: str) -> RunConfig:
    """A configuration with nothing of its own."""
    path = folder / "run.yaml"
    path.write_text(f"base: {[str(FILES[f'bitune/{name}.yaml']) for name in names]}\n", encoding="utf-8")
    return load_config(path)


def runs_of(grid: Grid) -> list[GridCell]:
    """What the table has, also of a grid that has still to choose."""
    return [one if isinstance(one, GridCell) else one.cell for one in grid.shown]


@pytest.mark.parametrize("name", WHOLE)
def test_it_loads(name: str) -> None:
    assert load_grid(FILES[name]).cells


def test_the_parts_load_under_a_setting(tmp_path: Path) -> None:
    models = [*LEARNING_RATES, "codestral_22b"]
    assert sorted(name for name in PARTS if not name.startswith("data/")) == sorted(
        [
            "bitune/base.yaml",
            "local_data.yaml",
            "small/base.yaml",
            "small/instruction.yaml",
            *(f"bitune/models/{m}.yaml" for m in models),
        ]
    )
    for name in models:
        assert with_bases(tmp_path, "csqa", f"models/{name}").model.name.count("/") == 1


@pytest.mark.parametrize("model", LEARNING_RATES)
def test_learning_rates_are_those_of_table_11(tmp_path: Path, model: str) -> None:
    instruction, downstream = LEARNING_RATES[model]
    for setting in EPOCHS:
        expected = instruction if setting == "ultrafeedback" else downstream
        assert with_bases(tmp_path, setting, f"models/{model}").training.learning_rate == expected


@pytest.mark.parametrize("setting", EPOCHS)
def test_settings_are_those_of_the_paper(setting: str) -> None:
    config = load_config(FILES[f"bitune/{setting}.yaml"])
    assert config.training.epochs == EPOCHS[setting]
    assert (config.training.batch_size, config.training.warmup_ratio, config.training.weight_decay) == (10, 0.1, 0)
    assert (config.tuning.kind, config.tuning.rank, config.tuning.alpha) == ("lora", 8, 1)
    assert (config.method.name, config.method.theta_init) == ("bitune", 0.01)


@pytest.mark.parametrize("task", ["piqa", "arc", "csqa", "gsm8k"])
def test_chains_of_thought_are_trained_as_they_are_scored(task: str) -> None:
    for name in (f"bitune/{task}_cot", "bitune/table3", *(["small/gsm8k_cot"] if task == "gsm8k" else [])):
        cells = runs_of(load_grid(FILES[f"{name}.yaml"]))
        ours = [cell.config for cell in cells if cell.values.get("task", task.upper()) == task.upper()]
        assert ours
        for config in ours:
            assert config.data is not None
            assert (config.evaluation.tasks, config.data.template) == ((f"{task}_cot",), "cot")
            assert (template_of(f"{task}_cot"), config.training.epochs) == ("cot", EPOCHS[task])


def test_the_tables_are_those_of_the_paper() -> None:
    """Table 11's learning rates, table 10's epochs and the number of runs, three seeds each."""
    grids = {name: load_grid(FILES[f"bitune/{name}.yaml"]) for name in ("table1", "table2", "table3")}
    assert [len(runs_of(grid)) for grid in grids.values()] == [5 * (1 + 3 * 3), 5 * 5 * 3 * 3, 2 * 4 * 3 * 3]
    models = {"Gemma-2B": "gemma_2b", "Gemma-7B": "gemma_7b", "Llama2-7B": "llama2_7b",
              "Llama3-8B": "llama3_8b", "Phi-2": "phi_2"}  # fmt: skip
    for cell in grids["table2"].cells:
        training = cell.config.training
        assert training.epochs == EPOCHS[cell.values["task"].lower()]
        assert training.learning_rate == LEARNING_RATES[models[cell.block]][1]
        assert cell.config.evaluation.tasks == (f"{cell.values['task'].lower()}_full",)
    assert {cell.row for grid in grids.values() for cell in runs_of(grid)} == {"Pretrained", "LoRA", "LoRA16", "Bitune"}


def test_instruction_tuning_is_on_what_gpt_4_has_answered() -> None:
    cells = runs_of(load_grid(FILES["bitune/table1.yaml"]))
    sources = [source for cell in cells if cell.config.data for source in cell.config.data.sources]
    assert {(one.path, one.answered_by) for one in sources} == {("openbmb/UltraFeedback", "gpt-4")}


@pytest.mark.parametrize("table", ["table1", "table2", "table3", "table5", "table6", "table8", "table15", "table16"])
def test_every_run_of_a_table_has_a_place_in_its_layout(table: str) -> None:
    (name,) = (name for name in WHOLE if re.fullmatch(rf"bitune/{table}(_\w+)?\.yaml", name))
    cells = source_of_grids([load_grid(FILES[name])]).cells
    layout = load_layout(table)
    placed, left_out = arranged(cells, layout)
    assert left_out == LEFT_OUT.get(table, ())
    assert {(cell.group, cell.row) for cell in placed} == {
        (group, row) for group, rows in layout.reference.items() for row in rows
    }


def test_gsm8k_is_scored_with_a_larger_model_too() -> None:
    cells = runs_of(load_grid(FILES["bitune/table17_codestral.yaml"]))
    assert {(cell.config.evaluation.tasks, cell.config.training.epochs) for cell in cells} == {(("gsm8k_full",), 1)}
    assert cells[0].config.model.name == "mistralai/Codestral-22B-v0.1"


def test_learning_rates_that_the_paper_does_not_state_are_chosen_by_its_protocol(tmp_path: Path) -> None:
    """On the baseline, over Table 11's four values, then used for every method; here by rows that are held out."""
    chosen = {"table3": 4 * 2, "table7_full": 1, "table16_alpaca": 2, "table17_codestral": 1}
    for name in (name for name in FILES if re.match(r"bitune/table", name)):
        grid = load_grid(FILES[name], [f"paths.runs={tmp_path}"])
        assert len(grid.choices) == chosen.get(Path(name).stem, 0), name
        for choice in grid.choices:
            rates = [cells[0].config.training.learning_rate for cells in choice.candidates.values()]
            full = choice.runs[0].config.tuning.kind == "full"
            assert rates == ([1e-6, 3e-6, 1e-5, 3e-5] if full else [1e-4, 3e-4, 1e-3, 3e-3])
            assert (choice.metric, choice.mode) == ("validation_loss", "min")
            assert {cell.config.method.name for cell in choice.runs} == {"causal"}
            waiting = {one.cell.row for one in grid.waiting if one.choice == choice.name}
            assert waiting == {cell.row for cell in runs_of(grid)}


@pytest.mark.parametrize("table", ["table1", "table2", "table3", "table5", "table6", "table7", "table8", "table15",
                                   "table16", "table17"])  # fmt: skip
def test_every_table_has_a_small_twin_with_its_rows(table: str) -> None:
    """On a model and data that come along: it runs offline."""
    (original,) = (name for name in FILES if re.fullmatch(rf"bitune/{table}(_\w+)?\.yaml", name))
    twin, full = load_grid(FILES[f"small/{table}.yaml"]), load_grid(FILES[original])
    assert {cell.row for cell in runs_of(twin)} == {cell.row for cell in runs_of(full)}
    assert bool(twin.choices) == bool(full.choices)
    cells = source_of_grids([twin]).cells
    _, left_out = arranged(cells, load_layout(table))
    assert left_out == LEFT_OUT.get(table, ())
    for cell in [*twin.cells, *runs_of(twin)]:
        config = cell.config
        sources = [source.path for source in config.data.sources] if config.data else []
        files = [file for task in config.evaluation.tasks for file in config.evaluation.data[task].files.values()]
        assert config.model.name == "models/SmolLM2-135M-Instruct" or (ROOT / config.model.name).exists()
        assert all((ROOT / path).exists() for path in [*sources, *files])
        assert (config.training.max_steps or 99) <= 10 and (config.evaluation.limit or 99) <= 10


def test_local_data_is_mapped_for_every_task_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"base: [{FILES['local_data.yaml']}, {FILES['bitune/csqa.yaml']}]\n", encoding="utf-8")
    config = load_config(path)
    assert set(TASKS) <= set(config.evaluation.data)
    assert config.evaluation.tasks == ("csqa_full",)


def test_the_ablations_are_the_presets() -> None:
    def methods(grid: Grid) -> dict[str, str]:
        return {cell.row: cell.config.method.name for cell in grid.cells}

    assert methods(load_grid(FILES["bitune/table5_components.yaml"])) == {
        "LoRA": "causal", "Naive Bidir.": "naive_bidirectional", "No Mixing": "no_mixing",
        "Only Causal": "only_causal", "Shared Weights": "shared_weights", "Bitune": "bitune",
    }  # fmt: skip
    thetas = load_grid(FILES["bitune/table15_theta.yaml"]).cells
    assert sorted({cell.config.method.theta_init for cell in thetas}) == [0.001, 0.01, 0.1]


def test_local_files_of_shipped_configurations_exist() -> None:
    for name in WHOLE:
        for cell in runs_of(load_grid(FILES[name])):
            sources = [source.path for source in cell.config.data.sources] if cell.config.data else []
            local = [file for files in cell.config.evaluation.data.values() for file in files.files.values()]
            for path in [*sources, *local]:
                assert not path.startswith("examples/") or (ROOT / path).is_file(), f"{name}: {path}"


def test_the_demo_is_as_large_as_promised() -> None:
    grid = load_grid(FILES["quickstart.yaml"])
    config = grid.cells[-1].config
    assert {cell.seed for cell in grid.cells} == {None, 42, 43}
    assert config.data is not None and (config.data.sources[0].limit or 0) >= 256
    assert len(config.evaluation.tasks) == 4 and (config.evaluation.limit or 0) >= 60
    assert len(read_yaml(FILES["quickstart.yaml"])["rows"]) == 3
