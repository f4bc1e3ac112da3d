"""What runs in a job, around a stage of one cell: `python -m launch.supervisor SUBMISSION ARRAY`.

It starts the stage, hands signals on to it, counts attempts, and puts the job back into the queue when the stage was
stopped by a signal (preemption, time limit) or failed in a way that another start may cure.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import cast

from launch import slurm
from launch.attempts import Attempts, End
from launch.cells import GridCell
from launch.profile import Job, Profile, Resources
from launch.progress import reached
from launch.script import margin
from launch.submission import Record, Submission
from pipeline.errors import StageError, UserError
from pipeline.options import tell
from pipeline.stages import Stage, describe, failure, record_failure, state
from pipeline.train.signals import SIGNALS, SUPERVISED

STOPS = {*SIGNALS, signal.SIGALRM}
EARLY = 75.0
"""Slurm sends the signal before a time limit up to a minute too early."""
POLL = 0.2
STUCK = 0.8
"""The part of the time between deadline and time limit that a stage may take to stop."""
NAMES = {number.value: number.name for number in signal.Signals}
PATIENCE = 600.0
"""Seconds to wait for the end that a requeued job comes to."""


class Supervisor:
    """One start of one stage of one cell."""

    def __init__(self, job: Job, cell: GridCell, resources: Resources, profile: Profile, submission: str) -> None:
        self.job, self.cell, self.resources, self.profile = job, cell, resources, profile
        self.folder = cell.folder
        self.own = slurm.own_job(os.environ)
        self.attempts = Attempts(self.folder.root / "attempts.jsonl", submission, job)
        self.received: int | None = None
        end = slurm.end_time(self.own)
        self.margin = margin(resources.seconds)
        self.deadline = end - self.margin if end else float("inf")

    def run(self) -> int:
        """Exit status of the job; a job that goes back into the queue is ended before it has one."""
        if self._is_complete():
            tell(f"{self.job}: complete, nothing to do")
            return 0
        if hopeless := self.attempts.verdict(self._reached()):
            return self._give_up(hopeless)
        self.attempts.begin(self._reached())
        self.folder.create(self.cell.config)
        for number in SIGNALS:
            signal.signal(number, self._note)
        status = self._wait(subprocess.Popen(self._command(), env=self._environment()))
        return self._judge(status)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        left = self.deadline - time.time()
        if number == signal.SIGUSR1 and 0 < left <= EARLY:
            return  # Slurm's warning of the time limit: the deadline is our own
        self.received = self.received or number

    def _wait(self, stage: subprocess.Popen[bytes]) -> int:
        """Wait for the stage, asking it once to stop. One that is stuck is ended before the job's time is over, after
        which Slurm would not start it again."""
        asked = False
        while stage.poll() is None:
            if time.time() >= self.deadline:
                self.received = self.received or signal.SIGALRM
            if self.received and not asked:
                asked = True
                tell(f"{NAMES[self.received]}: asking the stage to stop")
                stage.send_signal(signal.SIGUSR1)  # srun hands this one on to all its tasks
            if time.time() >= self.deadline + STUCK * self.margin:
                stage.kill()
            time.sleep(POLL)
        return stage.returncode

    def _command(self) -> list[str]:
        words = self.profile.command(self.job, str(self.folder.config))
        resources = self.resources
        if self.job == "evaluate":
            return [*words, f"--processes={resources.tasks}"] if resources.tasks > 1 else words
        if resources.nodes * resources.tasks == 1:
            return words
        return [
            "srun", "--kill-on-bad-exit=1", "--unbuffered", f"--nodes={resources.nodes}",
            f"--ntasks={resources.nodes * resources.tasks}", f"--ntasks-per-node={resources.tasks}",
            f"--cpus-per-task={resources.cpus_per_task}", *words,
        ]  # fmt: skip

    def _environment(self) -> dict[str, str]:
        start = "-".join([self.own, os.environ.get("SLURM_RESTART_COUNT", "0")])
        meeting = self.folder.root / "train" / "rendezvous" / f"{start}.json"
        own = {SUPERVISED: "1", "DUALTUNE_RENDEZVOUS": str(meeting.absolute())}
        threads = {"OMP_NUM_THREADS": str(self.resources.cpus_per_task)}
        environment = {**threads, **os.environ, **own}
        environment.pop("SLURM_JOB_END_TIME", None)  # the deadline is this process's business
        return environment

    def _judge(self, status: int) -> int:
        """Record how the attempt ended, and what follows from it."""
        number = -status if status < 0 else status - 128
        if self._is_complete():
            self._finish("complete", status)
            return 0
        if self.received or number in STOPS:
            self._finish("stopped", status)
            return self._again(128 + (self.received or number))
        if status == UserError.status:  # no other start would cure it
            self._finish("failed", status)
            return status
        if name := NAMES.get(number):
            record_failure(self.folder, self.job, f"killed by {name}" + (" (out of memory?)" if number == 9 else ""))
        elif not failure(self.folder):
            record_failure(self.folder, self.job, f"its process ended with status {status} and left no valid result")
        self._finish("failed", status)
        return self._again(1)

    def _finish(self, end: End, status: int) -> None:
        self.attempts.finish(end, self._reached(), status, failure(self.folder) if end == "failed" else "")

    def _again(self, status: int) -> int:
        """Back into the queue, unless that is hopeless or somebody is ending the job."""
        if hopeless := self.attempts.verdict(self._reached()):
            return self._give_up(hopeless)
        if not slurm.is_running(self.own):
            tell("the job is being ended")
            return status
        self.received = None  # Slurm's signal may arrive before its answer does
        try:
            slurm.requeue(self.own)
        except StageError as error:
            record_failure(self.folder, self.job, f"cannot be put back into the queue: {error}")
            return status
        tell(f"job {self.own} is put back into the queue")
        until = time.monotonic() + PATIENCE
        while not self.received and time.monotonic() < until:
            time.sleep(POLL)
        return status

    def _give_up(self, words: str) -> int:
        last = failure(self.folder).removeprefix(f"{self.job}: ")
        place = f"step {self._reached()}" if self.job == "train" else "its answers"
        reason = f"{words} ({place})" + (f": {last}" if last and "given up" not in last else "")
        record_failure(self.folder, self.job, reason)
        tell(f"error: {reason}")
        return 1

    def _reached(self) -> int:
        return reached(self.job, self.folder)

    def _is_complete(self) -> bool:
        return state(cast(Stage, self.job), self.cell.config, self.folder).complete


def main(arguments: list[str]) -> int:
    """Do what an array's task is there for."""
    submission, number = Submission(Path(arguments[0])), int(arguments[1])
    record = submission.record(number)
    if record is None:
        tell(f"error: {submission.path}: there is no array {number}")
        return 1
    if record.job == "aggregate":
        from launch.aggregate import aggregate

        return aggregate(submission)
    return _supervised(submission, record, int(os.environ["SLURM_ARRAY_TASK_ID"]))


def _supervised(submission: Submission, record: Record, index: int) -> int:
    profile, cell = submission.profile, submission.cell(record.positions[index])
    resources = profile.resources(record.job, str(cell))
    try:
        return Supervisor(record.job, cell, resources, profile, submission.path.name).run()
    except (UserError, OSError) as error:  # such as a full disk, or a folder of somebody else's
        record_failure(cell.folder, record.job, describe(error))
        tell(f"error: {describe(error)}")
        return getattr(error, "status", StageError.status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
