"""Run by test_trackers: one training run with all trackers, killed with SIGKILL in the middle of updates.

usage: tracked_run.py RUNS STEP...; start k is killed in its update STEP, the last one ends by itself.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from train_runs import make_loop, run_config, samples

from pipeline.train.loop import TrainingLoop

OPTIONS = {"trackers": ["tensorboard", "wandb", "mlflow"]}


def main(runs: Path, kills: list[int]) -> None:
    loop = make_loop(run_config(runs, **OPTIONS), samples(9))
    for step in [*kills, 0]:
        child = os.fork()
        if child == 0:
            _die_in(step)
            loop.resume()
            loop.run()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        expected = signal.SIGKILL if step else 0
        assert status == expected, f"start up to {step}: status {status}"


def _die_in(step: int) -> None:
    honest = TrainingLoop._update

    def update(loop: TrainingLoop) -> dict[str, Any]:
        if loop.position.step + 1 == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return honest(loop)

    TrainingLoop._update = update  # type: ignore[method-assign]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), [int(step) for step in sys.argv[2:]])
