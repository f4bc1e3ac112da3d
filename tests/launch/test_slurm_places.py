"""Jobs of one moment on one node of a real Slurm keep to their own ports and folders; time limits of a minute work."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from launch_inputs import ask, dualtune, events, logs, needs_slurm, start, tiny_grid, wait_for_an_empty_queue

pytestmark = [pytest.mark.slow, needs_slurm]

ROWS: dict[str, dict[str, Any]] = {"LoRA": {}, "Bitune": {"method": "bitune"}}


def write(folder: Path, name: str, train: dict[str, Any], rows: dict[str, dict[str, Any]], **training: Any) -> None:
    """A grid of trainings alone, and a profile."""
    grid = tiny_grid(rows, training=training, evaluation={"tasks": []})
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({**grid, "name": name}))
    profile = {"job": {"memory": "500M"}, "train": train, "environment": {"HF_HUB_OFFLINE": "1"}}
    (folder / "cluster.yaml").write_text(yaml.safe_dump(profile))


def attempts(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "attempts.jsonl").read_text().splitlines()]


def test_grids_of_one_moment_share_no_port_and_no_folder_on_one_node(slurm_folder: Path) -> None:
    two = {"tasks_per_node": 2}
    write(slurm_folder, "first", two, ROWS, max_steps=2)
    write(slurm_folder, "second", two, {"No mixing": {"method": "no_mixing"}}, max_steps=2)
    ask("scontrol", "update", "nodename=node2", "state=drain", "reason=test")
    try:
        command = ("--cluster", "cluster.yaml", "--executor", "slurm")
        submitting = [
            start("grid", "submit", f"{name}.yaml", *command, folder=slurm_folder) for name in ("first", "second")
        ]
        for process in submitting:
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors
        wait_for_an_empty_queue()
    finally:
        ask("scontrol", "update", "nodename=node2", "state=resume")

    runs = sorted(slurm_folder.glob("runs/stories*"))
    assert [json.loads((run / "train" / "result.json").read_text())["processes"] for run in runs] == [2] * 3, logs(
        slurm_folder
    )
    assert [events(run) for run in runs] == [["begin", "complete"]] * 3
    assert {attempts(run)[0]["host"] for run in runs} == {"node1"}
    met = [json.loads(file.read_text()) for run in runs for file in (run / "train" / "rendezvous").glob("*.json")]
    assert len(met) == 3 and len({place["port"] for place in met}) == 3
    assert len(list((slurm_folder / "runs" / ".submissions").glob("*/submission.json"))) == 2


@pytest.mark.skipif(not os.environ.get("DUALTUNE_LONG_TESTS"), reason="minutes: set DUALTUNE_LONG_TESTS=1")
def test_a_time_limit_of_a_minute_is_survived_with_the_same_numbers(slurm_folder: Path) -> None:
    short = slurm_folder / "short"
    short.mkdir()
    write(slurm_folder, "straight", {}, {"Bitune": ROWS["Bitune"]}, max_steps=60, epochs=100_000)
    done = dualtune("run", "straight.yaml", folder=slurm_folder)
    assert done.returncode == 0, done.stderr
    rate = 60 / json.loads(next(slurm_folder.glob("runs/stories*/train/result.json")).read_text())["wall_seconds"]
    lasting = {"max_steps": int(120 * rate), "epochs": 100_000}
    for place in (slurm_folder, short):
        write(place, "minute", {"time": "00:01:00"}, {"Bitune": ROWS["Bitune"]}, **lasting)
    done = dualtune("run", "minute.yaml", folder=slurm_folder, timeout=900)
    assert done.returncode == 0, done.stderr
    done = dualtune("grid", "submit", "minute.yaml", "--cluster", "cluster.yaml", folder=short)
    assert done.returncode == 0, done.stderr
    wait_for_an_empty_queue()

    (run,) = short.glob("runs/stories*")
    (straight,) = slurm_folder.glob(f"runs/{run.name}")
    became = events(run)
    assert became.count("stopped") >= 1 and became[-1] == "complete", logs(short)
    final = [json.loads((place / "train" / "result.json").read_text())["final_loss"] for place in (run, straight)]
    assert final[0] == final[1]
