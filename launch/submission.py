"""The folder of a submission: what its jobs are, and all they need, frozen when it was submitted.

RUNS/.submissions/GRID-TIME-XXXXXX/
  submission.json   who submitted what, when and from where
  profile.json      the profile
  grid.json         the grid without its cells
  cells.jsonl       one line a cell, with its resolved configuration
  code/             copy of the packages that jobs run
  arrays/N.json     an array: its tasks, its name in the queue and, once Slurm has taken it, its job id
  scripts/N.sh      its job script
  logs/             N-JOB_INDEX.log: output of each task, over all its restarts
"""

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from launch.cells import Grid, GridCell
from launch.frozen import freeze_cell, freeze_grid, thaw_cell, thaw_grid
from launch.jobs import Array, Task
from launch.profile import Job, Profile
from pipeline.config import as_dict
from pipeline.errors import StageError
from pipeline.files import read_json, write_json, write_text, writing
from pipeline.versions import commit

PACKAGES = ("pipeline", "launch")
FOLDER = ".submissions"


@dataclass(frozen=True)
class Record:
    """An array as its submission remembers it."""

    number: int
    job: Job
    name: str
    """In the queue; unlike any other, so that a job whose id was not written down is found again."""
    tasks: dict[int, str]
    """Index -> name of the run folder."""
    positions: dict[int, int]
    """Index -> line in cells.jsonl."""
    id: str | None = None
    cancelled: tuple[int, ...] = ()
    """Indices that the user cancelled."""

    def task(self, index: int) -> Task | None:
        """One of its tasks, once Slurm has taken it."""
        return Task(self.id, index) if self.id else None


class Submission:
    """One submission, new or from its folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, grid: Grid, profile: Profile) -> "Submission":
        """A new folder with everything frozen but its arrays."""
        found = cls(new_folder(grid.runs, grid.name))
        (found.path / "arrays").mkdir()
        write_json(found.path / "profile.json", as_dict(profile))
        write_json(found.path / "grid.json", freeze_grid(grid))
        lines = (json.dumps(freeze_cell(cell), ensure_ascii=False) + "\n" for cell in grid.cells)
        write_text(found.path / "cells.jsonl", "".join(lines))
        facts = {"grid": grid.name, "time": datetime.now().astimezone().isoformat(timespec="seconds")}
        write_json(found.path / "submission.json", {**facts, "working": os.getcwd(), "commit": commit()})
        return found

    @property
    def facts(self) -> dict[str, Any]:
        """What submission.json says; {} when it was never finished."""
        found = read_json(self.path / "submission.json")
        return found if isinstance(found, dict) else {}

    @property
    def profile(self) -> Profile:
        return Profile.model_validate(read_json(self.path / "profile.json"))

    def grid(self) -> Grid:
        """The grid with all its cells, as it was submitted."""
        with (self.path / "cells.jsonl").open(encoding="utf-8") as lines:
            cells = [thaw_cell(json.loads(line)) for line in lines]
        return thaw_grid(read_json(self.path / "grid.json") or {}, cells)

    def cell(self, position: int) -> GridCell:
        """One cell, without reading the others."""
        with (self.path / "cells.jsonl").open(encoding="utf-8") as lines:
            return thaw_cell(json.loads(next(islice(lines, position, None))))

    def new_record(self, array: Array, grid: Grid) -> Record:
        """How an array is going to be remembered."""
        tasks = {index: grid.cells[position].folder.root.name for index, position in array.tasks.items()}
        return Record(array.number, array.job, self.job_name(array.job, array.number), tasks, dict(array.tasks))

    def job_name(self, job: Job, number: int) -> str:
        return f"{self.path.name}.{job}.{number}"

    def write(self, record: Record) -> None:
        """Before and after Slurm is asked to take it."""
        write_json(self.path / "arrays" / f"{record.number}.json", asdict(record))

    def records(self) -> list[Record]:
        """All arrays, by number."""
        found = (self.record(int(file.stem)) for file in (self.path / "arrays").glob("[0-9]*.json"))
        return sorted((record for record in found if record), key=lambda record: record.number)

    def record(self, number: int) -> Record | None:
        """One array, or None when it was never written whole."""
        values = read_json(self.path / "arrays" / f"{number}.json")
        return _record(values, self.path) if isinstance(values, dict) else None

    def cancel(self, record: Record, indices: Sequence[int]) -> None:
        """Remember that the user cancelled tasks."""
        self.write(replace(record, cancelled=tuple(sorted({*record.cancelled, *indices}))))


def _record(values: dict[str, Any], path: Path) -> Record:
    try:
        tables = {key: {int(index): value for index, value in values[key].items()} for key in ("tasks", "positions")}
        return Record(**{**values, **tables, "cancelled": tuple(values["cancelled"])})
    except (KeyError, TypeError, ValueError, AttributeError):  # its jobs may be in the queue: it can't be passed over
        raise StageError(f"{path}: arrays/ is damaged; remove this folder once its jobs have ended") from None


def new_folder(runs: Path, name: str) -> Path:
    """Absolute path of a new folder for scripts and logs, with the code that jobs run.

    Raises:
        StageError: it can't be written.
    """
    place = runs.absolute() / FOLDER / f"{name[:60]}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    with writing(place):
        for folder in ("scripts", "logs"):
            (place / folder).mkdir(parents=True)
        _copy_code(place / "code")
    return place


def submissions(runs: Path) -> list[Submission]:
    """All submissions whose runs lie in a folder, oldest first."""
    found = [Submission(path.parent) for path in (runs.absolute() / FOLDER).glob("*/submission.json")]
    return sorted(found, key=lambda submission: (str(submission.facts.get("time")), submission.path.name))


@contextmanager
def locked(runs: Path) -> Iterator[int]:
    """Keep other submitters out; yields the lock's file descriptor.

    A child that is given the descriptor keeps the lock when this process is killed: whoever comes next sees in the
    queue what sbatch was doing.
    """
    place = runs.absolute() / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    with (place / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def _copy_code(target: Path) -> None:
    """What jobs run, whatever is edited or installed while they wait."""
    source = Path(__file__).resolve().parents[1]
    for package in PACKAGES:
        shutil.copytree(source / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    (target / "COMMIT").write_text(commit(), encoding="utf-8")
