"""One update on one device through accelerate: what changes when a run is spread over several processes."""

import math
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor
from torch.nn import Parameter

from pipeline.config import RunConfig
from pipeline.errors import StageError, UserError
from pipeline.model import DualBranch
from pipeline.train.batches import MicroBatch
from pipeline.train.loss import Objective, row_weights
from pipeline.train.schedule import make_optimizer, make_scheduler


@dataclass(frozen=True)
class Update:
    """What an update saw and did."""

    loss: float
    gradient_norm: float
    """Before clipping."""
    learning_rate: float


class Engine:
    """Model, optimizer and schedule on their device."""

    def __init__(self, config: RunConfig, model: DualBranch, total_steps: int) -> None:
        self.training = config.training
        self.accelerator = make_accelerator(config.model.precision)
        self.device = self.accelerator.device
        self.parameters = trainable(model)
        self.optimizer = make_optimizer(self.parameters.values(), self.training, self.device)
        self.scheduler = make_scheduler(self.optimizer, self.training, total_steps)
        self.objective, self.prepared_optimizer = self.accelerator.prepare(Objective(model), self.optimizer)
        self.objective.train()
        self._proven = False

    def update(self, micro_batches: Sequence[MicroBatch]) -> Update:
        """One optimizer step over a whole batch.

        Raises:
            StageError: loss or gradient norm is not finite, or a trained tensor gets no gradient. The weights
                are then those of the step before.
        """
        loss = self._accumulate(micro_batches)
        self._prove_gradients(micro_batches)
        norm = self._clip(micro_batches)
        rate = self.scheduler.get_last_lr()[0]
        self.prepared_optimizer.step()
        self.scheduler.step()
        self.prepared_optimizer.zero_grad()
        return Update(loss, norm, float(rate))

    def _accumulate(self, micro_batches: Sequence[MicroBatch]) -> float:
        """Add up the gradients of the whole batch; returns its loss."""
        losses = [self._backward(micro, *_counts(micro_batches)) for micro in micro_batches]
        loss = float(torch.stack([share for share, _ in losses]).sum())
        if not math.isfinite(loss):
            culprits = _not_finite(micro_batches, [rows for _, rows in losses])
            raise StageError(f"the loss is {loss}, from the samples {', '.join(culprits)}")
        return loss

    def _backward(self, micro: MicroBatch, samples: int, tokens: int) -> tuple[Tensor, Tensor]:
        weights = row_weights(micro.lengths, self.training.loss_reduction, samples, tokens)
        inputs = (part.to(self.device) for part in (micro.batch, micro.labels, weights))
        share, losses = self.objective(*inputs)
        self.accelerator.backward(share)
        return share.detach(), losses

    def _clip(self, micro_batches: Sequence[MicroBatch]) -> float:
        limit = math.inf if self.training.max_grad_norm is None else self.training.max_grad_norm
        norm = float(self.accelerator.clip_grad_norm_(self.parameters.values(), limit))
        if not math.isfinite(norm):
            raise StageError(f"the gradient norm is {norm}, from among the samples {', '.join(_ids(micro_batches))}")
        return norm

    def _prove_gradients(self, micro_batches: Sequence[MicroBatch]) -> None:
        """Once, at the first update whose prompts are not all empty: every trained tensor gets a gradient."""
        if self._proven or not any(micro.batch.prompt_tokens for micro in micro_batches):
            return
        if idle := [name for name, tensor in self.parameters.items() if tensor.grad is None]:
            raise StageError(f"{len(idle)} of the trained tensors get no gradient, the first is {idle[0]}")
        self._proven = True

    @property
    def device_name(self) -> str:
        """The GPU's model, or "CPU"."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type.upper()

    def peak_memory(self) -> int:
        """Peak bytes so far: of the GPU's tensors, or of this process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def make_accelerator(precision: str) -> Accelerator:
    """One process on this machine's device; bf16 runs the forward pass under autocast.

    Raises:
        UserError: the device has no bf16, or the process was started as one of several.
    """
    AcceleratorState._reset_state()  # an earlier run of this process may have used another precision
    try:
        accelerator = Accelerator(mixed_precision="bf16" if precision == "bf16" else "no")
    except ValueError as error:
        raise UserError(f"model.precision = {precision!r}: {error}") from None
    if accelerator.num_processes != 1:
        raise UserError(f"training runs in one process, but was started as {accelerator.num_processes}")
    return accelerator


def trainable(model: DualBranch) -> dict[str, Parameter]:
    """The tensors to train.

    Raises:
        StageError: they are not exactly the tensors that require gradients, or there are none.
    """
    expected = model.trainable()
    actual = {id(tensor) for tensor in model.parameters() if tensor.requires_grad}
    if not expected or actual != {id(tensor) for tensor in expected.values()}:
        raise StageError(f"{len(actual)} tensors require gradients, the method trains {len(expected)}")
    return expected


def _counts(micro_batches: Sequence[MicroBatch]) -> tuple[int, int]:
    """Samples and answer tokens of the whole batch."""
    return len(_ids(micro_batches)), sum(sum(micro.lengths) for micro in micro_batches)


def _ids(micro_batches: Sequence[MicroBatch]) -> list[str]:
    return [sample for micro in micro_batches for sample in micro.ids]


def _not_finite(micro_batches: Sequence[MicroBatch], losses: Sequence[Tensor]) -> list[str]:
    """Samples with a loss that is not finite; all of them if only their sum overflowed."""
    found = [
        sample
        for micro, rows in zip(micro_batches, losses, strict=True)
        for sample, part in zip(micro.ids, rows.split(micro.lengths), strict=True)
        if not part.isfinite().all()
    ]
    return found or _ids(micro_batches)
