"""Chunked losses, scores and gradients against plain cross-entropy in float64."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.model.head import LOGITS_PER_CHUNK, token_losses, token_scores

ROWS, WIDTH, VOCABULARY = 11, 6, 23


def make(bias: bool, trained: bool, dtype: torch.dtype = torch.float64) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY, bias=bias, dtype=dtype).requires_grad_(trained)
    return head, torch.randn(ROWS, WIDTH, dtype=dtype, requires_grad=True), torch.randint(0, VOCABULARY, (ROWS,))


@pytest.mark.parametrize("rows_per_chunk", [1, 4, 100])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_losses_and_gradients(bias: bool, trained: bool, rows_per_chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.model.head.LOGITS_PER_CHUNK", VOCABULARY * rows_per_chunk)
    head, hidden, labels = make(bias, trained)
    inputs = [hidden, *(head.parameters() if trained else [])]
    weights = torch.linspace(0.1, 2, ROWS)  # rows that count differently
    expected = cross_entropy(head(hidden), labels, reduction="none")
    slopes = torch.autograd.grad((expected * weights).sum(), inputs)
    losses = token_losses(head, hidden, labels)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses.double(), expected, atol=1e-6, rtol=1e-6)
    for ours, plain in zip(torch.autograd.grad((losses * weights).sum(), inputs), slopes, strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-6, rtol=1e-6)
    scores, hits = token_scores(head, hidden, labels)
    torch.testing.assert_close(scores, losses)
    assert torch.equal(hits, head(hidden).argmax(dim=-1) == labels)


@pytest.mark.parametrize("trained", [False, True])
def test_bf16_under_autocast(trained: bool) -> None:
    head, hidden, labels = make(bias=False, trained=trained, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        losses = token_losses(head, hidden, labels)
    expected = cross_entropy(head(hidden).float(), labels, reduction="none")
    torch.testing.assert_close(losses, expected, atol=1e-3, rtol=1e-3)
    ours, plain = (torch.autograd.grad(part.sum(), hidden)[0] for part in (losses, expected))
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours, plain, atol=2e-2, rtol=2e-2)


def test_no_gradient_is_made_where_none_is_needed() -> None:
    head, hidden, labels = make(bias=False, trained=False)
    assert not token_losses(head, hidden.detach(), labels).requires_grad


class Largest(TorchDispatchMode):
    """The most elements that any tensor made while the mode is on has in memory."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return made


@pytest.mark.parametrize("is_trained", [True, False])
def test_a_vocabulary_of_256k_is_never_there_for_all_rows(is_trained: bool) -> None:
    """Forward and backward: 64 rows x 256,000 would be 16 million logits, a chunk has 4."""
    head = nn.Linear(8, 256_000, bias=False).requires_grad_(is_trained)
    hidden = torch.randn(64, 8, requires_grad=True)
    with Largest() as seen:
        token_losses(head, hidden, torch.arange(64)).mean().backward()
    assert hidden.grad is not None
    assert head.weight.numel() <= seen.elements <= LOGITS_PER_CHUNK
