"""From a grid to its table on a real Slurm of two nodes: undisturbed, and with everything that goes wrong."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from launch_inputs import (
    CLUSTER,
    DATA,
    ask,
    dualtune,
    events,
    logs,
    needs_slurm,
    tiny_grid,
    wait_for_an_empty_queue,
    write_grid,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

pytestmark = [pytest.mark.slow, needs_slurm]

STEPS = 20
PATIENCE = 1500
"""Seconds. Quiet cores need a fifth of it."""
PROFILE = {
    "job": {"memory": "1G", "time": "00:20:00"},
    "train": {"nodes": 2},
    "max_parallel": 1,  # two processes at a time are enough for the machine that tests
    "environment": {"HF_HUB_OFFLINE": "1"},
}


@pytest.fixture(scope="module")
def slurm(cluster: dict[str, str]) -> Any:
    """This process as a client of the cluster."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PATH", "SLURM_CONF"):
            patch.setenv(name, cluster[name])
        yield


def grid_in(folder: Path, **rows: dict[str, Any]) -> None:
    """Two methods, two seeds, two tasks; each training in one process on each of two nodes, sharded by ZeRO-3."""
    folder.mkdir()
    training = {"max_steps": STEPS, "epochs": 100, "checkpoint_every": 2, "zero": {"stage": 3}, "tensorboard": True}
    data = {name: str(DATA / f"{file}.jsonl") for name, file in
            (("csqa_full", "commonsense_qa_validation"), ("piqa_full", "piqa_validation"))}  # fmt: skip
    evaluation = {"tasks": list(data), "data": data}
    grid = tiny_grid({"LoRA": {}, "Bitune": {"method": "bitune"}, **rows}, training=training, evaluation=evaluation)
    write_grid(folder, {**grid, "seeds": [1, 2], "baseline": "LoRA"})
    (folder / "cluster.yaml").write_text(yaml.safe_dump(PROFILE))


def grid(*arguments: str, folder: Path, status: int = 0) -> str:
    done = dualtune("grid", *arguments, folder=folder)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def wait(done: Callable[[], Any], seconds: float, what: str) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := done():
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what} not within {seconds} s; queue:\n{ask('squeue', '-r')}")


def is_over() -> bool:
    return not ask("squeue", "-h", "-r").strip()


def runs(folder: Path) -> dict[str, Path]:
    """`bitune-1` -> run folder."""
    return {f"{p.name.split('-')[1]}-{p.name.split('seed')[1][0]}": p for p in (folder / "runs").glob("stories*")}


def steps(run: Path) -> list[int]:
    metrics = run / "train" / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return [json.loads(line)["step"] for line in lines if line.endswith("}")]


def tracked_steps(run: Path) -> list[int]:
    """The updates that TensorBoard shows of a run, over all its starts."""
    events = EventAccumulator(str(run / "train" / "tensorboard")).Reload().Scalars("train/loss")
    return [event.step for event in events]


def numbers(folder: Path) -> dict[str, Any]:
    """Scores and final losses of all runs that have them."""
    found = {}
    for name, run in runs(folder).items():
        if (run / "train" / "result.json").exists():
            scores = [json.loads(path.read_text())["metrics"] for path in sorted(run.glob("evaluate/*_full.json"))]
            found[name] = (json.loads((run / "train" / "result.json").read_text())["final_loss"], scores)
    return found


@pytest.fixture(scope="module")
def undisturbed(slurm: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slurm") / "undisturbed"
    grid_in(folder)
    grid("submit", "grid.yaml", "--cluster", "cluster.yaml", folder=folder)
    wait_for_an_empty_queue(PATIENCE)
    return folder


def test_one_command_leads_to_the_table(undisturbed: Path) -> None:
    report = undisturbed / "runs" / "reports" / "tiny" / "report.md"
    assert report.is_file(), logs(undisturbed)
    assert len(numbers(undisturbed)) == 4
    assert all(events(run) == ["begin", "complete"] and steps(run) == [*range(1, STEPS + 1)]
               for run in runs(undisturbed).values())  # fmt: skip
    assert "4 cells: 4 done" in grid("status", "grid.yaml", folder=undisturbed)
    assert "nothing to compute" in grid("submit", "grid.yaml", "--cluster", "cluster.yaml", folder=undisturbed)
    assert is_over()


def test_ranks_on_two_nodes_met_at_an_announced_port(undisturbed: Path) -> None:
    ports = []
    for run in runs(undisturbed).values():
        (file,) = (run / "train" / "rendezvous").glob("*.json")
        found = json.loads(file.read_text())
        assert found["address"] == "node1"
        ports.append(found["port"])
        assert json.loads((run / "train" / "result.json").read_text())["processes"] == 2
    assert len(set(ports)) == len(ports)


@pytest.mark.skipif(not os.environ.get("DUALTUNE_LONG_TESTS"), reason="minutes: set DUALTUNE_LONG_TESTS=1")
def test_a_disturbed_grid_ends_with_the_same_numbers(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "disturbed"
    broken = tmp_path / "broken.jsonl"
    broken.write_text("not JSON\n")
    grid_in(folder, Broken={"method": "no_mixing", "data": {"sources": [{"path": str(broken)}]}})
    complete = runs(undisturbed)["bitune-2"]  # one that is there already: nothing is trained twice
    shutil.copytree(complete, folder / "runs" / complete.name)
    killed_between_two_submissions(folder, tmp_path / "bin")
    first = set(ask("squeue", "-h", "-o", "%F").split())
    told = grid("submit", "grid.yaml", "--cluster", "cluster.yaml", folder=folder)
    assert "in the queue already: LoRA, seed 1: train in job" in told
    assert len(first) == 1 and first < set(ask("squeue", "-h", "-o", "%F").split())

    disturb(folder, "causal-1", lambda job, run: ask("scontrol", "requeue", job))
    disturb(folder, "causal-2", signalled)
    disturb(folder, "bitune-1", lambda job, run: ask(str(CLUSTER), "-d", cluster_folder(), "kill-node", "node2"))
    wait(lambda: not ask("squeue", "-h", "-t", "RUNNING,COMPLETING"), 120, "the end of node2")
    ask(str(CLUSTER), "-d", cluster_folder(), "start-node", "node2")
    wait_for_an_empty_queue(PATIENCE)

    found, expected = numbers(folder), numbers(undisturbed)
    assert {name: found[name] for name in expected} == expected, logs(folder)
    trained = {name: events(run) for name, run in runs(folder).items()}
    assert all(names.count("complete") == 1 for name, names in trained.items() if name in expected), trained
    assert trained["causal-1"] == trained["causal-2"] == ["begin", "stopped", "begin", "complete"]
    assert logs(folder).count("resumed after step") >= 3
    assert all(steps(runs(folder)[name]) == tracked_steps(runs(folder)[name]) == [*range(1, STEPS + 1)]
               for name in expected)  # fmt: skip
    report = (folder / "runs" / "reports" / "tiny" / "report.md").read_text()
    assert "broken.jsonl" in report
    states = grid("status", "grid.yaml", folder=folder, status=1)
    assert "6 cells: 4 done, 2 failed" in states and "broken.jsonl" in states


def signalled(job: str, _run: Path) -> None:
    """scancel may repeat itself for a minute while another task of the array is being requeued."""
    command = ["timeout", "3", "scancel", "--batch", "--signal=USR1", job]
    subprocess.run(command, check=False, timeout=60)


def cluster_folder() -> str:
    return str(Path(os.environ["SLURM_CONF"]).parent)


def killed_between_two_submissions(folder: Path, place: Path) -> None:
    """Slurm takes the first array, and the submitter dies before it hears of it."""
    place.mkdir()
    real = ask("which", "sbatch").strip()
    (place / "sbatch").write_text(f'#!/bin/sh\n{real} "$@" >/dev/null\nkill -9 $PPID\n')
    (place / "sbatch").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{place}:{os.environ['PATH']}")
        done = dualtune("grid", "submit", "grid.yaml", "--cluster", "cluster.yaml", folder=folder)
    assert done.returncode == -signal.SIGKILL


def disturb(folder: Path, name: str, act: Callable[[str, Path], Any]) -> str:
    """Act on a training's job once it is some steps along."""
    run = wait(
        lambda: name in runs(folder) and len(steps(runs(folder)[name])) >= 3 and runs(folder)[name], PATIENCE, name
    )
    begun = [json.loads(line) for line in (run / "attempts.jsonl").read_text().splitlines()]
    job = str(begun[-1]["slurm_job"])
    act(job, run)
    return job
