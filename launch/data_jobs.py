"""The rows of one run, prepared by the tasks of a job array and joined by a job after them.

What is to be done is read from the cache (which shares are there) and from the queue (which are on their way), where
the arrays are known by their names: nothing else is remembered, so a kill at any moment loses nothing.
"""

import hashlib
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launch import slurm
from launch.jobs import index_list
from launch.profile import Profile
from launch.script import script_around
from launch.slurm import Queued
from launch.submission import FOLDER, locked, new_folder
from pipeline.config import RunConfig, to_yaml
from pipeline.errors import UserError
from pipeline.files import write_text
from pipeline.prepare.cache import load
from pipeline.prepare.preparation import Preparation
from pipeline.prepare.shares import Shares
from pipeline.stages import Tell

SHARES, JOIN = 1, 2
"""Numbers of the two jobs in their folder."""


@dataclass(frozen=True)
class DataPlan:
    """What is there and what is to be done."""

    is_complete: bool
    missing: list[int]
    """Numbers of the shares that nobody prepares."""
    queued: list[Queued]
    """Tasks that prepare shares, or will."""
    join: Queued | None
    """The job in the queue that joins them."""

    @property
    def is_on_its_way(self) -> bool:
        return not self.missing and self.join is not None


class DataJobs:
    """The preparation of a run's rows in `count` shares.

    Raises:
        UserError: what `Preparation.of` raises; or the cluster has no arrays of so many tasks.
    """

    def __init__(self, config: RunConfig, count: int, profile: Profile, tell: Tell) -> None:
        if not slurm.is_available():
            raise UserError("no Slurm answers here: `dualtune prepare CONFIG --num-proc N` prepares on this machine")
        if count >= (largest := slurm.max_array_size()):
            raise UserError(f"--shares {count}: this cluster's arrays have at most {largest - 1}")
        self.config, self.count, self.profile, self.tell = config, count, profile, tell
        self.path = Preparation.of(config).path
        place = hashlib.sha256(os.fsencode(self.path.absolute())).hexdigest()[:8]
        self.name = f"prepare-{self.path.name}-{place}-of-{count}"
        self.resources = profile.resources("prepare")

    def plan(self) -> DataPlan:
        """Look at the queue, then at the cache: a task that ends in between has left its share."""
        waiting = [queued for queued in slurm.queue() if queued.state != "COMPLETING"]
        if load(self.path) is not None:
            return DataPlan(True, [], [], None)
        wanted = [share.number for share in Shares(self.path).missing(self.count)]
        tasks = [one for one in waiting if one.name == self.name and one.task.slot in wanted]
        taken = {one.task.slot for one in tasks}
        join = next((one for one in waiting if one.name == self._join_name), None)
        return DataPlan(False, [number for number in wanted if number not in taken], tasks, join)

    @property
    def _join_name(self) -> str:
        return f"{self.name}-join"

    def show(self) -> None:
        """Print what `submit` would do, and the scripts."""
        plan = self.plan()
        self._tell(plan)
        if not plan.is_complete and not plan.is_on_its_way:
            for script in self._scripts(plan, self.config.paths.runs.absolute() / FOLDER / "NAME").values():
                print(script)

    def _tell(self, plan: DataPlan) -> None:
        if plan.is_complete:
            self.tell(f"nothing to do: the rows are in {self.path}")
            return
        there = self.count - len(plan.missing) - len(plan.queued)
        self.tell(
            f"{self.count} shares: {there} prepared, {len(plan.queued)} in the queue, {len(plan.missing)} to do; "
            f"the rows will be in {self.path}"
        )
        if plan.is_on_its_way and plan.join:
            self.tell(f"in the queue already: job {plan.join.raw} joins them")

    def _scripts(self, plan: DataPlan, folder: Path) -> dict[int, str]:
        """Number -> script: of the shares, where one is missing, then of the join."""
        names = {SHARES: self.name, JOIN: self._join_name}
        return {
            number: script_around(
                command, names[number], number, plan.missing if number == SHARES else [], self.resources, self.profile,
                folder, Path.cwd(),
            )
            for number, command in self._commands(folder)
            if number == JOIN or plan.missing
        }  # fmt: skip

    def _commands(self, folder: Path) -> Iterator[tuple[int, str]]:
        processes = f"--num-proc={self.resources.cpus_per_task * self.resources.tasks}"
        whole = shlex.join(self.profile.command("prepare", str(folder / "config.yaml"), processes))
        yield SHARES, f'{whole} --share="$SLURM_ARRAY_TASK_ID/{self.count}"'
        yield JOIN, whole

    def submit(self) -> None:
        """Submit the shares that are missing, and a job that joins them with those that are on their way.

        Raises:
            StageError: Slurm refuses something. What was submitted before stays; the next call goes on from there.
        """
        with locked(self.config.paths.runs) as lock:
            plan = self.plan()
            self._tell(plan)
            if not plan.is_complete and not plan.is_on_its_way:
                self._execute(plan, lock)

    def _execute(self, plan: DataPlan, lock: int) -> None:
        folder = new_folder(self.config.paths.runs, f"prepare-{self.config.name}")
        write_text(folder / "config.yaml", to_yaml(self.config))
        before = [f"{one.task.job}_{one.task.slot}" for one in plan.queued]
        for number, text in self._scripts(plan, folder).items():
            file = folder / "scripts" / f"{number}.sh"
            write_text(file, text)
            after = [f"--dependency=afterok:{':'.join(before)}"] if number == JOIN and before else []
            job = slurm.submit(file, after, keep=[lock])
            before.append(job)
            words = f"shares {index_list(plan.missing)}" if number == SHARES else "joins them, after all of them"
            self.tell(f"job {job}: {words}")
        if plan.join:  # the new one waits for those shares too
            slurm.cancel([], whole=[plan.join.raw])
        self.tell(f"logs: {folder / 'logs'}; when a share has failed, the same command submits it again")
