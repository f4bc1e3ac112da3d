"""The text of a job script.

Of submitit we use what makes the text: names and quoting of the `#SBATCH` lines, and the place of set-up lines. Its
executor is not used: it pickles Python objects into the job, polls the queue in the process that submitted, and leaves
dependencies, adoption and short time limits to its caller; what runs in our jobs is a supervisor (`launch.supervisor`)
over plain files.
"""

import re
import shlex
from pathlib import Path
from typing import Any

from submitit.slurm.slurm import _make_sbatch_string

from launch.jobs import index_list
from launch.profile import Job, Profile, Resources
from pipeline.errors import UserError

MARGIN = 300.0
"""Seconds before the time limit at which a stage is asked to stop, at most."""


def margin(limit: float) -> float:
    """Seconds before the time limit at which a stage is asked to stop: a quarter of a short one."""
    return min(MARGIN, limit / 4)


def script(
    name: str,
    job: Job,
    number: int,
    indices: list[int],
    resources: Resources,
    profile: Profile,
    submission: Path,
    working: Path,
) -> str:
    """The script of an array of a grid, whose tasks a supervisor runs; the arguments are those of `script_around`."""
    supervisor = [profile.interpreter, "-m", "launch.supervisor", str(submission), str(number)]
    # To the supervisor alone, which knows what time limits of a few minutes need; also sent before a preemption.
    warning = {"signal": f"B:USR1@{margin(resources.seconds):.0f}"}
    processes = resources.tasks if job == "train" else 1
    return script_around(
        shlex.join(supervisor), name, number, indices, resources, profile, submission, working, processes, warning
    )


def script_around(
    command: str,
    name: str,
    number: int,
    indices: list[int],
    resources: Resources,
    profile: Profile,
    submission: Path,
    working: Path,
    processes: int = 1,
    options: dict[str, str] | None = None,
) -> str:
    """The script of an array (of one job, where `indices` is empty). Dependencies are arguments of sbatch, not in here.

    Args:
        command: quoted for the shell.
        number: of the array in its submission.
        submission: absolute folder of the submission.
        working: where relative paths of configurations start.
        processes: on each node; one has the cores of all.
        options: further ones of sbatch.

    Raises:
        UserError: a path that no `#SBATCH` line can hold.
    """
    _check_paths(submission, working)
    return _make_sbatch_string(
        command=f"exec {command}",
        folder=submission / "logs",
        job_name=name,
        partition=resources.partition,
        account=resources.account,
        qos=resources.qos,
        constraint=resources.constraint,
        nodes=resources.nodes,
        ntasks_per_node=processes,
        cpus_per_task=resources.cpus_per_task * resources.tasks // processes,
        gpus_per_node=_gpus(resources),
        mem=resources.memory,
        setup=_setup(profile, submission),
        stderr_to_stdout=True,
        wckey=None,  # type: ignore[arg-type]  # the default names submitit, which some clusters refuse
        use_srun=False,
        additional_parameters=_parameters(number, indices, resources, profile, submission, working) | (options or {}),
    )


def _check_paths(*paths: Path) -> None:
    """A line break would end the line, and Slurm takes a backslash for its own."""
    for path in paths:
        if re.search(r"[\x00-\x1f\x7f\\]", str(path)):
            raise UserError(f"{str(path)!r}: Slurm takes no path with a line break, control character or backslash")


def _gpus(resources: Resources) -> Any:
    if not resources.gpus_per_node:
        return None
    return ":".join(filter(None, [resources.gpu_type, str(resources.gpus_per_node)]))


def _parameters(
    number: int, indices: list[int], resources: Resources, profile: Profile, submission: Path, working: Path
) -> dict[str, Any]:
    at_once = f"%{profile.max_parallel}" if profile.max_parallel else ""
    array = {"array": index_list(indices) + at_once} if indices else {}
    return {
        **array,
        "time": resources.time,
        "chdir": str(working),
        "output": _log_pattern(submission, number, is_array=bool(indices)),
        "requeue": True,
        "kill-on-invalid-dep": "yes",
    }


def log_file(submission: Path, number: int, job: str, index: int | str) -> Path:
    """Where a task's output goes, over all its restarts."""
    return submission / "logs" / log_name(number, job, index)


def log_name(number: int, job: str, index: int | str) -> str:
    """The name of that file."""
    return f"{number}-{job}_{index}.log"


def _log_pattern(submission: Path, number: int, is_array: bool) -> str:
    job, index = ("%A", "%a") if is_array else ("%j", "0")
    return str(log_file(Path(str(submission).replace("%", "%%")), number, job, index))


def _setup(profile: Profile, submission: Path) -> list[str]:
    """Modules, the profile's lines, its environment, and the code of the submission."""
    return [
        "trap '' USR1",  # the warning may come before the supervisor can listen, and would end the script
        "set -e",
        *(f"module load {shlex.quote(module)}" for module in profile.modules),
        *profile.setup,
        *(f"export {name}={shlex.quote(value)}" for name, value in profile.environment.items()),
        f'export PYTHONPATH={shlex.quote(str(submission / "code"))}"${{PYTHONPATH:+:$PYTHONPATH}}"',
        "export PYTHONSAFEPATH=1  # not the code in the working directory, which may have changed",
    ]
