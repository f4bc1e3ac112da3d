"""Proof, on the user's own machine, that a killed run goes on exactly."""

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from pipeline.config import RunConfig, to_yaml
from pipeline.errors import StageError
from pipeline.files import write_text
from pipeline.run_folder import RunFolder
from pipeline.stages import Tell
from pipeline.train.completion import model_files

COMPARED = ("step", "loss", "learning_rate", "gradient_norm", "samples")


def verify_resume(config: RunConfig, steps: int, processes: int, tell: Tell) -> list[str]:
    """Train 2 x `steps` updates straight; again, killed after `steps`, and gone on; compare all of it.

    Returns:
        How the two differ, in words; empty if they are equal to the bit.

    Raises:
        StageError: a run failed, or was over before it could be killed.
    """
    place = config.paths.runs / ".verify"
    shutil.rmtree(place, ignore_errors=True)
    straight, killed = (_shortened(config, steps, place / name) for name in ("straight", "killed"))
    tell(f"training {2 * steps} steps straight")
    _Training(straight, processes).finish()
    tell(f"training again, killed after step {steps}")
    _Training(killed, processes).kill_after(steps)
    tell("going on")
    _Training(killed, processes).finish()
    differences = compare(RunFolder.of(straight), RunFolder.of(killed))
    if not differences:
        shutil.rmtree(place)
    return differences


def _shortened(config: RunConfig, steps: int, runs: Path) -> RunConfig:
    changes = {"max_steps": 2 * steps, "epochs": 1e6, "checkpoint_every": steps, "log_every": 1, "tensorboard": False}
    return config.model_copy(
        update={
            "training": config.training.model_copy(update=changes),
            "paths": config.paths.model_copy(update={"runs": runs}),
        }
    )


class _Training:
    """One run in processes of its own."""

    def __init__(self, config: RunConfig, processes: int) -> None:
        self.folder = RunFolder.of(config)
        file = config.paths.runs / "config.yaml"
        write_text(file, to_yaml(config))
        command = [sys.executable, "-m", "pipeline.cli", "train", str(file), f"--processes={processes}"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def finish(self) -> None:
        if self.process.wait():
            raise StageError(f"{self.folder.root}: the training ended with status {self.process.returncode}")

    def kill_after(self, step: int) -> None:
        """SIGKILL to all processes of the run, in the middle of a later update."""
        from pipeline.train.metrics import read_metrics

        while len(read_metrics(self.folder.metrics)) <= step:
            if self.process.poll() is not None:
                raise StageError(f"{self.folder.root}: over before it could be killed: choose more steps")
            time.sleep(0.01)
        family = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
        for member in family:
            member.kill()
        psutil.wait_procs(family)
        self.process.wait()


def compare(straight: RunFolder, resumed: RunFolder) -> list[str]:
    """How two runs of the same configuration differ: losses, order of samples, final weights."""
    from pipeline.train.metrics import read_metrics

    rows = [[_compared(row) for row in read_metrics(folder.metrics)] for folder in (straight, resumed)]
    found = [
        f"step {first['step']}: {key} {first[key]} straight, {second[key]} resumed"
        for first, second in zip(*rows, strict=False)
        for key in COMPARED
        if first[key] != second[key]
    ]
    if len(rows[0]) != len(rows[1]):
        found.append(f"{len(rows[0])} steps logged straight, {len(rows[1])} resumed")
    names = sorted(name for name in model_files(straight.model) if name.endswith(".safetensors"))
    different = [name for name in names if not _equal(straight.model / name, resumed.model / name)]
    return [*found, *(f"{name} differs" for name in different)]


def _compared(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in COMPARED}


def _equal(first: Path, second: Path) -> bool:
    return second.is_file() and first.read_bytes() == second.read_bytes()
