"""What only Slurm's accounting database knows: how a job ended that never started, or left no word."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from conftest import running_cluster
from launch_inputs import SLURM_PATH, ask, dualtune, needs_slurm, tiny_grid, wait_for_an_empty_queue, write_grid

from launch.slurm import endings

pytestmark = [
    pytest.mark.slow,
    needs_slurm,
    pytest.mark.skipif(
        not all(shutil.which(name, path=SLURM_PATH) for name in ("slurmdbd", "mariadbd")),
        reason="no slurmdbd or no mariadbd",
    ),
]


@pytest.fixture(scope="module")
def accounting() -> Iterator[None]:
    """This process as a client of a cluster of one node that keeps accounts."""
    with running_cluster("acct", 28_000, "-n", "1") as client, pytest.MonkeyPatch.context() as patch:
        for name in ("PATH", "SLURM_CONF"):
            patch.setenv(name, client[name])
        yield


def ended(job: str, tasks: int = 1, seconds: float = 60) -> list[str]:
    """What the database says of the tasks of an array, once it has heard of all of their ends."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = endings([job])
        if len(found) == tasks and not {"PENDING", "RUNNING", "COMPLETING"} & set(found.values()):
            return [words for _, words in sorted(found.items())]
        time.sleep(0.2)
    raise AssertionError(f"sacct knows this of job {job}: {found}")


def test_endings_of_tasks(accounting: None, tmp_path: Path) -> None:
    options = ("--parsable", "--chdir", str(tmp_path), "--array")
    ran = ask("sbatch", *options, "0-1", "--wrap", "exit $SLURM_ARRAY_TASK_ID").strip()
    many = ask("sbatch", *options, "0-98:2%3,1-99:2%3", "--begin=now+1hour", "--wrap", "true").strip()
    ask("scancel", many)
    wait_for_an_empty_queue(120)
    assert ended(ran, 2) == ["COMPLETED", "FAILED"]
    assert {words.split()[0] for words in ended(many, 100)} == {"CANCELLED"}
    assert endings([]) == endings(["no job"]) == {}


def test_status_tells_how_jobs_ended_that_left_no_word(accounting: None, tmp_path: Path) -> None:
    """One array that was cancelled by Slurm's own command before it began; one whose set-up fails."""
    rows = {"Cancelled": {"tuning": "none"}, "Lost": {"tuning": "none", "method": "bitune"}}
    write_grid(tmp_path, tiny_grid(rows))
    special = [{"cells": "Lost*", "evaluate": {"cpus_per_task": 2}}]  # an array of its own
    profile = {"special": special, "setup": ['[ "$SLURM_CPUS_PER_TASK" != 2 ] || exit 7']}
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(profile))
    ask("scontrol", "update", "nodename=node1", "state=drain", "reason=test")
    command = ("grid", "submit", "grid.yaml", "--executor", "slurm", "--cluster", "cluster.yaml")
    done = dualtune(*command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second, _ = sorted(ask("squeue", "-h", "-o", "%F").split(), key=int)
    ask("scancel", first)
    ask("scontrol", "update", "nodename=node1", "state=resume")
    wait_for_an_empty_queue()
    assert [ended(job)[0].split()[0] for job in (first, second)] == ["CANCELLED", "FAILED"]
    done = dualtune("grid", "status", "grid.yaml", "--executor", "slurm", folder=tmp_path)
    assert done.returncode == 1 and "1 cancelled, 1 ended" in done.stderr, done.stdout
    assert "evaluate: FAILED, its log tells more" in done.stdout
