"""A cluster profile: what jobs ask Slurm for and how they set up their environment, as one YAML file.

job: {partition: gpu, gpus_per_node: 1, cpus_per_task: 8, memory: 64G, time: "12:00:00"}   # of every job
train: {nodes: 2, gpus_per_node: 8}             # what differs in training jobs; also prepare, evaluate, aggregate
special: [{cells: "*70B*", train: {nodes: 4}}]  # what differs for the cells whose name matches
modules: [cuda/12.4]
setup: [source .venv/bin/activate]              # the only lines that a job runs verbatim as shell
environment: {HF_HUB_OFFLINE: "1"}

Everything but `setup` is quoted wherever it reaches a shell.
"""

import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, PrivateAttr, StringConstraints, ValidationError, field_validator, model_validator

from pipeline.errors import UserError
from pipeline.faults import explain
from pipeline.schema import Schema
from pipeline.yaml_file import read_yaml

Word = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""One line: a line break would end the `#SBATCH` line that it stands in."""
Count = Annotated[int, Field(ge=1)]
Job = Literal["prepare", "train", "evaluate", "aggregate"]
TIME = re.compile(r"(?:(\d+)-)?(\d{1,2}):(\d{2}):(\d{2})")


class Resources(Schema):
    """What one job (one task of an array) asks for."""

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Word | None = None
    """Features of nodes, such as a100&nvlink."""
    nodes: Count = 1
    gpus_per_node: Annotated[int, Field(ge=0)] = 0
    gpu_type: Word | None = None
    """As the cluster names it, such as a100; null: any."""
    tasks_per_node: Count | None = None
    """Processes of a training; null: one a GPU."""
    cpus_per_task: Count = 1
    memory: Annotated[str, Field(pattern=r"^\d+[KMGT]?$")] | None = None
    """Of each node, such as 64G; null: what the cluster gives."""
    time: str = "01:00:00"
    """[DAYS-]HOURS:MINUTES:SECONDS. A training or evaluation that needs longer is restarted and goes on."""

    @field_validator("time", mode="before")
    @classmethod
    def _is_time(cls, value: Any) -> Any:
        """YAML takes 12:00:00 without quotes for the number 43200."""
        if not isinstance(value, str) or not TIME.fullmatch(value):
            raise ValueError('must be "[DAYS-]HOURS:MINUTES:SECONDS" in quotes, such as "12:00:00"')
        if not any(int(part or 0) for part in TIME.fullmatch(value).groups()):  # type: ignore[union-attr]
            raise ValueError("must be longer than no time")
        return value

    @property
    def seconds(self) -> int:
        """The time limit."""
        found = TIME.fullmatch(self.time)
        assert found is not None
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds

    @property
    def tasks(self) -> int:
        """Processes on each node."""
        return self.tasks_per_node or max(1, self.gpus_per_node)

    @property
    def gpu_hours(self) -> float:
        """The most that one start of the job can use."""
        return self.nodes * self.gpus_per_node * self.seconds / 3600


class Special(Schema):
    """What differs for some cells."""

    cells: Word
    """Pattern of names such as `Bitune, seed 42`, with * and ?."""
    train: dict[str, Any] = {}
    evaluate: dict[str, Any] = {}


class Container(Schema):
    """How a stage is started in a container; the supervisor of the job stays outside, where Slurm's commands are."""

    command: Annotated[tuple[Word, ...], Field(min_length=1)]
    """Words before the command, such as [apptainer, exec, --nv, image.sif]."""
    python: Word = "python3"
    """Inside the container."""


class Profile(Schema):
    """The keys of a profile."""

    job: Resources = Resources()
    prepare: dict[str, Any] = {"gpus_per_node": 0}
    """Of `dualtune data submit`; the jobs of a grid prepare as part of the training."""
    train: dict[str, Any] = {}
    evaluate: dict[str, Any] = {}
    aggregate: dict[str, Any] = {"time": "00:30:00"}
    special: tuple[Special, ...] = ()
    modules: tuple[Word, ...] = ()
    setup: tuple[Word, ...] = ()
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], Word] = {}
    container: Container | None = None
    python: Word | None = None
    """The interpreter of the jobs; null: the one that submits."""
    max_parallel: Count | None = None
    """Tasks of one array that may run at once; null: no limit."""
    _known: dict[tuple[Job, tuple[int, ...]], Resources] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _check_jobs(self) -> "Profile":
        for job in get_args(Job):
            shapes = [self.resources(job), *(self.resources(job, special.cells) for special in self.special)]
            if job != "train" and any(shape.nodes > 1 for shape in shapes):
                raise ValueError(f"{job}.nodes: {job} uses one node: give nodes under train only")
        return self

    @property
    def interpreter(self) -> str:
        """That jobs start, outside of any container."""
        return self.python or sys.executable

    def command(self, *words: str) -> list[str]:
        """`dualtune WORDS`, in the container if there is one."""
        inside = self.container
        start = [*inside.command, inside.python] if inside else [self.interpreter]
        return [*start, "-m", "pipeline.cli", *words]

    def resources(self, job: Job, cell: str = "") -> Resources:
        """What a job of a cell asks for: `job`, over it the stage's own keys, over them the special ones."""
        matching = tuple(number for number, special in enumerate(self.special) if fnmatchcase(cell, special.cells))
        if (job, matching) not in self._known:  # grids are large, shapes are few
            self._known[job, matching] = self._resources(job, matching)
        return self._known[job, matching]

    def _resources(self, job: Job, matching: tuple[int, ...]) -> Resources:
        layers = [getattr(self, job), *(getattr(self.special[number], job, {}) for number in matching)]
        values = self.job.model_dump()
        for layer in layers:
            values |= layer
        try:
            return Resources.model_validate(values)
        except ValidationError as error:
            raise ValueError(f"{job}: " + "; ".join(explain(error, Resources))) from None


def load_profile(path: Path | None) -> Profile:
    """A profile file; without one, jobs of one CPU core in the cluster's default partition.

    Raises:
        UserError: naming file, key and value.
    """
    if path is None:
        return Profile()
    try:
        return Profile.model_validate(read_yaml(path))
    except ValidationError as error:
        raise UserError(f"{path}: " + "; ".join(explain(error, Profile))) from None
