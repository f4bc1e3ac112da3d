"""A real Slurm of two nodes for the tests that need one."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from launch_inputs import CLUSTER, SLURM_PATH


@contextmanager
def running_cluster(name: str, port: int, *options: str) -> Iterator[dict[str, str]]:
    """The environment of a client of a cluster that runs meanwhile.

    Args:
        name: part of the name of the cluster's folder.
        port: of the first process's cluster; every process has twenty of its own after it.
    """
    folder = f"/tmp/slurm-{name}-{os.getpid()}"  # short and readable by all, which tmp_path is not
    first = str(port + os.getpid() % 400 * 20)
    try:
        subprocess.run([CLUSTER, "-d", folder, "-p", first, *options, "start"], check=True, timeout=120)
        yield {**os.environ, "PATH": SLURM_PATH, "SLURM_CONF": f"{folder}/slurm.conf"}
    finally:
        subprocess.run([CLUSTER, "-d", folder, "stop"], check=True, timeout=60)
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def cluster() -> Iterator[dict[str, str]]:
    """The environment of a client of a running two-node cluster without accounting."""
    with running_cluster("test", 20_000, "-A") as client:
        yield client


@pytest.fixture
def slurm_folder(cluster: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, for a test that is a client of the cluster."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, cluster[name])
    return tmp_path
