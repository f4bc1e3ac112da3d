"""Executing a plan on this machine: one process for each incomplete cell."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from types import FrameType

from launch.cells import GridCell
from launch.devices import deal, visible_gpus
from launch.output import shown_and_kept
from launch.plan import CellPlan, plan_cell
from pipeline.errors import UserError
from pipeline.stages import Tell, describe, failure, record_failure
from pipeline.train.spawn import PARENT, python_path


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


class LocalExecutor:
    """Runs cells in processes of this machine, `jobs` at a time, each with its own part of the GPUs. One that fails
    does not stop the others.

    Each cell writes to log.txt in its run folder; with one job at a time the terminal shows it too, with progress bars.

    Args:
        processes: of each cell's training.
    """

    def __init__(self, jobs: int, tell: Tell, processes: int = 1) -> None:
        self.jobs, self.processes = jobs, processes
        self.tell = tell
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._stopped = False
        self._hands: SimpleQueue[str | None] = SimpleQueue()
        for hand in deal(visible_gpus(os.environ), jobs):
            self._hands.put(hand)

    def execute(self, plans: Sequence[CellPlan]) -> list[tuple[GridCell, str]]:
        """Run the incomplete cells; return those that failed and why."""
        todo = [planned.cell for planned in plans if not planned.complete]
        self._total = len(todo)
        pool = ThreadPoolExecutor(self.jobs)
        before = signal.signal(signal.SIGTERM, _exit)  # a batch system's time limit: the cells get it too, and save
        try:
            reasons = list(pool.map(self._run, range(1, len(todo) + 1), todo))
        except BaseException:
            self._stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
            signal.signal(signal.SIGTERM, before)
        return [(cell, reason) for cell, reason in zip(todo, reasons, strict=True) if reason]

    def _run(self, number: int, cell: GridCell) -> str:
        """Run one cell to its end; return why it failed, or ""."""
        if self._stopped:
            return "not started"
        self.tell(f"[{number}/{self._total}] {cell}: {cell.folder.root}")
        try:
            cell.folder.create(cell.config)
            cell.folder.failure.unlink(missing_ok=True)
        except (UserError, OSError) as error:
            return describe(error)
        gpus = self._hands.get()
        try:
            with self._output(cell) as output:
                status = self._wait(cell.folder.config, output, gpus)
        finally:
            self._hands.put(gpus)
        if status == 0 and plan_cell(cell).complete:
            return ""
        reason = self._reason(cell, status)
        if not self._stopped:
            self.tell(f"[{number}/{self._total}] {cell} failed: {reason}")
        return reason

    @contextmanager
    def _output(self, cell: GridCell) -> Iterator[tuple[int, int]]:
        if self.jobs == 1:
            with shown_and_kept(cell.folder.log) as channels:
                yield channels
            return
        with cell.folder.log.open("ab") as log:
            yield log.fileno(), log.fileno()

    def _wait(self, config: Path, output: tuple[int, int], gpus: str | None) -> int:
        command = [
            sys.executable,
            "-m",
            "pipeline.cli",
            "run",
            str(config),
            "--no-report",
            f"--processes={self.processes}",
        ]
        with self._lock:
            if self._stopped:
                return -signal.SIGTERM
            # A process group of its own: Ctrl-C reaches this process only, which hands on exactly one signal.
            environment = self._environment(gpus)
            child = subprocess.Popen(command, stdout=output[0], stderr=output[1], env=environment, process_group=0)
            self._running.add(child)
        try:
            return child.wait()
        finally:
            self._running.discard(child)

    def _environment(self, gpus: str | None) -> dict[str, str]:
        """The code and the share of the machine that a child gets."""
        devices = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}
        threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // self.jobs))} if self.jobs > 1 else {}
        return {**threads, **os.environ, **devices, "PYTHONPATH": python_path(), PARENT: str(os.getpid())}

    def _reason(self, cell: GridCell, status: int) -> str:
        """What the child recorded; when it could not (killed), that is recorded here."""
        if status < 0 and not self._stopped:
            record_failure(cell.folder, "run", f"killed by {signal.Signals(-status).name}")
        return failure(cell.folder) or f"its process ended with status {status}"

    def _stop(self) -> None:
        """End the running cells in good order (training saves a checkpoint) and start no others."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for child in running:
            child.terminate()
        try:
            for child in running:
                child.wait()
        except KeyboardInterrupt:  # a second Ctrl-C
            for child in running:
                child.kill()
            raise
