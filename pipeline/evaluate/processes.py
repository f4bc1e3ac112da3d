"""Several processes of this machine that answer shares of one evaluation."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess

import torch
from rich.console import Console

from pipeline.config import RunConfig
from pipeline.errors import UserError
from pipeline.quiet import silence
from pipeline.run_folder import RunFolder
from pipeline.share import Share


@contextmanager
def processes_beside(config: RunConfig, folder: RunFolder, count: int) -> Iterator[str | None]:
    """Run shares 2 to `count` beside this process, which takes the first, and wait for them.

    Yields:
        The device of this process; None: the default one.
    """
    threads = max(1, torch.get_num_threads() // count)
    context = get_context("spawn")
    common = (config, folder, threads, os.getpid())
    started = [
        context.Process(target=_work, args=(*common, Share(n, count), device_of(n - 1)), daemon=True)
        for n in range(2, count + 1)
    ]
    with _interrupts_ignored():  # which the processes inherit: this one ends them
        for process in started:
            process.start()
    if count > 1:
        torch.set_num_threads(threads)
    try:
        yield device_of(0) if count > 1 else None
        for number, process in enumerate(started, start=2):
            _wait(process, number)
    finally:
        for process in started:
            process.terminate()  # those that still run when this process fails or is stopped


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # where signals cannot be handled
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _wait(process: BaseProcess, number: int) -> None:
    process.join()
    if process.exitcode:
        words = f"process {number} ended with status {process.exitcode}: its share is done here"
        print(f"evaluate: {words}", file=sys.stderr, flush=True)


def device_of(index: int) -> str:
    """GPUs are dealt out in turn."""
    return f"cuda:{index % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"


def _work(config: RunConfig, folder: RunFolder, threads: int, parent: int, share: Share, device: str) -> None:
    """One share in silence: what the user must know, the first process says."""
    from pipeline.cli import follow_parent
    from pipeline.evaluate.fingerprint import missing_tasks
    from pipeline.evaluate.stage import answer, open_model, open_tasks

    silence()
    os.environ["DUALTUNE_PARENT"] = str(parent)
    follow_parent()
    torch.set_num_threads(threads)
    try:
        tasks = open_tasks(config, folder, missing_tasks(config, folder), Console(quiet=True))
        answer(tasks, open_model(config, folder, device), share)
    except UserError:
        sys.exit(1)  # the first process meets it too
