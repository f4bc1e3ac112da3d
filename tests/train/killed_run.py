"""Run by test_resume: one training run, killed with SIGKILL at every write of a save, each time in a new process.

usage: killed_run.py RUNS KILLS. Events are every write, flush, rename and deletion of files; start k goes on from
what the killed ones left, and is killed at its k-th event. Prints at what, and which checkpoint is found then.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from train_runs import make_loop, run_config, samples

import pipeline.files
import pipeline.train.state

OPTIONS = {"epochs": 8, "keep_checkpoints": 1, "micro_batch_size": 4}


def main(runs: Path, kills: int) -> None:
    loop = make_loop(run_config(runs, **OPTIONS), samples(9))
    for kill in range(1, kills + 1):
        child = os.fork()
        if child == 0:
            _die_at(kill)
            loop.resume()
            loop.run()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"start {kill}: status {status}"
        checkpoint, skipped = loop.checkpoints.latest()
        print(f"found {checkpoint.step if checkpoint else 0} skipped {len(skipped)}", flush=True)


def _die_at(event: int) -> None:
    left = event

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left > 0:
                return function(*arguments, **options)
            if function is save_file:  # killed half-way through a write
                function(*arguments, **options)
                os.truncate(arguments[1], os.path.getsize(arguments[1]) // 2)
            print(f"killed at {function.__name__}, ", end="", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

        return call

    save_file = pipeline.train.state.save_file
    pipeline.train.state.save_file = counted(save_file)  # type: ignore[assignment]
    pipeline.files._sync = counted(pipeline.files._sync)
    Path.replace = counted(Path.replace)  # type: ignore[method-assign]
    shutil.rmtree = counted(shutil.rmtree)  # type: ignore[assignment]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]))
