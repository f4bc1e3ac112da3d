"""The training loss: exact means over a whole batch, however it is cut into micro-batches."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

from pipeline.model import Batch, DualBranch

Reduction = Literal["token", "sample"]


def row_weights(lengths: Sequence[int], reduction: Reduction, samples: int, tokens: int) -> Tensor:
    """The weight of each answer row in the loss of its *batch*, [sum(lengths)] float32.

    `lengths` are the answer tokens of the samples of one micro-batch; `samples` and `tokens` count the whole
    batch. Summed over all micro-batches, weight x loss is the batch's mean: over tokens (`token`), or over
    samples of the mean over their tokens (`sample`, Bitune's own loss). Averaging micro-batch means instead
    would weigh samples by how they happen to be grouped.
    """
    each = [1 / tokens if reduction == "token" else 1 / (samples * length) for length in lengths]
    return torch.repeat_interleave(torch.tensor(each), torch.tensor(lengths))


class Objective(nn.Module):
    """The model as the distributed engines want it: one `forward` that returns the loss."""

    def __init__(self, model: DualBranch) -> None:
        super().__init__()
        self.model = model
        self.autocasts = False
        """Run under bf16 autocast here, where accelerate does not see to it."""

    def forward(self, batch: Batch, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The micro-batch's share of the loss (scalar), and the loss of each answer row, [rows], detached."""
        with torch.autocast(labels.device.type, torch.bfloat16) if self.autocasts else nullcontext():
            losses = self.model.losses(batch, labels)
        return (losses * weights).sum(), losses.detach()
