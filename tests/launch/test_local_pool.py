"""`dualtune grid` where there is no Slurm; GPUs dealt out to runs side by side."""

import json
from pathlib import Path

import pytest
from launch_inputs import dualtune, tiny_grid, write_grid

from launch.command import run_grid
from launch.devices import deal, visible_gpus
from launch.grid import load_grid
from pipeline.errors import StageError


@pytest.mark.parametrize(
    ("gpus", "hands", "dealt"),
    [
        ("0123", 4, ["0", "1", "2", "3"]),
        ("0123", 2, ["0,1", "2,3"]),
        ("01", 3, ["0", "1", "0"]),
        ("012", 2, ["0", "1"]),
        ("01", 1, [None]),
        ("", 2, [None, None]),
    ],
)
def test_each_run_gets_gpus_of_its_own(gpus: str, hands: int, dealt: list[str | None]) -> None:
    assert deal(list(gpus), hands) == dealt


def test_only_what_is_visible_is_dealt_out() -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "4, 6"}) == ["4", "6"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []


def test_runs_that_cannot_be_written_are_told_though_the_table_cannot_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("in the way")
    grid = load_grid(write_grid(tmp_path, tiny_grid({"Base": {"tuning": "none"}, "LoRA": {}})))
    said: list[str] = []
    with pytest.raises(StageError, match="cannot be written"):
        run_grid(grid, 1, False, True, said.append)
    failed = [words.partition(" (")[0] for words in said if words.startswith("failed: ")]
    assert [words.split(": ")[1] for words in failed] == ["Base", "LoRA, seed 42"]


@pytest.mark.slow
def test_the_commands_work_without_slurm(tmp_path: Path) -> None:
    rows = {
        "Broken": {"method": "no_mixing", "evaluation": {"data": {"csqa_full": "late.jsonl"}}, "tuning": "none"},
        "Base": {"tuning": "none"},
    }
    write_grid(tmp_path, tiny_grid(rows))
    planned = dualtune("grid", "plan", "grid.yaml", "--executor", "local", folder=tmp_path)
    assert planned.returncode == 2 and "late.jsonl" in planned.stderr  # refused before anything starts
    (tmp_path / "late.jsonl").write_text("[]\n")

    def grid(command: str, *words: str, status: int = 0) -> str:
        done = dualtune("grid", command, "grid.yaml", *words, "--executor", "local", folder=tmp_path)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    assert "2 cells: 2 not submitted" in grid("status")
    grid("submit", "--jobs", "2", status=1)
    states = grid("status", status=1)
    assert "1 failed, 1 done" in states and "late.jsonl" in states
    again = grid("retry", status=1)
    assert "[1/1] Broken" in again and "Base:" not in again
    assert "csqa_full" in grid("logs", "Base")
    assert "no such cell" in grid("logs", "Bas", status=2)
    (run,) = (path.parent for path in tmp_path.glob("runs/*/failed.json"))
    assert json.loads((run / "failed.json").read_text())["stage"] == "evaluate"
