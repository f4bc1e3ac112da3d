"""Training in several processes of this machine, and one of them."""

import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from pipeline.config import RunConfig
from pipeline.errors import StageError, UserError
from pipeline.quiet import debugging
from pipeline.run_folder import RunFolder
from pipeline.stages import Tell, check_stages, describe, exclusive, failure, record_failure, run_stage
from pipeline.train.environment import rank_variables

SPAWNED = "DUALTUNE_SPAWNED"
"""Set in processes that `train_in_processes` started: the run folder is locked and errors are told by their parent."""
PARENT = "DUALTUNE_PARENT"
"""Process id of the launcher: its processes stop when it is gone."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
SECONDS_TO_FOLLOW = 15.0
"""How long processes may go on when one of them has failed."""


def train_in_processes(folder: RunFolder, count: int, resume: Path | None = None) -> None:
    """Train the run of a folder in `count` processes, one a GPU, and wait. Signals are handed on to all of them.

    Raises:
        StageError: one of them failed, with its reason, or all were stopped by a signal.
    """
    folder.failure.unlink(missing_ok=True)
    port = _free_port()
    processes = [_start(folder.config, rank, count, port, resume) for rank in range(count)]
    previous = {number: signal.signal(number, lambda n, _: _send(processes, n)) for number in SIGNALS}
    try:
        status = _wait(processes)
    finally:
        _send(processes, signal.SIGKILL)
        for number, handler in previous.items():
            signal.signal(number, handler)
    if status:
        raise _error(status, folder)


def python_path() -> str:
    """PYTHONPATH for a child: this very code before anything else."""
    code = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, [code, os.environ.get("PYTHONPATH", "")]))


def _start(config: Path, rank: int, count: int, port: int, resume: Path | None) -> subprocess.Popen[bytes]:
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // count))}
    own = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        SPAWNED: "1",
        PARENT: str(os.getpid()),
        "PYTHONPATH": python_path(),
    }
    command = [
        sys.executable,
        "-m",
        "pipeline.cli",
        "train",
        str(config),
        *(["--resume", str(resume)] if resume else []),
    ]
    # A group of its own: Ctrl-C reaches the parent only, which hands on exactly one signal.
    return subprocess.Popen(command, env={**threads, **os.environ, **own}, process_group=0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _send(processes: list[subprocess.Popen[bytes]], number: int) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)


def _wait(processes: list[subprocess.Popen[bytes]]) -> int:
    """Wait for all; once one has failed, the others get a moment to follow. Returns the first status that is not 0."""
    status, until = 0, float("inf")
    while any(process.poll() is None for process in processes) and time.monotonic() < until:
        time.sleep(0.05)
        found = next((process.returncode for process in processes if process.returncode), 0)
        if found and not status:
            status, until = found, time.monotonic() + SECONDS_TO_FOLLOW
    return status or next((process.returncode for process in processes if process.returncode), 0)


def _error(status: int, folder: RunFolder) -> UserError:
    number = -status if status < 0 else status - 128
    if number in (*SIGNALS, signal.SIGALRM):
        saved = "a checkpoint is saved" if status > 0 else "at once"
        error: UserError = StageError(f"stopped by {signal.Signals(number).name}, {saved}: the same command goes on")
        error.status = 128 + number
        return error
    if status < 0:
        return StageError(f"a process of the run was killed by {signal.Signals(number).name}: the same command goes on")
    reason = failure(folder).removeprefix("train: ") or f"a process of the run ended with status {status}"
    return UserError(reason) if status == UserError.status else StageError(reason)


def train_as_rank(config: RunConfig, folder: RunFolder, tell: Tell, resume: Path | None = None) -> int:
    """Take part in a run as the rank that the environment says; returns the exit status.

    Raises:
        UserError: as `check_stages`, of every rank alike.
    """
    from pipeline.train.ranks import is_shared, leave

    if SPAWNED not in os.environ:  # else its parent has
        check_stages(config, folder, ("train",))
    is_main = rank_variables(os.environ).get("RANK", "0") == "0"
    try:
        _train(config, folder, tell, is_main and SPAWNED not in os.environ, resume)
    except Exception as error:
        status = int(getattr(error, "status", StageError.status))
        if is_main or not is_shared(error):
            _tell(error, status, folder, tell)
        return status
    leave()
    return 0


def _train(config: RunConfig, folder: RunFolder, tell: Tell, is_owner: bool, resume: Path | None) -> Any:
    from pipeline.train.stage import train

    if not is_owner:
        return train(config, folder, resume)
    with exclusive(folder, tell):
        return run_stage("train", config, folder, resume=resume)


def _tell(error: Exception, status: int, folder: RunFolder, tell: Tell) -> None:
    """Say why this rank ends, or leave the reason to the parent that started it."""
    from pipeline.train.ranks import Lost

    if debugging():
        traceback.print_exception(error)
    is_spawned, is_failure = SPAWNED in os.environ, status < 128
    if isinstance(error, Lost) and (is_spawned or failure(folder)):
        return  # the rank that is gone tells more, or its parent does
    if is_failure:
        record_failure(folder, "train", describe(error))
    if not (is_spawned and is_failure):
        tell(f"error: {describe(error)}")
