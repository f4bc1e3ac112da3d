"""Jobs of one moment on one node of a real Slurm keep to their own ports and folders; time limits of a minute work."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from launch_inputs import dualtune, needs_slurm, start, tiny_grid

pytestmark = [pytest.mark.slow, needs_slurm]

ROWS: dict[str, dict[str, Any]] = {"LoRA": {}, "Bitune": {"method": "bitune"}}


@pytest.fixture
def folder(cluster: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, cluster[name])
    return tmp_path


def write(folder: Path, name: str, train: dict[str, Any], rows: dict[str, dict[str, Any]], **training: Any) -> None:
    """A grid of trainings alone, and a profile."""
    grid = tiny_grid(rows, training=training, evaluation={"tasks": []})
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({**grid, "name": name}))
    profile = {"job": {"memory": "500M"}, "train": train, "environment": {"HF_HUB_OFFLINE": "1"}}
    (folder / "cluster.yaml").write_text(yaml.safe_dump(profile))


def ask(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


def wait_until_all_is_over() -> None:
    until = time.monotonic() + 1200
    while queue := ask("squeue", "-r", "-h").strip():
        assert time.monotonic() < until, queue
        time.sleep(0.5)


def attempts(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "attempts.jsonl").read_text().splitlines()]


def logs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("runs/.submissions/*/logs/*")))


def test_grids_of_one_moment_share_no_port_and_no_folder_on_one_node(folder: Path) -> None:
    two = {"tasks_per_node": 2}
    write(folder, "first", two, ROWS, max_steps=2)
    write(folder, "second", two, {"No mixing": {"method": "no_mixing"}}, max_steps=2)
    ask("scontrol", "update", "nodename=node2", "state=drain", "reason=test")
    try:
        command = ("--cluster", "cluster.yaml", "--executor", "slurm")
        submitting = [start("grid", "submit", f"{name}.yaml", *command, folder=folder) for name in ("first", "second")]
        for process in submitting:
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors
        wait_until_all_is_over()
    finally:
        ask("scontrol", "update", "nodename=node2", "state=resume")

    runs = sorted(folder.glob("runs/stories*"))
    assert [json.loads((run / "train" / "result.json").read_text())["processes"] for run in runs] == [2] * 3, logs(
        folder
    )
    assert [[event["event"] for event in attempts(run)] for run in runs] == [["begin", "complete"]] * 3
    assert {attempts(run)[0]["host"] for run in runs} == {"node1"}
    met = [json.loads(file.read_text()) for run in runs for file in (run / "train" / "rendezvous").glob("*.json")]
    assert len(met) == 3 and len({place["port"] for place in met}) == 3
    assert len(list((folder / "runs" / ".submissions").glob("*/submission.json"))) == 2


@pytest.mark.skipif(not os.environ.get("DUALTUNE_LONG_TESTS"), reason="minutes: set DUALTUNE_LONG_TESTS=1")
def test_a_time_limit_of_a_minute_is_survived_with_the_same_numbers(folder: Path) -> None:
    short = folder / "short"
    short.mkdir()
    write(folder, "straight", {}, {"Bitune": ROWS["Bitune"]}, max_steps=60, epochs=100_000)
    done = dualtune("run", "straight.yaml", folder=folder)
    assert done.returncode == 0, done.stderr
    rate = 60 / json.loads(next(folder.glob("runs/stories*/train/result.json")).read_text())["wall_seconds"]
    lasting = {"max_steps": int(120 * rate), "epochs": 100_000}
    for place in (folder, short):
        write(place, "minute", {"time": "00:01:00"}, {"Bitune": ROWS["Bitune"]}, **lasting)
    done = dualtune("run", "minute.yaml", folder=folder, timeout=900)
    assert done.returncode == 0, done.stderr
    done = dualtune("grid", "submit", "minute.yaml", "--cluster", "cluster.yaml", folder=short)
    assert done.returncode == 0, done.stderr
    wait_until_all_is_over()

    (run,) = short.glob("runs/stories*")
    (straight,) = folder.glob(f"runs/{run.name}")
    events = [event["event"] for event in attempts(run)]
    assert events.count("stopped") >= 1 and events[-1] == "complete", logs(short)
    final = [json.loads((place / "train" / "result.json").read_text())["final_loss"] for place in (run, straight)]
    assert final[0] == final[1]
