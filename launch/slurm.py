"""All words with Slurm."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from launch.jobs import Task, index_list
from pipeline.errors import StageError, one_line

SECONDS = 120
"""How long a busy controller may take to answer."""
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
OF_A_JOB = ("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_", "SUBMITIT_")
FORMAT = {"SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0"}
"""Indices of arrays are not shortened."""
COLUMNS = "%F|%K|%A|%T|%r|%j"


class Queued(NamedTuple):
    """One task in the queue; a job that is no array has index 0."""

    task: Task
    raw: str
    """Its own job id: tasks of an array get one when they start."""
    state: str
    """PENDING, RUNNING, COMPLETING, ..."""
    reason: str
    name: str


def is_available() -> bool:
    """Whether this is a machine of a cluster.

    Raises:
        StageError: it is, but the controller does not answer: jobs may be in its queue, so nothing else will do.
    """
    if shutil.which("sbatch") is None:
        return False
    done = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, timeout=SECONDS, check=False)
    if " is DOWN" in done.stdout and " is UP" not in done.stdout:
        raise StageError(
            "Slurm does not answer (`scontrol ping`): try again later, or leave it out by --executor local"
        )
    return done.returncode == 0


def max_array_size() -> int:
    """How many tasks an array may have: indices are below MaxArraySize."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _ask(["scontrol", "show", "config"]), re.MULTILINE)
    return max(1, int(found[1])) if found else 1001


def submit(script: Path, arguments: Sequence[str] = (), keep: Sequence[int] = ()) -> str:
    """Submit a script; its job id.

    Args:
        keep: file descriptors that sbatch holds as long as it runs.

    Raises:
        StageError: Slurm refuses it, with its words.
    """
    return _ask(["sbatch", "--parsable", *arguments, str(script)], keep).strip().partition(";")[0]


def queue() -> list[Queued]:
    """All jobs of this user, every task of an array by itself.

    Raises:
        StageError: Slurm does not answer: then nothing is known, and nothing may be taken for done.
    """
    return [_queued(line) for line in _ask(["squeue", "--me", "-h", "-r", "-a", "-o", COLUMNS]).splitlines() if line]


def _queued(line: str) -> Queued:
    job, index, raw, state, reason, name = line.split("|", 5)
    return Queued(Task(job, int(index) if index.isdigit() else 0), raw, state, reason, name)


def own_job(variables: Mapping[str, str]) -> str:
    """The id of the job that this process is in, or "".

    Of a task it names array and index: the bare id of an array's last task is that of the whole array too, and Slurm
    would take it for all of its tasks.
    """
    array, index = (variables.get(f"SLURM_ARRAY_{name}") for name in ("JOB_ID", "TASK_ID"))
    return f"{array}_{index}" if array and index else variables.get("SLURM_JOB_ID", "")


def is_running(job: str) -> bool:
    """Whether a job runs and nobody is ending it, as far as Slurm says: a busy controller ends no job."""
    try:
        return _ask(["squeue", "-h", "-j", job, "-o", "%T"]).strip() == "RUNNING"
    except StageError as error:
        return "Invalid job id" not in str(error)


def end_time(job: str) -> float | None:
    """Unix time of a job's time limit; None if it has none. Not every version of Slurm tells jobs themselves."""
    try:
        text = _ask(["squeue", "-h", "-j", job, "-o", "%e"]).strip()
        return datetime.fromisoformat(text).timestamp()
    except (StageError, ValueError):
        return None


def requeue(job: str) -> None:
    """Put a running job back into the queue; it is ended for that.

    Raises:
        StageError: Slurm refuses.
    """
    _ask(["scontrol", "requeue", job])


def cancel(tasks: Sequence[Task], whole: Sequence[str] = ()) -> None:
    """End tasks of arrays, and whole jobs."""
    by_job: dict[str, list[int]] = {}
    for task in tasks:
        by_job.setdefault(task.job, []).append(task.slot)
    words = [*(f"{job}_[{index_list(indices)}]" for job, indices in by_job.items()), *whole]
    if words:
        _ask(["scancel", *words])


def endings(arrays: Sequence[str]) -> dict[Task, str]:
    """How finished tasks of job arrays ended, from the accounting database: COMPLETED, TIMEOUT, CANCELLED by 1000, ...;
    {} where there is none.

    An array's record may stand under its bare job id until all of its tasks are written: it tells of none of them yet.
    """
    if not arrays:
        return {}
    try:
        text = _ask(["sacct", "-n", "-P", "-X", "-j", ",".join(arrays), "-o", "JobID,State"])
    except StageError:
        return {}
    found = (re.match(r"(\d+)_(?:(\d+)|\[(.*)\])\|(.+)", line) for line in text.splitlines())
    return {Task(match[1], slot): match[4] for match in found if match for slot in _slots(match[2] or match[3])}


def _slots(text: str) -> list[int]:
    """Of tasks that never started, which are one record: `0-2,5%1`."""
    ranges = [part.partition("-") for part in text.partition("%")[0].split(",")]
    return [slot for first, _, last in ranges for slot in range(int(first), int(last or first) + 1)]


def clean_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """What a job that is submitted from inside a job may inherit: nothing that tells who and where that one was."""
    within = {"CUDA_VISIBLE_DEVICES", *RANKS} if "SLURM_JOB_ID" in variables else set()
    return {
        name: value
        for name, value in variables.items()
        if name == "SLURM_CONF" or not (name.startswith(OF_A_JOB) or name in within)
    }


def _ask(words: Sequence[str], keep: Sequence[int] = ()) -> str:
    """What a command of Slurm prints."""
    environment = {**clean_environment(os.environ), **FORMAT}
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=SECONDS, env=environment, pass_fds=tuple(keep)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StageError(f"{words[0]}: {error}") from None
    if done.returncode:
        raise StageError(f"{words[0]}: {one_line(done.stderr) or f'status {done.returncode}'}")
    return done.stdout
