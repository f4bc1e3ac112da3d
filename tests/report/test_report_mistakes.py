"""The commands with wrong input: one line that names what is wrong, an exit status, and no stack trace."""

import io
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from launch.grid import Grid, load_grid
from launch.tables import source_of_grids
from pipeline.cli import main
from pipeline.config import parse_config
from pipeline.errors import UserError
from pipeline.report import Cell, Layout, report

MakeRun = Callable[..., Cell]


@pytest.fixture
def places(make_run: MakeRun, tmp_path: Path) -> dict[str, str]:
    """Names of things that may be given for a run folder."""
    os.symlink(tmp_path / "second", tmp_path / "first")
    os.symlink(tmp_path / "first", tmp_path / "second")
    (tmp_path / "empty").mkdir()
    (tmp_path / "looping").mkdir()
    os.symlink("config.yaml", tmp_path / "looping" / "config.yaml")
    (tmp_path / "file").write_text("hello")
    run = make_run("A", 42, {"piqa": 0.5}).folder.root
    shutil.copytree(run, tmp_path / "copy")
    names = ("first", "empty", "looping", "file", "nothing", "copy")
    return {"run": str(run), **{name: str(tmp_path / name) for name in names}}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{nothing}"], "{nothing}: cannot be read (No such file or directory)"),
        (["{empty}"], "{empty}: not a run folder (it has no config.yaml)"),
        (["{first}"], "{first}: cannot be read (Too many levels of symbolic links)"),
        (["{looping}"], "{looping}/config.yaml: cannot be read (Too many levels of symbolic links)"),
        (["{file}"], "{file}: must hold keys and values, not text"),
        (["{run}", "{nothing}"], "{nothing}: there is no such folder"),
        (["{run}", "{file}"], "{file}: give either run folders, or files of runs and grids"),
        (["{run}", "{copy}"], "counts a run twice: {run} and {copy}, seed 42"),
        (["{run}", "--output", "{file}"], "--output {file}: is a file, not a folder"),
        (["{run}", "--output", "{file}/x"], "{file}/x/report.json: cannot be written (Not a directory)"),
        (["{run}", "--output", "/proc/reports"], "/proc/reports/report.json: cannot be written"),
        (["{run}", "--layout", "{file}"], "--layout {file}: no such layout"),
        (["x" * 5000], "x: File name too long"),
    ],
)
def test_a_wrong_place_is_named(
    places: dict[str, str], capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    status = main(["report", *(argument.format(**places) for argument in arguments)])
    printed = capsys.readouterr().err
    assert status in (1, 2) and words.format(**places) in printed and printed.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rows: {A: 3}", "rows.A = 3: must hold keys and values"),
        ("columns: {A: [x]}", "columns.A: must be text"),
        ("columns: {}", "the layout has no columns"),
        ("rows: {A: {method.name: slippery}}", "no run fits into a row of the layout (rows: A)"),
        ("base: nothing.yaml", "nothing.yaml: cannot be read (No such file or directory)"),
        ("base: mine.yaml", "include each other in a circle"),
        ("title: ${nothing}", "Interpolation key 'nothing' not found"),
        ("a: &a [*a]", "an alias refers to the very thing that holds it"),
    ],
)
def test_a_wrong_layout_is_named(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    layout = tmp_path / "mine.yaml"
    layout.write_text(text)
    run = make_run("A", 42, {"piqa": 0.5}).folder.root
    assert main(["report", str(run), "--layout", str(layout)]) == 2
    printed = capsys.readouterr().err
    assert words in printed and printed.count("\n") == 1


def test_two_runs_of_one_row_and_seed_are_told_apart(make_run: MakeRun, tmp_path: Path) -> None:
    cells = [make_run("A", 42, {"piqa": 0.5}, training={"learning_rate": rate}) for rate in (1e-3, 1e-4)]
    with pytest.raises(UserError, match=r"seed 42; they differ in training\.learning_rate$"):
        report(cells, "T", None, tmp_path, Console(file=io.StringIO()))


@pytest.mark.parametrize("name", [".", "..", ".hidden", "a/b", "", "n" * 151])
def test_no_name_leads_out_of_the_folder_of_reports(tmp_path: Path, name: str) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump({"name": name, "config": {"model": "m", "tuning": "none"}, "rows": {"A": {}}}))
    with pytest.raises(UserError, match="name = "):
        load_grid(path)
    with pytest.raises(UserError, match="name = "):
        parse_config({"name": name, "model": {"name": "m"}, "tuning": {"kind": "none"}}, "run.yaml")


def test_published_numbers_of_two_grids_stand_in_one_row_or_are_refused(tmp_path: Path) -> None:
    def grid(name: str, **texts: str) -> Grid:
        config = {"model": "m", "tuning": "none", "evaluation": {"tasks": ["piqa_full", "arc_full"]}}
        values = {"name": name, "config": config, "rows": {"A": {}}, "reference": {"Paper": texts}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(values))
        return load_grid(tmp_path / f"{name}.yaml")

    first, second, third = grid("a", piqa_full="1"), grid("b", arc_full="2"), grid("c", piqa_full="3")
    assert source_of_grids([first, second]).reference == {"Paper": {"piqa_full": "1", "arc_full": "2"}}
    with pytest.raises(UserError, match=r"reference\.Paper\.piqa_full: 1 in one grid, 3 in another"):
        source_of_grids([first, second, third])


def test_a_watch_that_is_interrupted_ends_at_once(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("launch.watch.time.sleep", interrupted)
    cell = make_run("A", 42, {"piqa": None})
    assert main(["report", str(cell.folder.root), "--watch", "1", "--output", str(tmp_path / "out")]) == 130
    assert "Traceback" not in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "report.json").read_text())["rows"][0]["name"] == "causal (lora)"


LONG = "n" * 5000


def evil() -> dict[str, Any]:
    """A layout in which every name is 5,000 characters long, or acts on what shows it."""
    name = (
        "<img src=x onerror=hacked()> \\input{/etc/passwd} \\write18{id} $x^2 & _%#~{} `q` | [a](javascript:b) \u202e"
    )
    rows = {name: {"method.name": "causal"}, LONG: {"method.name": "bitune"}}
    return {"title": name, "columns": {name: "piqa", LONG: "arc"}, "rows": rows, "marks": {name: [name]},
            "groups": {"tiny": LONG}, "block": name, "average": f"{name} average", "baseline": name}  # fmt: skip


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed: the LaTeX was not compiled")
def test_names_without_end_and_with_commands_are_only_shown(make_run: MakeRun, tmp_path: Path) -> None:
    cells = [make_run("?", 42, {"piqa": 0.5, "arc": 0.5}, method=method) for method in ("causal", "bitune")]
    report(cells, "T", None, tmp_path, Console(file=io.StringIO()), Layout.model_validate(evil()))
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=100)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "\\input{" not in (tmp_path / "table.tex").read_text(encoding="utf-8")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<img" not in page and LONG in page
