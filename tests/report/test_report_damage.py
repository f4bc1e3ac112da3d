"""Hundreds of damaged run folders: each is a named failure or reads as before, and every other number stays."""

import io
import json
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from pipeline.errors import UserError
from pipeline.report import Cell, Layout, Table, cells_of, report
from pipeline.report.two_runs import compare_runs, render
from pipeline.stages import failure

MakeRun = Callable[..., Cell]

EXTREMES = ("1" + 400 * "0", "9" * 5000, "-1e400", "1e308", "-1e308", "-0.0", "5e-324", "NaN", "Infinity", "true",
            "null", '"x"', '"\\ud800"', '"\\u0000"', '"\\u001b[2J"', '"2"', "[]", "{}", "[1]", '{"a": NaN}', "-1", "0",
            "1e18", "123456789012345678", '"' + 300 * "a" + '"', "[" * 3000 + "]" * 3000)  # fmt: skip
"""What a value may become, as JSON."""


def mutated(text: str, generator: random.Random) -> bytes | None:
    """A JSON document with one fault; None stands for a folder in its place."""
    raw = text.encode()
    kind = generator.randrange(10)
    if kind == 0:
        return generator.choice([b"", b"\xff\xfe" + raw, raw[: len(raw) // 2], b"[" * 100_000, b"null", b"[1]", None])
    if kind == 1:
        place = generator.randrange(len(raw))
        return raw[:place] + bytes([generator.randrange(256)]) + raw[place + 1 :]
    lines = text.split("\n")
    number = generator.randrange(max(1, len(lines) - 1))
    lines[number] = _with_another_value(lines[number], generator)
    return "\n".join(lines).encode()


def _with_another_value(line: str, generator: random.Random) -> str:
    document = json.loads(line)
    places = list(_places(document))
    holder, key = generator.choice(places)
    if generator.randrange(6) == 0 and isinstance(holder, dict):
        del holder[key]
        return json.dumps(document)
    holder[key] = "@@"
    return json.dumps(document).replace('"@@"', generator.choice(EXTREMES))


def _places(value: Any) -> Any:
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def written(cell: Cell) -> Cell:
    """The run with everything that a run may hold besides its scores."""
    folder = cell.folder
    steps = [{"step": step, "loss": 1 / step, "learning_rate": 1e-3, "tokens_per_second": 10.0,
              "alphas": [{"key": 0.5, "value": 0.5}] * 2} for step in (1, 2, 3)]  # fmt: skip
    folder.metrics.write_text("".join(json.dumps(step) + "\n" for step in steps))
    folder.failure.write_text(json.dumps({"stage": "train", "error": "disk is full"}))
    folder.prepare_manifest.write_text(json.dumps({"key": "data-1", "rows": 3, "sources": [{"source": "a"}]}))
    return cell


def rights(count: int) -> list[int]:
    return [int(number < count) for number in range(20)]


@pytest.fixture
def cells(make_run: MakeRun) -> list[Cell]:
    """Two rows of three seeds; every document is recorded."""
    return [
        written(
            make_run(
                row, seed, {"piqa": rights(seed - 33), "arc": rights(seed - 36)},
                method=method, inference={"prefill_seconds": 1.0, "generation_seconds": 2.0},
            )
        )
        for row, method in (("A", "causal"), ("B", "bitune"))
        for seed in (42, 43, 44)
    ]  # fmt: skip


def quiet() -> Console:
    return Console(file=io.StringIO(), width=120)


def scores(table: Table, without: Path) -> dict[tuple[Path, str], float]:
    records = [record for row in table.rows for entry in row.entries for record in entry.records]
    return {(record.folder, record.task): record.value for record in records if record.folder != without}


@pytest.mark.parametrize("seed", range(4))
def test_damage_of_one_run_changes_no_other_and_stops_nothing(cells: list[Cell], tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    sound = report(cells, "T", "A", tmp_path / "out", quiet())
    for number in range(50):
        place = generator.randrange(len(cells))
        victim, other = cells[place].folder.root, cells[place - 1].folder.root
        file = generator.choice(sorted(path for path in victim.rglob("*") if path.is_file()))
        original = file.read_bytes()
        is_yaml = file.suffix == ".yaml"
        fault = mutated(json.dumps(yaml.safe_load(original)) if is_yaml else original.decode(), generator)
        file.unlink()
        file.mkdir() if fault is None else file.write_bytes(fault)
        planned = cells if number % 2 else cells_of([cell.folder for cell in cells])
        table = report(planned, "T", "A" if number % 2 else None, tmp_path / "out", quiet())
        assert scores(table, victim) == scores(sound, victim), f"{file.name} became {fault!r:.300}"
        with suppress(UserError):  # of a configuration
            quiet().print(render(compare_runs(victim, other), documents=5))
        file.rmdir() if fault is None else file.unlink()
        file.write_bytes(original)


@pytest.mark.parametrize("name", ["config.yaml", "train/result.json", "evaluate/piqa.json", "evaluate/piqa.jsonl",
                                  "train/metrics.jsonl", "inference.json"])  # fmt: skip
@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(5, "Input/output error")])
def test_a_file_that_cannot_be_read_is_named(
    cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: OSError
) -> None:
    closed = cells[4].folder.root / name
    for method in ("read_bytes", "read_text", "stat", "open"):
        monkeypatch.setattr(Path, method, _refusing(getattr(Path, method), closed, error))
    monkeypatch.setattr(os, "open", _refusing(os.open, str(closed), error))
    table = report(cells, "T", "A", tmp_path / "out", quiet())
    reasons = {missing.reason for row in table.rows for entry in row.entries for missing in entry.missing}
    damaged = {"config.yaml", "train/result.json", "evaluate/piqa.json"}
    assert [error.strerror in reason for reason in reasons] == [True] * (name in damaged)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert (error.strerror in page) == (name in damaged or name == "inference.json")
    assert table.rows[0].entries[0].n == 3


def _refusing(method: Callable[..., Any], closed: Path | str, error: OSError) -> Callable[..., Any]:
    def refuse(self: Path | str, *arguments: Any, **options: Any) -> Any:
        if self == closed:
            raise error
        return method(self, *arguments, **options)

    return refuse


def test_a_record_of_a_failure_that_cannot_be_read_is_no_obstacle(make_run: MakeRun) -> None:
    folder = make_run("A", 42, {"piqa": 0.5}).folder
    folder.failure.symlink_to(folder.failure.name)
    assert failure(folder) == "failed.json cannot be read (Too many levels of symbolic links)"


def test_a_folder_whose_configuration_is_damaged_is_a_row_of_its_own(cells: list[Cell], tmp_path: Path) -> None:
    folders = [cell.folder for cell in cells]
    folders[1].config.write_text("seed: [")
    folders[2].config.unlink()
    table = report(cells_of(folders), "T", None, tmp_path / "out", quiet())
    reasons = {row.name: {missing.reason for missing in row.entries[0].missing} for row in table.rows[-2:]}
    (broken,) = reasons[folders[1].root.name]
    (absent,) = reasons[folders[2].root.name]
    assert broken.startswith("config.yaml line 2: not valid YAML") and "it has no config.yaml" in absent
    layout = Layout(rows={"All": {"method.name": "causal"}})
    placed = report(cells_of(folders), "T", None, tmp_path / "out", quiet(), layout)
    assert any(text.startswith(folders[1].root.name) and "not valid YAML" in text for text in placed.left_out)
