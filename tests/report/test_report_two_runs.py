"""Two runs side by side, and a table that is followed while its grid runs."""

import io
from collections.abc import Callable
from math import isclose
from pathlib import Path

import pytest
from rich.console import Console

from launch.watch import follow, missing_numbers
from pipeline.cli import main
from pipeline.errors import UserError
from pipeline.report import Cell, build_table
from pipeline.report.two_runs import compare_runs, render

MakeRun = Callable[..., Cell]


def test_two_runs_side_by_side(make_run: MakeRun) -> None:
    first = make_run("LoRA", 42, {"piqa": [1, 1, 0, 0, 1], "arc": 0.5})
    second = make_run("Bitune", 42, {"piqa": [0, 1, 1, 1, 1], "csqa": 0.5}, method="bitune",
                      training={"learning_rate": 0.001}, result={"wall_seconds": 7200.0})  # fmt: skip
    for cell, losses in ((first, (4, 2)), (second, (3, 1))):
        cell.folder.metrics.write_text("".join(f'{{"step": {i}, "loss": {v}}}\n' for i, v in enumerate(losses, 1)))
    found = compare_runs(first.folder.root, second.folder.root)
    assert ("training.learning_rate", "0.0003", "0.001") in found.configuration
    assert ("method.name", "causal", "bitune") in found.configuration
    assert ("device h", "1.00", "2.00") in found.training and found.losses == [(1, 4.0, 3.0), (2, 2.0, 1.0)]
    (piqa,) = found.tasks
    assert (piqa.gained, piqa.lost, piqa.scores) == ((2, 3), (0,), (0.6, 0.8))
    assert piqa.p is not None and isclose(piqa.p, 1.0)  # 2 against 1 of 3 documents
    assert found.left_out == ["arc", "csqa"]
    console = Console(file=io.StringIO(), width=120)
    console.print(render(found, documents=2))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert (
        "2 documents score better in 2, 1 worse (McNemar, p = 1)" in text
        and "document 0" in text
        and "and 1 more" in text
    )


def test_the_test_bears_its_name_and_less_may_be_better(make_run: MakeRun) -> None:
    errors = {"higher_is_better": {"acc": False}}
    first = make_run("A", 42, {"f1": [1, 1, 0.5, 0], "ter": [1, 1, 1, 0]}, ter=errors)
    second = make_run("A", 43, {"f1": [1, 1, 0.75, 1], "ter": [0, 0, 1, 1]}, ter=errors)
    f1, ter = compare_runs(first.folder.root, second.folder.root).tasks
    assert (f1.gained, f1.lost, f1.test) == ((2, 3), (), "sign test")
    assert (ter.gained, ter.lost, ter.test) == ((0, 1), (3,), "McNemar")


def test_documents_that_differ_are_not_compared(make_run: MakeRun) -> None:
    first = make_run("A", 42, {"piqa": [1, 0]})
    second = make_run("A", 43, {"piqa": [1, 0]}, piqa={"task_hash": "other"})
    assert compare_runs(first.folder.root, second.folder.root).tasks[0].fault == "scored on other documents or prompts"
    third = make_run("A", 44, {"piqa": 0.5})
    assert "records" in compare_runs(first.folder.root, third.folder.root).tasks[0].fault


def test_mistakes(make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run("A", 42, {"piqa": 0.5}).folder.root
    with pytest.raises(UserError, match="compared with itself"):
        compare_runs(run, run)
    assert main(["compare", str(run), str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err


def test_a_table_is_made_again_until_all_is_there(make_run: MakeRun) -> None:
    values: list[float | None] = [None, None, 0.5]
    said: list[str] = []

    def make() -> object:
        return build_table([make_run("A", 42, {"piqa": values.pop(0)})], "t")

    table = follow(make, 0.01, said.append)  # type: ignore[arg-type]
    assert missing_numbers(table) == 0 and values == []
    assert said == ["2 numbers missing: again in 0.01 s, Ctrl-C ends"] * 2


def test_layouts_and_several_files_on_the_command_line(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [make_run("?", seed, {"piqa_full": 0.5}, model="google/gemma-2b") for seed in (42, 43)]
    runs = [str(cell.folder.root) for cell in cells]
    assert main(["report", *runs, "--layout", "table1", "--reference"]) == 0
    text = capsys.readouterr().out
    assert "LoRA (paper)" in text and "66.7" in text
    folder = cells[0].folder.root.parent / "reports" / "runs-table1"
    assert "| Gemma-2B | LoRA (paper) | 66.7 |" in (folder / "report.md").read_text(encoding="utf-8")
    assert main(["report", *runs, "--reference"]) == 2 and "no published numbers" in capsys.readouterr().err
    assert main(["report", *runs, "seeds=[42]"]) == 2 and "give either run folders" in capsys.readouterr().err
    assert main(["report", "seeds=[42]"]) == 2 and "name the file" in capsys.readouterr().err


def test_a_model_that_was_removed_is_said(make_run: MakeRun) -> None:
    cell = make_run("A", 42, {"piqa": 0.5})
    cell.folder.model.rmdir()
    table = build_table([cell], "t")
    assert table.rows[0].entries[0].value == "50.0"
    assert "The trained model of 1 run is gone: its numbers can't be measured again." in table.caption
