"""Which rank of a run a process is, by the environment that its launcher made. Imports nothing heavy."""

import re
from collections.abc import Mapping

from pipeline.errors import UserError


def rank_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of torchrun's kind (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) that say which
    rank this process is; {} if it was started alone.

    torchrun, accelerate and `dualtune train --processes` set them. In a Slurm step of several tasks (srun) they
    are made of Slurm's own; a batch script itself is no such step.

    Raises:
        UserError: some of them are missing or are no numbers.
    """
    if "WORLD_SIZE" in variables:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        missing = [name for name in names if not variables.get(name)]
        if not (variables["WORLD_SIZE"] or "1").isdecimal():
            raise UserError(f"WORLD_SIZE = {variables['WORLD_SIZE']}: a launcher sets it to the number of processes")
        if int(variables["WORLD_SIZE"] or 1) == 1 and missing:
            return {}
        if missing:
            raise UserError(f"WORLD_SIZE = {variables['WORLD_SIZE']} but {', '.join(missing)} not set by the launcher")
        return {name: variables[name] for name in names}
    if int(variables.get("SLURM_STEP_NUM_TASKS") or 1) == 1:
        return {}
    return {
        "RANK": variables["SLURM_PROCID"],
        "WORLD_SIZE": variables["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": variables["SLURM_LOCALID"],
        "MASTER_ADDR": _first_host(variables.get("SLURM_STEP_NODELIST") or variables["SLURM_NODELIST"]),
        "MASTER_PORT": str(_port(variables)),
    }


def _first_host(nodes: str) -> str:
    """`gpu[03-05,9],login` -> gpu03"""
    found = re.match(r"([^\[,]+)(?:\[(\w+))?", nodes)
    assert found is not None
    return found[1] + (found[2] or "")


def _port(variables: Mapping[str, str]) -> int:
    """The same for all tasks of a step; another one for each job, step and restart, so that no two meet."""
    parts = (variables.get(f"SLURM_{name}", "0") for name in ("JOB_ID", "STEP_ID", "RESTART_COUNT"))
    job, step, restart = (int(part) if part.isdigit() else 0 for part in parts)
    return 20000 + (job * 37 + step * 7 + restart) % 10000
