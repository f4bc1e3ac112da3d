"""Proof, on the user's own machine, that a killed run goes on exactly."""

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from pipeline.config import RunConfig, to_yaml
from pipeline.errors import StageError
from pipeline.files import write_text
from pipeline.run_folder import RunFolder
from pipeline.stages import Tell
from pipeline.train.completion import model_files

INCOMPARABLE = ("wall_seconds", "tokens_per_second", "model_flops_utilisation", "peak_memory_bytes")
"""Metrics that no two runs have in common."""
POLL = 0.001
"""Seconds between looks at a run that is to be killed: shorter than a save."""


def verify_resume(config: RunConfig, steps: int, kills: int, processes: int, tell: Tell) -> list[str]:
    """Train `steps` x (`kills` + 1) updates straight; and again, killed `kills` times at random; compare all of it.

    The kills are SIGKILL to all processes at once, within `steps` updates of each start; every other one
    waits for a save and strikes inside it.

    Returns:
        How the two differ, in words; empty if they are equal to the bit.

    Raises:
        StageError: a run failed, or was over before it could be killed.
    """
    place = config.paths.runs / ".verify"
    shutil.rmtree(place, ignore_errors=True)
    total = steps * (kills + 1)
    straight, killed = (_shortened(config, total, steps, place / name) for name in ("straight", "killed"))
    tell(f"training {total} steps straight")
    _Training(straight, processes).finish()
    torn = 0
    for number in range(1, kills + 1):
        step, is_torn = _Training(killed, processes).kill(steps, in_save=number % 2 == 0)
        torn += is_torn
        tell(f"kill {number} of {kills}: after step {step} of {total}{', inside a save' if is_torn else ''}")
    tell("going on to the end")
    _Training(killed, processes).finish()
    tell(f"killed {kills} times, {torn} of them inside a save")
    differences = compare(RunFolder.of(straight), RunFolder.of(killed))
    if not differences:
        shutil.rmtree(place)
    return differences


def _shortened(config: RunConfig, total: int, steps: int, runs: Path) -> RunConfig:
    changes = {
        "max_steps": total, "epochs": 1e6, "checkpoint_every": max(1, steps // 4), "log_every": 1, "trackers": []
    }  # fmt: skip
    return config.model_copy(
        update={
            "training": config.training.model_copy(update=changes),
            "paths": config.paths.model_copy(update={"runs": runs}),
        }
    )


class _Training:
    """One start of a run, in processes of its own."""

    def __init__(self, config: RunConfig, processes: int) -> None:
        self.folder = RunFolder.of(config)
        self.record_before = self._record()
        file = config.paths.runs / "config.yaml"
        write_text(file, to_yaml(config))
        command = [sys.executable, "-m", "pipeline.cli", "train", str(file), f"--processes={processes}"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def finish(self) -> None:
        if self.process.wait():
            raise StageError(f"{self.folder.root}: the training ended with status {self.process.returncode}")

    def kill(self, steps: int, in_save: bool) -> tuple[int, bool]:
        """SIGKILL to all processes, at random within `steps` updates; the last step logged, and whether a torn
        checkpoint is left."""
        self._wait(lambda: self._record() not in (None, self.record_before))  # a start writes a new one
        first = len(self._rows())
        after = first + random.randint(1, max(1, steps // 2))
        self._wait(lambda: len(self._rows()) >= after)
        if in_save:
            self._wait(lambda: any(self.folder.checkpoints.glob(".step-*")))
        else:
            time.sleep(random.uniform(0, 2) * self._rows()[-1]["wall_seconds"] / after)  # within two updates
        family = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
        for member in family:
            member.kill()
        psutil.wait_procs(family)
        self.process.wait()
        return len(self._rows()), any(self.folder.checkpoints.glob(".step-*"))

    def _record(self) -> int | None:
        """Which file the metrics are: each start puts a new one in the place of the last one's."""
        return self.folder.metrics.stat().st_ino if self.folder.metrics.exists() else None

    def _rows(self) -> list[dict[str, Any]]:
        from pipeline.train.metrics import read_metrics

        return read_metrics(self.folder.metrics)

    def _wait(self, is_there: Callable[[], bool]) -> None:
        while not is_there():
            if self.process.poll() is not None:
                raise StageError(f"{self.folder.root}: over before it could be killed: choose more steps")
            time.sleep(POLL)


def compare(straight: RunFolder, resumed: RunFolder) -> list[str]:
    """How two runs of the same configuration differ: metrics, order of samples, final weights."""
    from pipeline.train.metrics import read_metrics

    rows = [[_comparable(row) for row in read_metrics(folder.metrics)] for folder in (straight, resumed)]
    found = [
        f"step {first['step']}: {key} {first.get(key)} straight, {second.get(key)} resumed"
        for first, second in zip(*rows, strict=False)
        for key in first | second
        if first.get(key) != second.get(key)
    ]
    if len(rows[0]) != len(rows[1]):
        found.append(f"{len(rows[0])} steps logged straight, {len(rows[1])} resumed")
    names = sorted(name for name in model_files(straight.model) if name.endswith(".safetensors"))
    different = [name for name in names if not _equal(straight.model / name, resumed.model / name)]
    return [*found, *(f"{name} differs" for name in different)]


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in INCOMPARABLE}


def _equal(first: Path, second: Path) -> bool:
    return second.is_file() and first.read_bytes() == second.read_bytes()
