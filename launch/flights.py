"""Which jobs in the queue work on which cells: what submissions remember, joined with what the queue shows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from launch.jobs import Task
from launch.profile import Job
from launch.slurm import Queued
from launch.submission import Record, Submission


@dataclass(frozen=True)
class Flight:
    """A task of a submission that is in the queue."""

    submission: Submission
    record: Record
    queued: Queued


def in_flight(submissions: Sequence[Submission], queue: Sequence[Queued]) -> dict[tuple[str, Job], Flight]:
    """(name of a run folder, job) -> its task in the queue; aggregates are under the name of their grid.

    A job whose submitter was killed before it could write down the id is recognised by its name, and the id written.
    """
    found: dict[tuple[str, Job], Flight] = {}
    by_job: dict[str, list[Queued]] = {}
    ids: dict[str, str] = {}
    for queued in queue:
        by_job.setdefault(queued.task.job, []).append(queued)
        ids[queued.name] = queued.task.job
    for submission in submissions:
        grid = str(submission.facts.get("grid"))
        for record in submission.records():
            record = _adopted(submission, record, ids)
            for queued in by_job.get(record.id or "", ()):
                if queued.task.slot not in record.cancelled:
                    name = record.tasks.get(queued.task.slot, grid)
                    found[name, record.job] = Flight(submission, record, queued)
    return found


def _adopted(submission: Submission, record: Record, ids: dict[str, str]) -> Record:
    if record.id is not None or record.name not in ids:
        return record
    record = replace(record, id=ids[record.name])
    submission.write(record)
    return record


def tasks(flights: dict[tuple[str, Job], Flight]) -> dict[tuple[str, Job], Task]:
    """The same without what it is made of."""
    return {key: flight.queued.task for key, flight in flights.items()}
