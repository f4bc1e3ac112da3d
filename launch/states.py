"""The truth about every cell: what its run folder holds, then what the queue says. Results alone make a cell done."""

import fcntl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from launch import slurm
from launch.cells import Grid, GridCell
from launch.flights import Flight, in_flight
from launch.jobs import Task
from launch.profile import Job
from launch.progress import Progress, progress
from launch.script import log_file, log_name
from launch.submission import Submission, submissions
from pipeline.files import read_json
from pipeline.run_folder import RunFolder
from pipeline.stages import describe, failure, stages_of
from pipeline.train.completion import read_result

Word = Literal["done", "running", "waiting", "failed", "cancelled", "ended", "stopped", "not submitted"]
JOBS: tuple[Job, ...] = ("evaluate", "train")


@dataclass(frozen=True)
class CellState:
    """One cell as it is now."""

    cell: GridCell
    word: Word
    detail: str = ""
    """What it does or waits for, or why it failed."""
    progress: Progress | None = None
    log: Path | None = None
    """Output of its last job."""

    @property
    def is_done(self) -> bool:
        return self.word == "done"


@dataclass
class Look:
    """One look at a grid: its submissions and the queue, read once for all cells."""

    grid: Grid
    flights: Mapping[tuple[str, Job], Flight]
    tasks: Mapping[tuple[str, Job], tuple[Submission, int, Task | None, bool]]
    """(run folder, job) -> submission, number of the array, task, was it cancelled: the last one that was submitted."""
    ends: Mapping[Task, str]
    _logs: dict[Path, frozenset[str]] = field(default_factory=dict, init=False)

    @classmethod
    def now(cls, grid: Grid, has_slurm: bool) -> "Look":
        """Ask the queue, if there is one.

        Raises:
            StageError: Slurm is there and does not answer.
        """
        every = submissions(grid.runs)
        return cls.at(grid, every, in_flight(every, slurm.queue()) if has_slurm else {})

    @classmethod
    def at(cls, grid: Grid, every: Sequence[Submission], flights: Mapping[tuple[str, Job], Flight]) -> "Look":
        names = {cell.folder.root.name for cell in grid.cells}
        tasks = {
            (name, record.job): (submission, record.number, record.task(index), index in record.cancelled)
            for submission in every
            for record in submission.records()
            for index, name in record.tasks.items()
            if name in names
        }
        gone = {task.job for key, (_, _, task, _) in tasks.items() if task and key not in flights}
        return cls(grid, flights, tasks, slurm.endings(sorted(gone)))

    def states(self) -> list[CellState]:
        """Of every cell, in the order of the grid."""
        return [self.state(cell) for cell in self.grid.cells]

    @property
    def has_table(self) -> bool:
        """Whether the last job of a submission is in the queue, which makes choices and writes the table."""
        return (self.grid.name, "aggregate") in self.flights

    def held_up(self) -> list[CellState]:
        """Of what waits for a choice, in the order of the table. It can be done by nobody but the last job."""
        word: Word = "waiting" if self.has_table else "not submitted"
        return [CellState(one.cell, word, one.words) for one in self.grid.waiting]

    def state(self, cell: GridCell) -> CellState:
        """Of one cell; one that can't be read has failed, and stops no other."""
        try:
            return self._state(cell)
        except OSError as error:
            return CellState(cell, "failed", f"cannot be read: {describe(error)}", log=self._log(cell.folder.root.name))

    def _state(self, cell: GridCell) -> CellState:
        name = cell.folder.root.name
        log = self._log(name)
        if is_done(cell):
            return CellState(cell, "done", log=log)
        for job in JOBS:
            flight = self.flights.get((name, job))
            if flight and flight.queued.state in ("RUNNING", "COMPLETING"):
                return CellState(cell, "running", job, progress(cell.config, cell.folder), log)
        for job in reversed(JOBS):
            if flight := self.flights.get((name, job)):
                return CellState(cell, "waiting", self._waits(cell, job, flight), None, log)
        if is_held(cell.folder):
            return CellState(cell, "running", "on this machine", progress(cell.config, cell.folder), log)
        return self._stopped(cell, name, log)

    def _waits(self, cell: GridCell, job: Job, flight: Flight) -> str:
        reason = flight.queued.reason
        words = f"{job}: {reason}" if reason not in ("None", "") else job
        last = failure(cell.folder)
        return f"{words}; last start: {last}" if last else words

    def _stopped(self, cell: GridCell, name: str, log: Path | None) -> CellState:
        """Nothing is in the queue, and the cell is not done."""
        if reason := failure(cell.folder):
            return CellState(cell, "failed", reason, log=log)
        found = [(job, *self.tasks[name, job]) for job in reversed(JOBS) if (name, job) in self.tasks]
        for job, _, _, task, was_cancelled in found:
            end = self.ends.get(task, "") if task else ""
            if was_cancelled or end.startswith("CANCELLED"):
                return CellState(cell, "cancelled", job, log=log)
            if end and end != "COMPLETED":
                return CellState(cell, "ended", f"{job}: {end}, its log tells more", log=log)
        if found:
            return CellState(cell, "ended", "its jobs are gone and left no valid result, its log tells more", log=log)
        return _stopped_here(cell)

    def _log(self, name: str) -> Path | None:
        """The log of the last job that has written any."""
        for job in JOBS:
            if (name, job) in self.tasks:
                submission, number, task, _ = self.tasks[name, job]
                if task and log_name(number, *task) in self._written(submission.path):
                    return log_file(submission.path, number, *task)
        return None

    def _written(self, submission: Path) -> frozenset[str]:
        """Names of a submission's logs: listed once, not asked for one by one."""
        if submission not in self._logs:
            self._logs[submission] = frozenset(file.name for file in (submission / "logs").glob("*.log"))
        return self._logs[submission]


def is_done(cell: GridCell) -> bool:
    """Whether all results are there and whole. Unlike a plan, this does not hash models and data: they may have changed
    since, which the next plan finds."""
    folder = cell.folder
    if not folder.config.exists():
        return False
    needed = stages_of(cell.config)
    if "train" in needed and read_result(cell.config, folder) is None:
        return False
    return all(_is_scored(folder, task) for task in cell.config.evaluation.tasks if "evaluate" in needed)


def _is_scored(folder: RunFolder, task: str) -> bool:
    result = read_json(folder.evaluation(task))
    return isinstance(result, dict) and bool(result.get("metrics")) and folder.samples(task).is_file()


def _stopped_here(cell: GridCell) -> CellState:
    """Nothing works on it, it is not done, no reason is recorded, and Slurm never had it."""
    names = (path.name.removeprefix("step-") for path in cell.folder.checkpoints.glob("step-*"))
    steps = [int(name) for name in names if name.isdecimal()]
    if not steps and not cell.folder.log.exists():
        return CellState(cell, "not submitted")
    words = f"on this machine, with a checkpoint at step {max(steps)}" if steps else "on this machine"
    return CellState(cell, "stopped", words, progress(cell.config, cell.folder))


def is_held(folder: RunFolder) -> bool:
    """Whether a process of this machine is working on a run."""
    try:
        with folder.lock.open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
