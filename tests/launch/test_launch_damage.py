"""Damaged and unreadable run folders: a named state, and no other cell is touched."""

import json
from pathlib import Path

import pytest
from launch_inputs import tiny_grid, write_grid
from rich.console import Console

from launch.attempts import Attempts
from launch.cells import Grid, GridCell
from launch.grid import load_grid
from launch.plan import plan, table
from launch.progress import progress, reached
from launch.show import state_table
from launch.states import CellState, Look
from launch.submission import Submission, submissions
from pipeline.config import signature
from pipeline.errors import StageError

VALUES = ("1" + 400 * "0", "9" * 5000, "NaN", "Infinity", "true", "null", '"x"', '"\\ud800"', '"\\u001b[2J"', "[]",
          "{}", "0", "-1", "[1]", "[" * 3000 + "]" * 3000, '{"a": NaN}', '[{"a": 1}]', '{"x": {}}')  # fmt: skip
"""What a value may become, as JSON."""


def finished(cell: GridCell) -> None:
    """A run folder as after a whole run."""
    folder = cell.folder
    folder.create(cell.config)
    for place in (folder.model, folder.train_result.parent, folder.evaluation("").parent):
        place.mkdir()
    (folder.model / "x.safetensors").write_bytes(b"1")
    result = {"signature": signature(cell.config), "prepared_key": "k", "steps": 2, "final_loss": 1.0}
    step = {"step": 1, "epoch": 0.5, "loss": 1.0, "wall_seconds": 2.0, "tokens_per_second": 3.0}
    sources = {"sources": [{"source": "a", "sha256": "b"}], "paths": {"a": "/nowhere"}}
    documents = {
        folder.train_result: {**result, "model_files": {"x.safetensors": 1}},
        folder.prepare_manifest: {"key": "k", **sources},
        folder.metrics: step,
        folder.evaluation("csqa_full"): {"metrics": {"acc": 1}, "evaluation_signature": "x", "documents": 1},
        folder.samples("csqa_full"): {},
        folder.root / "attempts.jsonl": {"submission": "s", "job": "train", "event": "begin", "reached": 0},
        folder.failure: {"stage": "train", "error": "the disk is full"},
    }
    for path, values in documents.items():
        path.write_text(json.dumps(values) + "\n")


def faults(raw: bytes, is_json: bool) -> list[bytes | None]:
    """What a file may have become; None stands for a folder in its place."""
    found = [b"", b"\xff\xfe" + raw, raw[: len(raw) // 2], b"[" * 100_000, b"null\n", b"[1]\n", b"a: &a [*a]\n", None]
    document = json.loads(raw) if is_json else {}
    for key in document:
        texts = [json.dumps(document | {key: "@@"}).replace('"@@"', value) for value in VALUES]
        without = json.dumps({name: value for name, value in document.items() if name != key})
        found += [f"{text}\n".encode() for text in (*texts, without)]
    return found


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grid:
    monkeypatch.chdir(tmp_path)
    found = load_grid(write_grid(tmp_path, tiny_grid({"LoRA": {}, "Bitune": {"method": "bitune"}})))
    for cell in found.cells:
        finished(cell)
    return found


def seen(grid: Grid) -> list[CellState]:
    """The states, once everything that shows or judges the first cell has been asked."""
    cell, quiet = grid.cells[0], Console(quiet=True)
    states = Look.at(grid, [], {}).states()
    quiet.print(state_table(states))
    quiet.print(table(plan(grid)))
    progress(cell.config, cell.folder)
    reached("train", cell.folder)
    return states


def test_whatever_a_file_became_the_cell_has_a_state_and_no_other_changes(grid: Grid) -> None:
    folder = grid.cells[0].folder
    assert [state.word for state in seen(grid)] == ["done", "done"]
    for file in sorted(path for path in folder.root.rglob("*") if path.is_file()):
        original = file.read_bytes()
        for fault in faults(original, is_json=file.suffix in (".json", ".jsonl")):
            file.unlink()
            file.mkdir() if fault is None else file.write_bytes(fault)
            damaged, sound = seen(grid)
            assert sound.word == "done", f"{file.name} became {fault!r:.200}"
            if damaged.word != "done":
                assert damaged.word == "failed" and damaged.detail, f"{file.name} became {fault!r:.200}"
            if fault is not None:
                Attempts(folder.root / "attempts.jsonl", "s", "train").verdict(0)
            file.rmdir() if fault is None else file.unlink()
            file.write_bytes(original)


def test_what_cannot_be_read_is_named(grid: Grid) -> None:
    cell = grid.cells[0]
    cell.folder.train_result.unlink()
    cell.folder.train_result.symlink_to(cell.folder.train_result.name)
    words = f"cannot be read: {cell.folder.train_result}: Too many levels of symbolic links"
    assert seen(grid)[0].detail == words
    assert {state.words for state in plan(grid)[0].states.values()} == {f"to do, {words}"}


def test_a_damaged_record_of_jobs_is_not_passed_over(tmp_path: Path) -> None:
    place = tmp_path / ".submissions" / "one"
    (place / "arrays").mkdir(parents=True)
    (place / "submission.json").write_text('{"time": 3}')
    (place / "arrays" / "1.json").write_text('{"tasks": 1}')
    with pytest.raises(StageError, match="one: arrays/ is damaged; remove this folder once its jobs have ended"):
        submissions(tmp_path)[0].records()
    (place / "arrays" / "1.json").write_text('{"tas')  # never written whole: its job was never submitted
    assert Submission(place).records() == []


def test_names_are_shown_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["[/bold] [red]", "\x1b[2J", "x" * 300, "two\nlines", "$(touch hacked)"]
    rows = {name: {"tuning": {"rank": rank}} for rank, name in enumerate(names, 1)}
    found = load_grid(write_grid(tmp_path, tiny_grid(rows)))
    console = Console(width=1000, record=True, quiet=False, file=(tmp_path / "out").open("w"))
    console.print(table(plan(found)))
    console.print(state_table(Look.at(found, [], {}).states()))
    shown = console.export_text()
    assert shown.count("[/bold] [red]") == 2 and "\x1b" not in shown and shown.count("$(touch hacked)") == 2
