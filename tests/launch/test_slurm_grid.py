"""From a grid to its table on a real Slurm of two nodes."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from launch_inputs import DATA, dualtune, needs_slurm, tiny_grid, write_grid

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
    training = {"max_steps": STEPS, "epochs": 100, "checkpoint_every": 2, "zero": {"stage": 3}}
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


def ask(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


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


def events(run: Path, job: str = "train") -> list[str]:
    lines = map(json.loads, (run / "attempts.jsonl").read_text().splitlines())
    return [line["event"] for line in lines if line["job"] == job]


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
    wait(is_over, PATIENCE, "the grid")
    return folder


def logs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("runs/.submissions/*/logs/*")))


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
