"""`dualtune grid` where there is no Slurm; GPUs dealt out to runs side by side."""

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from launch_inputs import dualtune, start, tiny_grid, wait_for, write_grid

from launch.command import run_grid
from launch.devices import deal, visible_gpus
from launch.grid import load_grid
from launch.output import shown_and_kept
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


PROGRAM = """
import os, sys
print("bar 1/2", end="\\r"), print("\\x1b[2K\\rbar 2/2"), print("no end", end="")
print("error", sys.stderr.isatty(), os.isatty(1), *os.get_terminal_size(2), file=sys.stderr)
"""


def kept(log: Path) -> list[str]:
    """The log of PROGRAM."""
    with shown_and_kept(log) as (output, errors):
        subprocess.run([sys.executable, "-c", PROGRAM], stdout=output, stderr=errors, check=False)
    return log.read_text().splitlines()


def test_a_terminal_shows_the_bars_and_the_log_keeps_the_last_of_each(tmp_path: Path) -> None:
    before, (screen, terminal) = os.dup(2), os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 33, 77, 0, 0))
    os.dup2(terminal, 2)
    try:
        (tmp_path / "log.txt").write_text("an earlier start\n")
        lines = kept(tmp_path / "log.txt")
    finally:
        os.dup2(before, 2)
        os.close(before)
    assert sorted(lines) == ["an earlier start", "bar 2/2", "error True False 77 33", "no end"]
    assert os.read(screen, 1000) == b"error True False 77 33\r\n"


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
    assert "csqa_full" in grid("logs", "Base")
    (run,) = (path.parent for path in tmp_path.glob("runs/*/failed.json"))
    (run / "log.txt").unlink()
    again = grid("retry", status=1)
    assert "[1/1] Broken" in again and "Base:" not in again
    assert "error: " in again and "late.jsonl" in grid("logs", "Broken")  # one job at a time: shown and kept
    assert "no such cell" in grid("logs", "Bas", status=2)
    assert json.loads((run / "failed.json").read_text())["stage"] == "evaluate"


@pytest.mark.slow
def test_stopped_with_ctrl_c_a_cell_says_so_and_is_tried_again_from_its_checkpoint(tmp_path: Path) -> None:
    rows: dict[str, dict[str, Any]] = {"LoRA": {"evaluation": {"tasks": []}}}
    write_grid(tmp_path, tiny_grid(rows, training={"epochs": 200, "checkpoint_every": 2}))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it may be ignored
    launcher = start("grid", "submit", "grid.yaml", "--executor", "local", folder=tmp_path)
    again: subprocess.Popen[str] | None = None
    try:
        checkpoints = wait_for(tmp_path, "runs/*/train/checkpoints/step-*").parent
        launcher.send_signal(signal.SIGINT)
        _, errors = launcher.communicate(timeout=120)
        assert launcher.returncode == 130, errors
        step = max(int(path.name.removeprefix("step-")) for path in checkpoints.glob("step-*"))
        status = dualtune("grid", "status", "grid.yaml", "--executor", "local", folder=tmp_path)
        assert status.returncode == 1 and "1 stopped" in status.stderr
        assert f"{step}/600" in status.stdout and f"with a checkpoint at step {step}" in status.stdout
        again = start("grid", "retry", "grid.yaml", "--executor", "local", folder=tmp_path)
        assert again.stderr and f"resumed after step {step} " in next(
            line for line in again.stderr if "resumed" in line
        )
        again.send_signal(signal.SIGINT)
        again.communicate(timeout=120)
    finally:
        signal.signal(signal.SIGINT, before)
        for process in filter(None, (launcher, again)):
            process.kill()
