"""Losses of answer tokens from hidden states, a chunk of logits at a time.

Logits of large vocabularies would otherwise dominate memory, several times over: themselves, their
log-softmax and the gradients of both.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

LOGITS_PER_CHUNK = 2**22
"""Logits made at a time: 16 MiB in float32, however long the answers and large the vocabulary."""


class LossHead(nn.Linear):
    """Output embeddings that make the losses in a forward pass of their own.

    Under ZeRO-3 a module's weights are there only while its forward runs, and the number of such runs must be the
    same on all ranks, whatever the number of chunks.
    """

    def forward(self, hidden: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits of [rows, width]; with labels, the losses that `token_losses` describes."""
        return super().forward(hidden) if labels is None else _token_losses(self, hidden, labels)


def token_losses(head: nn.Module, hidden: Tensor, labels: Tensor) -> Tensor:
    """Negative log-likelihood of each label, float32 [rows]; differentiable.

    Args:
        head: the output embeddings, a linear layer.
        hidden: [rows, width].
        labels: token ids, [rows].
    """
    losses: Tensor = head(hidden, labels) if isinstance(head, LossHead) else _token_losses(head, hidden, labels)
    return losses


def _token_losses(head: nn.Module, hidden: Tensor, labels: Tensor) -> Tensor:
    chunks = list(zip(*_chunks(head, hidden, labels), strict=True))
    if _is_frozen(head):
        return torch.cat([_FrozenHeadLosses.apply(head, *chunk) for chunk in chunks])
    if len(chunks) == 1:
        return _losses(head, hidden, labels)
    return torch.cat([checkpoint(_losses, head, *chunk, use_reentrant=False) for chunk in chunks])  # type: ignore[misc]


@torch.no_grad()
def token_scores(head: nn.Module, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(negative log-likelihood of each label, is the label the most likely token), both [rows]."""
    losses, hits = [], []
    for rows, targets in zip(*_chunks(head, hidden, labels), strict=True):
        logits = head(rows).float()
        targets = targets.to(logits.device)  # which may not be the model's first one
        losses.append(cross_entropy(logits, targets, reduction="none"))
        hits.append(logits.argmax(dim=-1) == targets)
    return torch.cat(losses), torch.cat(hits)


def _chunks(head: nn.Module, hidden: Tensor, labels: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    size = max(1, LOGITS_PER_CHUNK // int(head.out_features))  # type: ignore[arg-type]
    return hidden.split(size), labels.split(size)


def _losses(head: nn.Module, hidden: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(_logits(head, hidden), labels, reduction="none")


def _logits(head: nn.Module, hidden: Tensor) -> Tensor:
    """Float32. Inside its own forward pass a head is not called anew: ZeRO-3 would take its weights away after that."""
    logits: Tensor = head.forward(hidden) if isinstance(head, LossHead) else head(hidden)
    return logits.float()


def _is_frozen(head: nn.Module) -> bool:
    return type(head) in (nn.Linear, LossHead) and not any(parameter.requires_grad for parameter in head.parameters())


class _FrozenHeadLosses(torch.autograd.Function):
    """The gradient of each row's loss, (softmax - one-hot) W, is made in the forward pass, while the logits are
    there: nothing of the vocabulary's size is kept, and nothing is computed twice."""

    @staticmethod
    def forward(ctx: Any, head: nn.Linear, hidden: Tensor, labels: Tensor) -> Tensor:
        logits = _logits(head, hidden)
        normaliser = logits.logsumexp(dim=-1)
        losses = normaliser - logits.gather(1, labels[:, None]).squeeze(1)
        if ctx.needs_input_grad[1]:
            probabilities = logits.sub_(normaliser[:, None]).exp_().to(head.weight.dtype)
            ctx.save_for_backward(probabilities @ head.weight - head.weight[labels])
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:  # type: ignore[override]
        (slope,) = ctx.saved_tensors
        return None, (gradient[:, None] * slope).to(slope.dtype), None
