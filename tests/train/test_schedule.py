from pathlib import Path

import pytest
import torch
from train_runs import run_config

from pipeline.train.config import TrainingConfig
from pipeline.train.schedule import make_optimizer, make_scheduler, warmup_steps


def rates(training: TrainingConfig, steps: int) -> list[float]:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = make_optimizer([parameter], training, torch.device("cpu"))
    scheduler = make_scheduler(optimizer, training, steps)
    found = []
    for _ in range(steps):
        parameter.grad = torch.ones(1)
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_linear_with_warmup_by_hand() -> None:
    training = TrainingConfig(learning_rate=0.8, warmup_ratio=0.2)
    assert rates(training, 10) == pytest.approx([0, 0.4, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])


def test_linear_without_warmup_by_hand() -> None:
    assert rates(TrainingConfig(learning_rate=1.0, warmup_ratio=0), 4) == pytest.approx([1.0, 0.75, 0.5, 0.25])


def test_constant_after_warmup() -> None:
    training = TrainingConfig(learning_rate=1.0, warmup_ratio=0.5, schedule="constant")
    assert rates(training, 4) == pytest.approx([0, 0.5, 1, 1])


@pytest.mark.parametrize("steps, warmup", [(1, 0), (9, 0), (10, 1), (100, 10), (3000, 300), (1605, 160)])
def test_a_tenth_of_the_steps_is_warmup(steps: int, warmup: int) -> None:
    assert warmup_steps(TrainingConfig(warmup_ratio=0.1), steps) == warmup


def test_optimizer_has_the_configured_settings(tmp_path: Path) -> None:
    training = run_config(tmp_path, weight_decay=0.1, betas=(0.8, 0.9), epsilon=1e-7).training
    optimizer = make_optimizer([torch.nn.Parameter(torch.zeros(1))], training, torch.device("cpu"))
    group = optimizer.param_groups[0]
    assert (group["weight_decay"], group["betas"], group["eps"], group["lr"]) == (0.1, (0.8, 0.9), 1e-7, 1e-2)
