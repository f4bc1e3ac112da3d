"""Real runs of a tiny grid: failures, skipping, kills."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from launch_inputs import dualtune, start, tiny_grid, wait_for, write_grid

from pipeline.run_folder import RunFolder
from pipeline.stages import exclusive

pytestmark = pytest.mark.slow


def table(folder: Path) -> str:
    """The written table."""
    return (folder / "runs" / "reports" / "tiny" / "report.md").read_text(encoding="utf-8")


def test_a_failing_run_stops_no_other_and_the_next_call_does_only_what_is_missing(tmp_path: Path) -> None:
    late = tmp_path / "late.jsonl"
    late.write_text("not JSON\n", encoding="utf-8")
    rows = {
        "Broken": {"data": {"sources": [{"path": str(late)}]}},
        "Pretrained": {"tuning": "none"},
        "Bitune": {"method": "bitune"},
    }
    write_grid(tmp_path, {**tiny_grid(rows), "baseline": "Pretrained"})
    first = dualtune("run", "grid.yaml", "--jobs", "2", folder=tmp_path)
    assert first.returncode == 1, first.stderr
    assert "Traceback" not in first.stderr
    assert f"failed: Broken, seed 42: prepare: {late}" in first.stderr
    assert "late.jsonl: no row can be read" in table(tmp_path)
    (broken,) = (file.parent for file in (tmp_path / "runs").glob("*/failed.json"))
    assert json.loads((broken / "failed.json").read_text(encoding="utf-8"))["stage"] == "prepare"
    assert str(late) in (broken / "log.txt").read_text(encoding="utf-8")
    files = [path for pattern in ("evaluate/*", "train/result.json") for path in tmp_path.glob(f"runs/*/{pattern}")]
    results = {path: path.stat().st_mtime_ns for path in files}
    assert len(results) == 5  # two evaluations with their records, one training

    row = {"instruction": "Name a colour.", "input": "", "output": "Blue."}
    late.write_text("\n".join([json.dumps(row)] * 4) + "\n", encoding="utf-8")
    second = dualtune("run", "grid.yaml", folder=tmp_path)
    assert second.returncode == 0, second.stderr
    assert "[1/1] Broken, seed 42" in second.stderr
    assert not (broken / "failed.json").exists()
    assert {path: path.stat().st_mtime_ns for path in results} == results
    assert "late.jsonl" not in table(tmp_path)

    typo = dualtune("run", "grid.yaml", "evaluation.data.csqa_full=gone.jsonl", folder=tmp_path)
    assert typo.returncode == 2 and not list(tmp_path.glob("runs/*/failed.json"))
    whole = (broken / "config.yaml").read_text(encoding="utf-8")
    (broken / "config.yaml").write_text(whole.replace("csqa_full", "csqa_ful"), encoding="utf-8")
    (broken / "failed.json").write_text('{"stage": "evaluate", "error": "unknown task"}', encoding="utf-8")
    began = time.monotonic()
    third = dualtune("run", "grid.yaml", folder=tmp_path)
    assert "all 7 stages are complete, nothing to compute" in third.stderr
    assert third.returncode == 0 and time.monotonic() - began < 30
    assert (broken / "config.yaml").read_text(encoding="utf-8") == whole and not (broken / "failed.json").exists()

    late.write_text(json.dumps(row) + "\n", encoding="utf-8")
    changed = dualtune("run", "grid.yaml", "--dry-run", folder=tmp_path)
    assert f"to do: {late} changed since the training" in changed.stdout


def test_killed_in_the_middle_the_next_call_ends_with_the_same_table(tmp_path: Path) -> None:
    rows: dict[str, dict[str, str]] = {"Bitune": {"method": "bitune"}, "Pretrained": {"tuning": "none"}}
    grid = tiny_grid(rows, training={"checkpoint_every": 2, "epochs": 20})
    killed, straight = tmp_path / "killed", tmp_path / "straight"
    for folder in (killed, straight):
        folder.mkdir()
        write_grid(folder, grid)

    launcher = start("run", "grid.yaml", folder=killed)
    checkpoint = wait_for(killed, "runs/*-bitune-*/train/checkpoints/step-*")
    run = checkpoint.parents[2]
    os.kill(int((run / ".lock").read_text(encoding="utf-8")), signal.SIGKILL)
    errors = launcher.communicate()[1]
    assert launcher.returncode == 1
    assert "failed: Bitune, seed 42: run: killed by SIGKILL" in errors
    assert "killed by SIGKILL" in table(killed)

    launcher = start("run", "grid.yaml", folder=killed)
    wait_for(run, "train/checkpoints/step-*[!2]")  # a later one
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.communicate()  # ends when the orphaned run, which holds the pipe, has ended too
    assert not (run / "train" / "result.json").exists()

    again = dualtune("run", "grid.yaml", folder=killed)
    assert again.returncode == 0, again.stderr
    assert "resumed after step" in again.stderr
    undisturbed = dualtune("run", "grid.yaml", folder=straight)
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert table(killed) == table(straight)


def test_a_second_process_waits_for_the_run_folder(tmp_path: Path) -> None:
    folder, told, done = RunFolder(tmp_path), threading.Event(), threading.Event()
    messages: list[str] = []

    def second() -> None:
        with exclusive(folder, lambda message: (messages.append(message), told.set())[0]):
            done.set()

    with exclusive(folder, messages.append):
        thread = threading.Thread(target=second)
        thread.start()
        assert told.wait(10) and not done.is_set()
    thread.join(10)
    assert done.is_set()
    assert messages == [f"{tmp_path}: process {os.getpid()} is working on it, waiting"]
