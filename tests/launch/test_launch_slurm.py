"""The throw-away Slurm of slurm/cluster.sh, and the example job script on it."""

import subprocess
import sys
from pathlib import Path

import pytest
from launch_inputs import ROOT, needs_slurm, tiny_grid, write_grid

pytestmark = [pytest.mark.slow, needs_slurm]


def test_a_step_runs_on_every_node(cluster: dict[str, str]) -> None:
    command = ["srun", "-N2", "-l", "hostname"]
    done = subprocess.run(command, env=cluster, capture_output=True, text=True, timeout=60)
    assert sorted(done.stdout.split("\n")[:2]) == ["0: node1", "1: node2"], done.stderr


def test_the_example_job_script_runs_a_grid(cluster: dict[str, str], tmp_path: Path) -> None:
    grid = write_grid(tmp_path, tiny_grid({"Pretrained": {"tuning": "none"}}))
    command = tmp_path / ".venv" / "bin" / "dualtune"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m pipeline.cli "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    subprocess.run(
        ["sbatch", "--wait", str(ROOT / "slurm" / "example.sbatch"), str(grid)],
        env=cluster, cwd=tmp_path, check=True, timeout=180,
    )  # fmt: skip
    (log,) = tmp_path.glob("dualtune-*.log")
    assert "Pretrained" in log.read_text(encoding="utf-8")
    assert (tmp_path / "runs" / "reports" / "tiny" / "report.md").is_file()
