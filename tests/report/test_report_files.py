"""The files of a report: content, escaping, determinism; and the terminal."""

import errno
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.errors import StageError
from pipeline.files import write_texts
from pipeline.report import Cell, report

MakeRun = Callable[..., Cell]
FILES = ("report.md", "report.tex", "table.tex", "report.csv", "report.html", "report.json")
AWKWARD = r"[x] a_b 50% & #1 {y} $z ~ ^ \ <b> |p| *s* `q` --rank"


def quiet(width: int = 120) -> Console:
    return Console(file=io.StringIO(), width=width)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_markdown_is_as_expected(demo_cells: list[Cell], tmp_path: Path) -> None:
    table = report(demo_cells, "Demo_1", "LoRA", tmp_path, quiet())
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == (
        "# Demo\\_1\n\n"
        "| method | piqa | arc | average | Δ LoRA |\n"
        "| :-- | --: | --: | --: | --: |\n"
        "| Pretrained | 50.0 | 25.0 | 37.5 | -7.5 ? |\n"
        "| LoRA | 55.0 ± 7.1 | 35.0 ± 7.1 | 45.0 ± 7.1 |  |\n"
        "| Bitune | **70.0** ± 0.0 | **40.0** ± 14.1 | **55.0** ± 7.1 | +10.0 ? |\n\n"
        f"{table.caption}\n"
    )


def test_latex_rows_are_as_expected(demo_cells: list[Cell], tmp_path: Path) -> None:
    report(demo_cells, "Demo", "LoRA", tmp_path, quiet())
    lines = (tmp_path / "table.tex").read_text(encoding="utf-8").splitlines()
    start = lines.index(r"\midrule")
    assert lines[start - 2 : start + 5] == [
        r"\toprule",
        r"method & piqa & arc & average & $\Delta$ LoRA \\",
        r"\midrule",
        r"Pretrained & 50.0 & 25.0 & 37.5 & $-7.5 \,?$ \\",
        r"LoRA & 55.0 $\pm$ 7.1 & 35.0 $\pm$ 7.1 & 45.0 $\pm$ 7.1 &  \\",
        r"Bitune & \textbf{70.0} $\pm$ 0.0 & \textbf{40.0} $\pm$ 14.1 & \textbf{55.0} $\pm$ 7.1 & $+10.0 \,?$ \\",
        r"\bottomrule",
    ]
    assert "\n".join(lines) in (tmp_path / "report.tex").read_text(encoding="utf-8")


def test_every_number_has_its_origin(demo_cells: list[Cell], tmp_path: Path) -> None:
    report(demo_cells, "Demo", "LoRA", tmp_path, quiet())
    content = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    cell = content["rows"][1]["cells"][0]
    assert cell["value"] == pytest.approx(0.55) and cell["std"] == pytest.approx(0.0707107)
    assert (cell["column"], cell["n"], cell["expected"], content["ddof"]) == ("piqa", 2, 2, 1)
    for run, made in zip(cell["runs"], demo_cells[1:3], strict=True):
        saved = json.loads(Path(run["file"]).read_text(encoding="utf-8"))
        assert (run["seed"], run["folder"], run["value"]) == (made.seed, str(made.folder.root), saved["metrics"]["acc"])
        assert all(run[key] == saved[key] for key in ("signature", "evaluation_signature", "task_hash", "versions"))
    assert content["rows"][2]["cells"][2]["difference"] == pytest.approx(0.1)


def test_gaps_are_in_the_provenance(make_run: MakeRun, tmp_path: Path) -> None:
    cell = make_run("A", 42, {"piqa": None})
    report([cell], "T", None, tmp_path, quiet())
    found = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["rows"][0]["cells"][0]
    gap = {"task": "piqa", "seed": 42, "folder": str(cell.folder.root), "reason": "evaluation of piqa is missing"}
    assert found["value"] is None and found["missing"] == [gap]


def test_the_same_runs_give_the_same_bytes(demo_cells: list[Cell], tmp_path: Path) -> None:
    for folder in ("first", "second"):
        report(demo_cells, "Demo", "LoRA", tmp_path / folder, quiet())
    assert sorted(path.name for path in (tmp_path / "first").iterdir()) == sorted(FILES)
    for name in FILES:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def awkward_cells(make_run: MakeRun) -> list[Cell]:
    return [
        make_run(AWKWARD, 42, {"piqa_full": 0.5, "mmlu": 0.4}),
        make_run(AWKWARD, 43, {"piqa_full": 0.6, "mmlu": None}, reason=f"failed: {AWKWARD}"),
        make_run("B", 42, {"piqa_full": 0.6, "mmlu": 0.4}, method="bitune"),
    ]


@pytest.mark.parametrize("name", FILES)
def test_a_disk_that_is_full_leaves_the_older_report_whole(
    name: str, demo_cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(demo_cells, "Older", "LoRA", tmp_path, quiet())
    older = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    write = Path.write_text

    def full(path: Path, text: str, **options: str) -> int:
        if path.name.startswith(f".{name}."):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, text, **options)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(StageError, match=f"{name}: cannot be written .No space left on device"):
        report(demo_cells, "Newer", "LoRA", tmp_path, quiet())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == older


def test_a_folder_in_the_place_of_a_file_leaves_the_older_report_whole(demo_cells: list[Cell], tmp_path: Path) -> None:
    report(demo_cells, "Older", "LoRA", tmp_path, quiet())
    (tmp_path / "report.csv").unlink()
    (tmp_path / "report.csv").mkdir()
    older = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(StageError, match=r"report\.csv: cannot be written \(Is a directory\)"):
        report(demo_cells, "Newer", "LoRA", tmp_path, quiet())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == older


def test_the_seal_knows_the_other_files(demo_cells: list[Cell], tmp_path: Path) -> None:
    report(demo_cells, "T", "LoRA", tmp_path, quiet())
    sums = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in FILES if name != "report.json"}
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["files"] == sums


KILLED = """
import os, signal, sys
from pathlib import Path
from pipeline.files import write_texts

folder, killed_at = Path(sys.argv[1]), int(sys.argv[2])
steps = 0

def counted(name):
    method = getattr(Path, name)
    def step(path, *arguments, **options):
        global steps
        steps += not path.name.startswith(".") or name == "replace"
        if steps > killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(path, *arguments, **options)
    setattr(Path, name, step)

counted("replace"), counted("unlink")
write_texts(folder, {name: "newer" for name in ("a", "b", "seal")}, "seal", outdated=["page"])
"""


def test_a_kill_at_any_step_never_leaves_files_of_two_times_as_a_whole(tmp_path: Path) -> None:
    seen = []
    for killed_at in range(6):
        folder = tmp_path / str(killed_at)
        write_texts(folder, {name: "older" for name in ("a", "b", "page", "seal")}, "seal")
        done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(killed_at)], timeout=60, check=False)
        found = {path.name: path.read_text() for path in folder.iterdir() if not path.name.startswith(".")}
        seen.append((done.returncode, found.get("seal"), set(found.values())))
        assert (
            "seal" not in found or found == dict.fromkeys(["a", "b", "page", "seal"], "older") or done.returncode == 0
        )
    assert [status for status, _, _ in seen] == [-signal.SIGKILL] * 5 + [0]
    assert [seal for _, seal, _ in seen] == ["older", None, None, None, None, "newer"]
    assert seen[3][2] == {"older", "newer"} and seen[-1][2] == {"newer"}


def test_what_a_killed_writer_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    left, fresh, editor = (tmp_path / name for name in (".a.8f_x0y1z", ".a.abcdefgh", ".a.swp"))
    for path in (left, fresh, editor):
        path.write_text("half")
    for path in (left, editor):
        os.utime(path, (0, 0))
    write_texts(tmp_path, {"a": "1", "seal": "2"}, "seal")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "seal", fresh.name, editor.name}


def test_markdown_escapes_names(make_run: MakeRun, tmp_path: Path) -> None:
    report(awkward_cells(make_run), AWKWARD, AWKWARD, tmp_path, quiet())
    rows = [line for line in (tmp_path / "report.md").read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}
    assert "\\[x\\] a\\_b 50% \\& \\#1 \\{y\\} \\$z \\~ ^ \\\\ \\<b\\> \\|p\\| \\*s\\* \\`q\\`" in rows[2]


def test_latex_is_balanced(make_run: MakeRun, tmp_path: Path) -> None:
    report(awkward_cells(make_run), AWKWARD, AWKWARD, tmp_path, quiet())
    text = (tmp_path / "report.tex").read_text(encoding="utf-8")
    bare = re.sub(r"\\[\\%&#_${}]", "", text)  # without escaped characters (and line breaks)
    assert bare.count("{") == bare.count("}") and bare.count("$") % 2 == 0
    assert not set("%#~^") & set(bare.replace("%s", ""))
    stack: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert not stack
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body.splitlines() if line.endswith(r"\\")} == {4}


def test_a_long_table_is_continued_on_further_pages(make_run: MakeRun, tmp_path: Path) -> None:
    cells = [make_run(f"Row {number}", seed, {"piqa": 0.5}) for number in range(100) for seed in (42, 43)[: number + 1]]
    table = report(cells, "T", None, tmp_path, quiet())
    text = (tmp_path / "table.tex").read_text(encoding="utf-8")
    assert re.findall(r"^Row (\d+) &", text, re.MULTILINE) == [str(number) for number in range(100)]
    pages = text.split(r"\clearpage")
    assert [page.count(r"\begin{table}") for page in pages] == [1, 1, 1]
    assert "n = 1: Row 0; n = 2: all others." in table.caption
    assert pages[0].count("all others") == text.count("all others") == 1
    assert pages[2].count(r"\addtocounter{table}{-1}") == 1 and "T (continued)." in pages[2]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed: the LaTeX was not compiled")
def test_latex_compiles(make_run: MakeRun, tmp_path: Path) -> None:
    report(awkward_cells(make_run), AWKWARD, AWKWARD, tmp_path, quiet())
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=60)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull \\hbox" not in done.stdout and (tmp_path / "report.pdf").stat().st_size > 1000


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed: the LaTeX was not compiled")
@pytest.mark.parametrize("rows", [10, 45, 60])
def test_footnotes_that_have_no_room_under_the_table_follow_it(make_run: MakeRun, tmp_path: Path, rows: int) -> None:
    cells = [make_run(f"Row {n}", 42, {"piqa": None}, reason=f"failed: {n} {'words ' * 30}") for n in range(rows)]
    report(cells, "T", None, tmp_path, quiet())
    text = (tmp_path / "table.tex").read_text(encoding="utf-8")
    assert (text.rindex(r"\end{table}") > text.index("failed: 0 ")) == (rows == 10)
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=60)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Float too large" not in done.stdout and "Overfull" not in done.stdout


def test_the_terminal_shows_the_table_and_the_files(demo_cells: list[Cell], tmp_path: Path) -> None:
    console = quiet(300)
    report(demo_cells, "Demo [bold]", "LoRA", tmp_path, console)
    text = printed(console)
    assert "Demo [bold]" in text and str(tmp_path) in text and all(name in text for name in FILES)
    assert re.search(r"Bitune +70\.0 ± 0\.0 +40\.0 ± 14\.1 +55\.0 ± 7\.1 +\+10\.0", text)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_every_number_fits_the_terminal(make_run: MakeRun, tmp_path: Path, width: int) -> None:
    tasks = ("piqa_full", "arc_full", "csqa_full", "siqa_full", "mmlu")
    values = {seed: {task: 0.1 * (index + 1) + 0.01 * seed for index, task in enumerate(tasks)} for seed in (0, 1)}
    cells = [make_run("a method with a long name", seed, values[seed], method="bitune") for seed in (0, 1)]
    console = quiet(width)
    report([*cells, make_run("B", 0, values[0])], "T", "B", tmp_path, console)
    text = printed(console)
    table = text[: text.index("Metric")]
    assert all(len(line) <= width for line in table.splitlines())
    assert re.findall(r"\d\d\.\d", table.replace("±", " ±")).count("10.5") == 1  # piqa: .10 and .11
    assert table.count("±") == 6 and "…" not in table and all(task in table for task in tasks)
