"""Cases of ranks_script.py, started in processes of their own."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from train_runs import rank_config

from pipeline.train.estimate import measure, memory


def name(case: str, arguments: dict[str, Any]) -> str:
    return f"{case}({json.dumps(arguments)})"


def start(folder: Path, count: int, cases: list[str], timeout: float) -> dict[str, Any]:
    """What the cases gave in `count` processes. A hang is a failure."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    here = Path(__file__)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(here.parents[2]), str(here.parent)]),
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    command = [sys.executable, str(here.with_name("ranks_script.py")), str(folder), *cases]
    with (folder / "log.txt").open("w") as log:
        processes = [
            subprocess.Popen(command, env={**environment, "RANK": str(r), "LOCAL_RANK": str(r)}, stdout=log, stderr=log)
            for r in range(count)
        ]
        try:
            statuses = [process.wait(timeout) for process in processes]
        finally:
            for process in processes:
                process.kill()
    text = (folder / "log.txt").read_text()
    assert statuses == [0] * count, text[-3000:]
    assert "Warning" not in text, text
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def total(held: dict[str, int]) -> int:
    return sum(held.values())


def estimated(folder: Path, stage: int, kind: str, method: str, processes: int, **options: Any) -> int:
    """Bytes that stay in the memory of a process, on a CPU: the device's are the host's too."""
    config = rank_config(folder, stage, kind, method, **options)
    plan = memory(measure(config), config.training.zero, processes, tokens=1, recomputes=False)
    return plan.held + plan.host
