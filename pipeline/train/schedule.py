"""Optimizer and learning rate: AdamW, linear warm-up, then linear decay (Bitune, appendix A.2)."""

from collections.abc import Iterable

import torch
from torch.nn import Parameter
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_scheduler

from pipeline.train.config import TrainingConfig

FUSED = ("cpu", "cuda")
"""Devices with a fused AdamW kernel."""


def make_optimizer(parameters: Iterable[Parameter], training: TrainingConfig, device: torch.device) -> AdamW:
    """AdamW over the trained tensors, all with the same learning rate and weight decay."""
    return AdamW(
        parameters,
        lr=training.learning_rate,
        betas=training.betas,
        eps=training.epsilon,
        weight_decay=training.weight_decay,
        fused=device.type in FUSED,
    )


def warmup_steps(training: TrainingConfig, total_steps: int) -> int:
    """Rounded down, so that a run of a few steps does not spend them all at learning rate 0."""
    return int(training.warmup_ratio * total_steps + 1e-9)


def make_scheduler(optimizer: Optimizer, training: TrainingConfig, total_steps: int) -> LRScheduler:
    """Learning rate of update i (from 0): i / warmup, then (total - i) / (total - warmup), or constant after warm-up.

    It is stepped once per update by the loop and never handed to accelerate, which would step it once per process.
    """
    name = "linear" if training.schedule == "linear" else "constant_with_warmup"
    scheduler: LRScheduler = get_scheduler(
        name, optimizer, num_warmup_steps=warmup_steps(training, total_steps), num_training_steps=total_steps
    )
    return scheduler
