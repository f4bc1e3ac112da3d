"""Damaged and hostile run folders: a report is made of what can be read, and nothing in them acts on its reader."""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.report import Cell, Layout, build_table, report
from pipeline.report.curves import read_curves
from pipeline.report.two_runs import compare_runs, render

MakeRun = Callable[..., Cell]


def test_one_document_has_no_interval(make_run: MakeRun) -> None:
    cells = [make_run(row, seed, {"piqa": [1]}, method=method)
             for row, method in (("A", "causal"), ("B", "bitune")) for seed in (1, 2)]  # fmt: skip
    table = build_table(cells, "T", baseline="A")
    assert [row.entries[0].interval for row in table.rows] == [None, None]


@pytest.fixture
def impatient() -> Iterator[None]:
    """A minute, then the test fails in place of waiting for ever."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("waits for a pipe"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", ["evaluation", "samples", "metrics", "train_result", "inference", "config"])
def test_nobody_waits_for_a_pipe_in_the_place_of_a_file(make_run: MakeRun, tmp_path: Path, name: str) -> None:
    cells = [make_run(row, 42, {"piqa": [1, 0, 1]}, method=method, inference={"prefill_seconds": 1.0})
             for row, method in (("A", "causal"), ("B", "bitune"))]  # fmt: skip
    path = getattr(cells[1].folder, name)
    path = path("piqa") if callable(path) else path
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    layout = Layout(cost=("hours", "prefill"), differences="tasks")
    table = report(cells, "T", "A", tmp_path / "out", Console(file=io.StringIO()), layout)
    assert [entry.value for entry in table.rows[0].entries] == ["66.7", "66.7", "1.00", "1.000"]
    lost = {"evaluation": 2, "inference": 1, "train_result": 4, "config": 4}
    assert [entry.value for entry in table.rows[1].entries].count("-") == lost.get(name, 0)
    if name != "config":
        compare_runs(*(cell.folder.root for cell in cells))


def test_a_correlation_may_be_negative(make_run: MakeRun) -> None:
    measured = {"metrics": {"mcc": -0.02}, "main_metric": "mcc", "higher_is_better": {"mcc": True}}
    table = build_table([make_run("A", 42, {"cola": 0.5}, cola=measured)], "T")
    assert table.rows[0].entries[0].value == "-0.02"


@pytest.mark.parametrize(
    "line",
    ['{"step": NaN, "loss": 1}', '{"step": 1, "loss": NaN}', '{"step": "x"}', '{"step": 1, "loss": null}',
     '{"step": 1, "alphas": [{"key": 1}]}', '{"step": 1, "alphas": 3}', '{"step": 1e400}', "[" * 100_000],
)  # fmt: skip
def test_a_damaged_line_of_metrics_is_left_out(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{line}\n{{"step": 2, "loss": 0.5}}\n')
    found = read_curves(path)
    assert found.lines["loss"] == [(2.0, 0.5)] and found.updates == 2 and not found.ratio_steps


def test_damaged_records_and_escapes_are_compared(make_run: MakeRun) -> None:
    first, second = make_run("A", 42, {"piqa": [1, 0]}), make_run("A", 43, {"piqa": [0, 0]})
    console = Console(file=io.StringIO(), width=120)
    for choices, prediction in ((["\x1b[2J"], 0), (["a"], 7)):
        record = {"choices": choices, "answer": 0, "prediction": prediction, "metrics": {"acc": 1.0}}
        samples = second.folder.samples("piqa")
        lines = samples.read_text().splitlines()
        samples.write_text("\n".join([json.dumps({**record, "metrics": {"acc": 0.0}}), lines[1]]) + "\n")
        console.print(render(compare_runs(first.folder.root, second.folder.root), documents=2))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b" not in text and "the records of these documents are damaged (IndexError)" in text


def test_names_act_neither_in_a_terminal_nor_in_a_spreadsheet(make_run: MakeRun, tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=120)
    report([make_run(name, 42, {"piqa": 0.5}, method=method) for name, method in
            (("=1+1", "causal"), ("b\x1b[2Jx", "bitune"))], "T", None, tmp_path, console)  # fmt: skip
    assert "\x1b" not in console.file.getvalue()  # type: ignore[attr-defined]
    with (tmp_path / "report.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["method"] == "'=1+1"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed: the LaTeX was not compiled")
def test_every_script_compiles(make_run: MakeRun, tmp_path: Path) -> None:
    latin = "".join(map(chr, range(0xA1, 0x250)))
    name = f"{latin} e\u0301 中文 한글 العربية עברית हिन्दी Ελλάδα Ж 😀 \ufffd \ufeff \xa0 ―„“»"
    report([make_run(name, 42, {"piqa": 0.5})], name, None, tmp_path, Console(file=io.StringIO()))
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=60)
    assert done.returncode == 0, done.stdout[-2000:]
    assert r"\texttt{U+4E2D}\texttt{U+6587}" in (tmp_path / "table.tex").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed: the LaTeX was not compiled")
def test_greek_and_signs_compile(make_run: MakeRun, tmp_path: Path) -> None:
    name = "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΥΦΨΩ ≤ ≥ ∞ → \N{MINUS SIGN} \N{MULTIPLICATION SIGN} \x1b\u200b\u202e é ü"
    report([make_run(name, 42, {"piqa": 0.5})], "T", None, tmp_path, Console(file=io.StringIO()))
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=60)
    assert done.returncode == 0, done.stdout[-2000:]
