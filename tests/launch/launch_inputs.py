"""A tiny grid on the 260K-parameter Llama, for real runs in seconds."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests" / "fixtures" / "stories260K"
DATA = ROOT / "examples" / "data"
CLUSTER = ROOT / "slurm" / "cluster.sh"
SLURM_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "ip")
_MISSING = [command for command in _NEEDED if shutil.which(command, path=SLURM_PATH) is None]
needs_slurm = pytest.mark.skipif(
    bool(_MISSING) or os.geteuid() != 0,
    reason=f"Slurm's packages are not installed: no {', '.join(_MISSING)}" if _MISSING else "cluster.sh needs root",
)


def tiny_grid(rows: dict[str, dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """A grid of a few steps; `changes` are keys of the shared configuration."""
    config: dict[str, Any] = {
        "model": {"name": str(MODEL), "precision": "fp32"},
        "tuning": {"rank": 2, "alpha": 4},
        "data": {"sources": [{"path": str(DATA / "commonsense_qa_train.jsonl"), "limit": 12}]},
        "training": {"batch_size": 4, "micro_batch_size": 4, "learning_rate": 1e-3, "tensorboard": False},
        "evaluation": {
            "tasks": ["csqa_full"],
            "data": {"csqa_full": str(DATA / "commonsense_qa_validation.jsonl")},
            "limit": 4,
        },
    }
    for key, value in changes.items():
        config[key] = {**config.get(key, {}), **value}
    return {"name": "tiny", "config": config, "rows": rows, "seeds": [42]}


def write_grid(folder: Path, grid: dict[str, Any]) -> Path:
    """The grid as a file."""
    path = folder / "grid.yaml"
    path.write_text(yaml.safe_dump(grid, sort_keys=False), encoding="utf-8")
    return path


def start(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    """Start the command line in `folder`, as the leader of a process group of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "200",
    }
    environment.pop("DUALTUNE_DEBUG", None)
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli", *arguments],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def dualtune(*arguments: str, folder: Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Run the command line in `folder` to its end."""
    process = start(*arguments, folder=folder)
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        raise
    return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


def wait_for(path: Path, pattern: str, seconds: float = 120) -> Path:
    """The first match of a pattern, once there is one."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = sorted(path.glob(pattern))
        if found:
            return found[0]
        time.sleep(0.05)
    raise AssertionError(f"{path}/{pattern} did not appear")


def ask(*words: str) -> str:
    """What a command of Slurm prints."""
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


def wait_for_an_empty_queue(seconds: float = 1200) -> None:
    """Until every job of the cluster is over. Quiet cores need a fraction of that time."""
    until = time.monotonic() + seconds
    while queue := ask("squeue", "-h", "-r").strip():
        assert time.monotonic() < until, queue
        time.sleep(0.5)


def logs(folder: Path) -> str:
    """The output of all jobs of the submissions in `folder`."""
    return "\n".join(path.read_text() for path in sorted(folder.glob("runs/.submissions/*/logs/*")))


def events(run: Path, job: str = "train") -> list[str]:
    """What became of the attempts of a run's job, in order."""
    lines = map(json.loads, (run / "attempts.jsonl").read_text().splitlines())
    return [line["event"] for line in lines if line["job"] == job]
