"""One update of a run on the ranks that share it, through accelerate: one process, or several with whole copies (DDP).

What DeepSpeed does otherwise is in `pipeline.train.sharded`.
"""

import math
import os
import resource
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch import Tensor
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from pipeline.config import RunConfig
from pipeline.errors import StageError, UserError
from pipeline.model import DualBranch
from pipeline.model.compiling import compile_layers
from pipeline.model.kernel_choice import choose_kernel
from pipeline.model.opening import device_name
from pipeline.train.batches import MicroBatch
from pipeline.train.loss import Objective, row_weights
from pipeline.train.ranks import Ranks
from pipeline.train.schedule import make_optimizer, make_scheduler
from pipeline.train.share import Share
from pipeline.train.trained import check_optimizer, trained_tensors


@dataclass(frozen=True)
class Update:
    """What an update saw and did."""

    loss: float
    gradient_norm: float
    """Before clipping."""
    learning_rate: float


class Engine:
    """Model, optimizer and schedule on their device."""

    def __init__(
        self, config: RunConfig, model: DualBranch, total_steps: int, ranks: Ranks = Ranks(),  # noqa: B008  frozen
        accelerator: Accelerator | None = None,
    ) -> None:  # fmt: skip
        self.training, self.ranks = config.training, ranks
        self.accelerator = accelerator or make_accelerator(config.model.precision, ranks)
        self.device = self.accelerator.device
        self.parameters = trained_tensors(model)
        self.optimizer = make_optimizer(self.parameters.values(), self.training, self.device)
        check_optimizer(self.parameters, self.optimizer)
        self.scheduler = make_scheduler(self.optimizer, self.training, total_steps)
        model.kernel, self.kernel_note = choose_kernel(model, self.device)
        if self.training.compile != "none":
            compile_layers(model, self.training.compile)
        self._prepare(Objective(model))
        self.objective.train()
        self._proven = False

    def _prepare(self, objective: Objective) -> None:
        self.objective: Any
        self.objective, self.prepared_optimizer = self.accelerator.prepare(objective, self.optimizer)

    def update(self, share: Share) -> Update:
        """One optimizer step over a whole batch.

        Raises:
            StageError: on every rank, if loss or gradient norm is not finite, or a trained tensor gets no gradient.
                The weights are then those of the step before, but for a gradient norm under DeepSpeed, which is
                only known after its step.
        """
        loss = self._accumulate(share)
        self._prove_gradients(share)
        rate = self.scheduler.get_last_lr()[0]
        norm = self._step()
        if not math.isfinite(norm):
            raise StageError(f"the gradient norm is {norm}, from among the samples {self._all_ids(share)}")
        self.scheduler.step()
        return Update(loss, norm, float(rate))

    def _step(self) -> float:
        """Clip, update the weights unless the gradients are spoilt, and return the norm before clipping."""
        norm = self._clip()
        if math.isfinite(norm):
            self.prepared_optimizer.step()
            self.prepared_optimizer.zero_grad()
        return norm

    def _accumulate(self, share: Share) -> float:
        """Add up the gradients of the whole batch; returns its loss."""
        losses = []
        for index, micro in enumerate(share.micro_batches):
            with self._boundary(is_last=index == len(share.micro_batches) - 1):
                losses.append(self._backward(micro, share))
        own = float(torch.stack([part for part, _ in losses]).sum())
        found = self.ranks.gather((own, _not_finite(share.micro_batches, [rows for _, rows in losses])))
        loss = own if self.ranks.count == 1 else math.fsum(part for part, _ in found)
        if not math.isfinite(loss):
            culprits = ", ".join(sample for _, samples in found for sample in samples) or self._all_ids(share)
            raise StageError(f"the loss is {loss}, from the samples {culprits}")
        return loss

    def _boundary(self, is_last: bool) -> AbstractContextManager[None]:
        """Ranks exchange gradients once, after the last micro-batch."""
        return nullcontext() if is_last else self.accelerator.no_sync(self.objective)

    def _backward(self, micro: MicroBatch, share: Share) -> tuple[Tensor, Tensor]:
        """The micro-batch's share of the loss, and the loss of each row; adds to the gradients."""
        weights = row_weights(micro.lengths, self.training.loss_reduction, share.samples, share.answer_tokens)
        weights = torch.zeros_like(weights) if micro.is_idle else weights
        inputs = (part.to(self.device) for part in (micro.batch, micro.labels, weights))
        part, losses = self.objective(*inputs)
        # DDP and DeepSpeed take the mean of the ranks' gradients; the loss is the sum of the ranks' shares.
        self._differentiate(part * self.ranks.count if self.ranks.count > 1 else part)
        return part.detach(), losses

    def _differentiate(self, loss: Tensor) -> None:
        self.accelerator.backward(loss)

    def _clip(self) -> float:
        limit = math.inf if self.training.max_grad_norm is None else self.training.max_grad_norm
        return float(self.accelerator.clip_grad_norm_(self.parameters.values(), limit))

    def _prove_gradients(self, share: Share) -> None:
        """Once, at the first update whose prompts are not all empty: every trained tensor gets a gradient."""
        if self._proven:
            return
        has_prompt = any(micro.batch.prompt_tokens for micro in share.micro_batches)
        if all(self.ranks.gather(has_prompt)):
            if idle := self._without_gradient():
                raise StageError(f"{len(idle)} of the trained tensors get no gradient, the first is {idle[0]}")
            self._proven = True

    def _without_gradient(self) -> list[str]:
        return [name for name, tensor in self.parameters.items() if tensor.grad is None]

    def _all_ids(self, share: Share) -> str:
        return ", ".join(sample for part in self.ranks.gather(_ids(share.micro_batches)) for sample in part)

    @property
    def device_name(self) -> str:
        """The GPU's model, or "CPU"."""
        return device_name(self.device)

    def peak_memory(self) -> int:
        """Peak bytes so far: of the GPU's tensors, or of this process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def make_accelerator(precision: str, ranks: Ranks = Ranks()) -> Accelerator:  # noqa: B008  frozen
    """This rank's device, and DDP if there are several; bf16 runs the forward pass under autocast.

    Raises:
        UserError: the device has no bf16, or the process was started as one of several without `join`.
    """
    forget_accelerator()
    options: dict[str, Any] = {}
    if ranks.count > 1:
        # Buffers are constants here: nothing to broadcast.
        options = {"kwargs_handlers": [DistributedDataParallelKwargs(broadcast_buffers=False)]}
        options |= {} if torch.cuda.is_available() else {"cpu": True}
    try:
        accelerator = Accelerator(mixed_precision="bf16" if precision == "bf16" else "no", **options)
    except ValueError as error:
        raise UserError(f"model.precision = {precision!r}: {error}") from None
    check_accelerator(accelerator, ranks, DistributedType.NO if ranks.count == 1 else None)
    return accelerator


def forget_accelerator() -> None:
    """An earlier run of this process may have used another precision, or DeepSpeed."""
    os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)
    unset_hf_deepspeed_config()
    AcceleratorState._reset_state(reset_partial_state=True)


def check_accelerator(accelerator: Accelerator, ranks: Ranks, kind: DistributedType | None) -> None:
    """accelerate takes what it finds in the environment: make sure that it sees this run's ranks.

    Raises:
        StageError: another number of processes, another rank, or another engine than asked for.
    """
    state: PartialState = accelerator.state
    found = (accelerator.num_processes, accelerator.process_index)
    if found != (ranks.count, ranks.index):
        raise StageError(f"accelerate sees rank {found[1]} of {found[0]} processes, not {ranks.index} of {ranks.count}")
    if kind is not None and state.distributed_type != kind:
        raise StageError(f"accelerate chose {state.distributed_type}, not {kind}")


def _ids(micro_batches: Sequence[MicroBatch]) -> list[str]:
    return [sample for micro in micro_batches for sample in micro.ids]


def _not_finite(micro_batches: Sequence[MicroBatch], losses: Sequence[Tensor]) -> list[str]:
    """Samples with a loss that is not finite."""
    return [
        sample
        for micro, rows in zip(micro_batches, losses, strict=True)
        if not micro.is_idle
        for sample, part in zip(micro.ids, rows.split(micro.lengths), strict=True)
        if not part.isfinite().all()
    ]
