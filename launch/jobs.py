"""From cells and what is in the queue to job arrays and their dependencies. Nothing is asked or written here."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from launch.plan import CellPlan
from launch.profile import Job, Profile, Resources


class Task(NamedTuple):
    """One task of a job array in the queue."""

    job: str
    slot: int
    """Its index in the array."""


Flights = Mapping[tuple[str, Job], Task]
"""(name of a run folder, job) -> the task in the queue that works on it or will."""


@dataclass(frozen=True)
class Array:
    """A job array: tasks of one kind that ask for the same."""

    number: int
    """Within its submission, from 1."""
    job: Job
    resources: Resources
    tasks: dict[int, int]
    """Index in the array -> position of the cell in the grid."""
    after: int | None = None
    """Number of the array of trainings that each task waits for, index by index."""
    after_job: str | None = None
    """The same for an array that an earlier submission left in the queue."""


@dataclass(frozen=True)
class JobPlan:
    """What will be submitted."""

    arrays: tuple[Array, ...]
    aggregate: Resources
    adopted: dict[int, dict[Job, Task]] = field(default_factory=dict)
    """Position of a cell -> its tasks that are in the queue already."""

    @property
    def gpu_hours(self) -> float:
        """The most that it can use if no job is restarted."""
        return sum(len(array.tasks) * array.resources.gpu_hours for array in self.arrays)

    @property
    def jobs(self) -> int:
        return sum(len(array.tasks) for array in self.arrays)


class Work(NamedTuple):
    """What a cell still needs: cells of equal work share arrays."""

    train: Resources | None
    evaluate: Resources | None
    after_job: str | None = None


def plan_jobs(plans: Sequence[CellPlan], profile: Profile, largest: int, flights: Flights) -> JobPlan:
    """Jobs for all that is missing and not in the queue.

    Args:
        largest: number of tasks that an array may have.
    """
    groups: dict[Work, dict[int, int]] = {}
    adopted: dict[int, dict[Job, Task]] = {}
    for position, planned in enumerate(plans):
        jobs = _needed(planned)
        found: dict[Job, Task] = {
            job: task for job in jobs if (task := flights.get((planned.cell.folder.root.name, job)))
        }
        if found:
            adopted[position] = found
        if work := _work(planned, jobs, found, profile):
            group = groups.setdefault(work, {})
            index = found["train"].slot if work.after_job else len(group)
            group[index] = position
    arrays: list[Array] = []
    for work, tasks in groups.items():
        for part in _parts(tasks, largest, renumber=work.after_job is None):
            arrays += _arrays(work, part, len(arrays) + 1)
    return JobPlan(tuple(arrays), profile.resources("aggregate"), adopted)


def _needed(planned: CellPlan) -> list[Job]:
    """Preparing is part of the training's job."""
    missing = planned.missing
    jobs: list[Job] = ["train"] if "train" in missing or "prepare" in missing else []
    return [*jobs, "evaluate"] if "evaluate" in missing else jobs


def _work(planned: CellPlan, jobs: list[Job], found: dict[Job, Task], profile: Profile) -> Work | None:
    name = str(planned.cell)
    evaluate = profile.resources("evaluate", name) if "evaluate" in jobs else None
    if "train" in found or ("train" not in jobs and "evaluate" in found):
        if evaluate is None or "evaluate" in found:
            return None
        return Work(None, evaluate, found["train"].job)
    train = profile.resources("train", name) if "train" in jobs else None
    return Work(train, evaluate) if train or evaluate else None


def _parts(tasks: dict[int, int], largest: int, renumber: bool) -> Iterator[dict[int, int]]:
    if not renumber:  # the indices are those of an array that is in the queue
        yield tasks
        return
    positions = list(tasks.values())
    for start in range(0, len(positions), largest):
        yield dict(enumerate(positions[start : start + largest]))


def _arrays(work: Work, tasks: dict[int, int], number: int) -> list[Array]:
    found = []
    if work.train:
        found.append(Array(number, "train", work.train, tasks))
    if work.evaluate:
        after = number if work.train else None
        found.append(Array(number + len(found), "evaluate", work.evaluate, tasks, after, work.after_job))
    return found


def index_list(indices: Sequence[int]) -> str:
    """`0-3,7` for 0, 1, 2, 3, 7, as Slurm writes it."""
    spans: list[list[int]] = []
    for index in sorted(indices):
        if spans and index == spans[-1][1] + 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
