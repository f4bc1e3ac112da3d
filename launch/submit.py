"""Handing a plan to Slurm, so that a kill at any moment loses no job and makes none twice."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launch import slurm
from launch.cells import Grid
from launch.flights import Flight, in_flight, tasks
from launch.jobs import Array, JobPlan, plan_jobs
from launch.plan import CellPlan
from launch.profile import Job, Profile, Resources
from launch.script import script
from launch.submission import Record, Submission, locked, submissions
from pipeline.files import write_text
from pipeline.stages import Tell

Flights = dict[tuple[str, Job], Flight]


@dataclass
class Submitter:
    """Submits what is missing of one grid."""

    grid: Grid
    profile: Profile
    tell: Tell

    def plan(self, plans: Sequence[CellPlan]) -> JobPlan:
        """What `submit` would do now; `plans` has one of every cell, in the order of the grid."""
        return self._plan(plans, self._flights())

    def submit(self, plans: Sequence[CellPlan]) -> JobPlan:
        """Submit all of it: arrays, then the table after all of them.

        Raises:
            StageError: Slurm refuses something. What was submitted before stays; the next call goes on from there.
        """
        with locked(self.grid.runs) as lock:
            flights = self._flights()
            plan = self._plan(plans, flights)
            table = flights.get((self.grid.name, "aggregate"))
            if plan.arrays or (plan.adopted and not table):
                self._execute(plan, table, lock)
            return plan

    def _flights(self) -> Flights:
        """Without the job that this runs in: what it does is not done by waiting for it."""
        own = os.environ.get("SLURM_JOB_ID")
        return in_flight(submissions(self.grid.runs), [queued for queued in slurm.queue() if queued.raw != own])

    def _plan(self, plans: Sequence[CellPlan], flights: Flights) -> JobPlan:
        return plan_jobs(plans, self.profile, slurm.max_array_size(), tasks(flights))

    def _execute(self, plan: JobPlan, old_table: Flight | None, lock: int) -> None:
        submission = Submission.create(self.grid, self.profile)
        self.tell(f"submission: {submission.path}")
        ids = {task.job for found in plan.adopted.values() for task in found.values()}
        submitted: dict[int, str] = {}
        for array in plan.arrays:
            submitted[array.number] = self._submit_array(submission, array, submitted, lock)
        self._submit_table(submission, plan.aggregate, [*submitted.values(), *sorted(ids)], lock)
        if old_table and _cells(old_table.submission.grid()) <= _cells(self.grid):  # this one waits for those jobs too
            slurm.cancel([], whole=[old_table.queued.raw])

    def _submit_array(self, submission: Submission, array: Array, submitted: dict[int, str], lock: int) -> str:
        record = submission.new_record(array, self.grid)
        before = submitted[array.after] if array.after else array.after_job
        arguments = [f"--dependency=aftercorr:{before}"] if before else []
        job = self._submit(submission, record, array.resources, arguments, lock)
        waits = f", each after its training in job {before}" if before else ""
        self.tell(f"job {job}: {array.job}, {len(array.tasks)} tasks{waits}")
        return job

    def _submit_table(self, submission: Submission, resources: Resources, jobs: Sequence[str], lock: int) -> None:
        number = len(submission.records()) + 1
        record = Record(number, "aggregate", submission.job_name("aggregate", number), {}, {})
        job = self._submit(submission, record, resources, [f"--dependency=afterany:{':'.join(jobs)}"], lock)
        self.tell(f"job {job}: table, after all of them")

    def _submit(
        self, submission: Submission, record: Record, resources: Resources, arguments: Sequence[str], lock: int
    ) -> str:
        path = submission.path / "scripts" / f"{record.number}.sh"
        write_text(path, script_of(record, resources, self.profile, submission.path))
        submission.write(record)
        job = slurm.submit(path, arguments, keep=[lock])
        submission.write(replace(record, id=job))
        return job


def _cells(grid: Grid) -> set[str]:
    """Names of the runs, known or still to be chosen, that a table has."""
    return {str(cell) for cell in (*grid.cells, *(one.cell for one in grid.waiting))}


def script_of(record: Record, resources: Resources, profile: Profile, submission: Path) -> str:
    """The script of an array; paths of configurations are relative to the working directory of now."""
    indices = sorted(record.tasks)
    return script(record.name, record.job, record.number, indices, resources, profile, submission, Path.cwd())
