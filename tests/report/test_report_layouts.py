"""Every layout that is shipped: the paper's grids fit into it, and its table is the expected one, digit by digit."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.grid import load_grid
from launch.tables import source_of_grids
from pipeline.errors import UserError
from pipeline.report import Cell, Layout, build_table, load_layout
from pipeline.report.arrangement import arranged
from pipeline.report.latex import render_document
from pipeline.report.layout import shipped
from pipeline.report.markdown import render_markdown
from pipeline.report.table import cost_table

MakeRun = Callable[..., Cell]
GOLDEN = Path(__file__).parent / "golden"
GRIDS = Path("configs/bitune")
BEYOND_THE_PAPER = {"Segment", "VeRA", "Bitune (VeRA)"}
TABLES_OF = {"21": "1", "22": "2", "23": "5", "24": "6", "25": "15", "14": "1"}
"""Tables that show the runs of another one."""


def made_up(make_run: MakeRun, layout: Layout) -> list[Cell]:
    """Gemma-2B with two seeds and an unknown model with one.

    Row i (from 0), task j, seed k: 0.50 + 0.02 i + 0.001 j + 0.01 k. So by hand, in percent: the mean over two seeds
    is 50.5 + 2 i + 0.1 j, the standard deviation 1 / sqrt(2) = 0.71, the average over five tasks (mean j = 2) has
    50.7 + 2 i, over four (j = 1.5) 50.65 + 2 i, and each row is 2 i points above row 0; with one seed 0.5 less.
    """
    cells = []
    for model, seeds in (("google/gemma-2b", (42, 43)), ("models/a_b%&#", (42,))):
        for i, conditions in enumerate((layout.rows or {}).values()):
            trained = conditions.get("tuning.kind", "lora") != "none"
            for k, seed in enumerate(seeds if trained else [None]):
                cells.append(run_of(make_run, conditions, layout, model, seed, 0.5 + 0.02 * i + 0.01 * k))
    return cells


def run_of(make_run: MakeRun, conditions: dict, layout: Layout, model: str, seed: int | None, value: float) -> Cell:
    method = {key.removeprefix("method."): wanted for key, wanted in conditions.items() if key.startswith("method.")}
    tuning = {key.removeprefix("tuning."): wanted for key, wanted in conditions.items() if key.startswith("tuning.")}
    tasks = list((layout.columns or {}).values()) or ["piqa_full"]
    values = {task: round(value + 0.001 * j, 6) for j, task in enumerate(tasks)}
    hours = {"wall_seconds": 3600 * (1 + value)}
    inference = {"prefill_seconds": 0.25, "generation_seconds": 60.5}
    return make_run(
        "?", seed, values, model=model, method=method, tuning=tuning or "lora", result=hours, inference=inference
    )


@pytest.mark.parametrize("name", shipped())
def test_the_table_is_as_expected(make_run: MakeRun, name: str) -> None:
    layout = load_layout(name)
    text = render_markdown(build_table(made_up(make_run, layout), "t", layout=layout, with_reference=True))
    assert text == (GOLDEN / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", shipped())
def test_the_papers_grids_fit(name: str) -> None:
    number = name.removeprefix("table")
    table = f"table{TABLES_OF.get(number, number)}"
    grids = [load_grid(path) for path in GRIDS.glob(f"{table}*.yaml") if path.stem.split("_")[0] == table]
    layout = load_layout(name)
    cells, left_out = arranged(source_of_grids(grids).cells, layout)
    rows = set(layout.rows or {})
    assert {cell.row for cell in cells} == rows
    mine = {row for grid in grids for row in dict.fromkeys(cell.row for cell in grid.cells)}
    assert set(left_out) <= BEYOND_THE_PAPER | (mine - rows)
    assert {cell.group for cell in cells} <= set((layout.groups or {}).values())
    assert {task for cell in cells for task in cell.tasks} >= set((layout.columns or {}).values())


def test_a_table_with_everything_that_can_go_wrong(make_run: MakeRun) -> None:
    """n = 1, n = 2, a NaN, a seed that is missing, a tie, two metrics, names that LaTeX and Markdown would misread."""
    layout = Layout(
        title="T_1 50% & #2",
        columns={"P_1": "piqa", "P 50% & #": "piqa:acc_norm", "A": "arc"},
        rows={
            "base_0": {"tuning.kind": "none"},
            "x_1%": {"method.name": "causal", "tuning.kind": "lora"},
            "y&2": {"method.name": "bitune"},
            "z#3": {"method.name": "no_mixing"},
        },
        groups={"tiny": "M_1 #"},
        baseline="x_1%",
        highlight=2,
    )
    tasks = ("piqa", "arc")
    cells = [
        make_run("?", None, {"piqa": 0.5, "arc": 0.25}),
        make_run("?", 42, {"piqa": 0.6, "arc": 0.3}),
        make_run("?", 43, {"piqa": 0.7, "arc": 0.5}),
        make_run("?", 42, {"piqa": 0.65012, "arc": 0.6}, method="bitune"),
        make_run("?", 43, {"piqa": 0.65043, "arc": 0.8}, method="bitune"),
        make_run("?", 42, {"piqa": 0.9, "arc": float("nan")}, method="no_mixing"),
        make_run("?", 43, {"piqa": None, "arc": None}, method="no_mixing", tasks=tasks, reason="failed: 100% & #1"),
    ]
    table = build_table(cells, "t", layout=layout)
    rows = [
        [e.value, e.rank, e.spread, e.bracketed, e.mark] for row in table.rows for e in (row.entries[0], row.entries[2])
    ]
    # acc_norm is 0.99 in every made-up evaluation. Baseline: piqa 65.0 +- 7.1, arc 40.0 +- 14.1
    assert rows == [
        ["50.0", 2, "", "", ""],
        ["25.0", 0, "", "", ""],
        ["65.0", 1, "± 7.1", "", ""],
        ["40.0", 2, "± 14.1", "", ""],
        ["65.0", 1, "± 0.0", "", ""],
        ["70.0", 1, "± 14.1", "", ""],
        ["90.0", 0, "", "", "1/2 a"],
        ["-", 0, "", "", "b"],
    ]
    # averages: (50 + 99 + 25) / 3 = 58.0; (65 + 99 + 40) / 3 = 68.0; (65.03 + 99 + 70) / 3 = 78.0
    assert [row.entries[3].value for row in table.rows] == ["58.0", "68.0", "78.0", "-"]
    assert [row.change for row in table.rows] == ["-10.0 ?", "", "+10.0 ?", ""]
    assert dict(table.notes)["b"] == "seed 42: evaluation of arc failed: acc is nan; seed 43: failed: 100% & #1"
    assert "P\\_1" in render_markdown(table) and "P 50\\% \\& \\#" in render_document(table)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed: the LaTeX was not compiled")
def test_all_layouts_compile(make_run: MakeRun, tmp_path: Path) -> None:
    tables = []
    for name in shipped():
        layout = load_layout(name)
        tables.append(build_table(made_up(make_run, layout), "t", layout=layout, with_reference=True))
    document = render_document(*tables)
    (tmp_path / "all.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=100)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull \\hbox" not in done.stdout
    assert len(re.findall(r"\\toprule", document)) == len(shipped())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("columns: {A: b}\nrow: {}", "unknown key 'row', did you mean 'rows'"),
        ("rows: {A: {}}\nbaseline: B", "baseline 'B' is not one of the rows: A"),
        ("arrange: models", "arrange: models needs groups and an average"),
        ("rows: {A: {}}\nmarks: {C: [B]}", "marks: 'B' is not one of the rows: A"),
        ("columns: {P: piqa}\nreference: {M: {A: {Q: 1}}}", "reference: there is no column 'Q'; there are P, average"),
        ("columns: {A: piqa, B: piqa}", "columns: 'A' and 'B' are both piqa"),
        (
            "cost: [money]",
            "must be one of 'hours', 'tokens_per_second', 'memory', 'parameters', 'prefill' or 'generation'",
        ),
    ],
)
def test_mistakes_in_a_layout_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(words)):
        load_layout(str(path))


def test_a_layout_that_is_not_there() -> None:
    with pytest.raises(UserError, match=r"no such layout, did you mean 'table15'\?"):
        load_layout("tabel15")


def test_runs_that_do_not_fit(make_run: MakeRun) -> None:
    lora = make_run("LoRA", 42, {"piqa": 0.5})
    both = Layout(rows={"A": {"tuning.kind": "lora"}, "B": {"method.name": "causal"}})
    with pytest.raises(UserError, match="fits into the rows A and B"):
        build_table([lora], "t", layout=both)
    with pytest.raises(UserError, match=r"rows\.A: 'tuning\.kin' is no key"):
        build_table([lora], "t", layout=Layout(rows={"A": {"tuning.kin": "lora"}}))
    with pytest.raises(UserError, match=r"no run fits into a row of the layout \(rows: A\)"):
        build_table([lora], "t", layout=Layout(rows={"A": {"tuning.kind": "full"}}))
    other = make_run("Bitune", 42, {"piqa": 0.5}, method="bitune")
    table = build_table([lora, other], "t", layout=Layout(rows={"A": {"method.name": "causal"}}))
    assert table.left_out == ("Bitune",)


def test_a_run_of_two_grids_counts_once(make_run: MakeRun) -> None:
    cell = make_run("LoRA", 42, {"piqa": 0.5})
    table = build_table([cell, cell], "t", layout=Layout(rows={"A": {"tuning.kind": "lora"}}))
    assert [entry.n for entry in table.rows[0].entries] == [1, 1]


def test_costs_of_a_row_with_a_run_for_each_task(make_run: MakeRun) -> None:
    cells = [
        make_run("LoRA", 42, {task: 0.5}, tuning={"rank": rank}, result={"wall_seconds": 3600.0})
        for task, rank in (("piqa", 4), ("arc", 8))
    ]
    costs = cost_table(cells, Layout())
    assert costs is not None
    assert [row.name for row in costs.rows] == ["LoRA, piqa", "LoRA, arc"]
