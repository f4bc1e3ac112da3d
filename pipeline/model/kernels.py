"""Scaled dot-product attention as all streams and patterns call it, and what other kernels have to offer."""

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from pipeline.model.layout import Layout
    from pipeline.model.patterns import Pattern
    from pipeline.model.pieces import Pieces


Rows = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values."""


class Kernel(Protocol):
    """Attention over the packed row, in the place of padded blocks and masks.

    `rows` are queries, keys and values, [1, heads, total, dim] each; results are [1, total, heads, dim]. What is made
    once for a batch is kept in `Layout.plans`.
    """

    name: str

    def handles(self, pattern: "Pattern") -> bool:
        """Has the kernel a form of this pattern?"""

    def pieces(
        self, layout: "Layout", pieces: "Pieces", pattern: "Pattern", rows: Rows, options: dict[str, Any]
    ) -> Tensor:
        """Rows of which each sees those of its own piece, as the pattern says."""

    def answers(self, layout: "Layout", prompt: tuple[Tensor, Tensor], rows: Rows, options: dict[str, Any]) -> Tensor:
        """Rows of answers: each sees its whole prompt, whose keys and values are `prompt`, then itself causally."""


def uniform(query: Tensor, key: Tensor, value: Tensor) -> Rows:
    """In one dtype: that of autocast, else that of the values. Rotary embeddings may have widened the others."""
    device = value.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else value.dtype
    return query.to(dtype), key.to(dtype), value.to(dtype)


def sdpa(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, options: dict[str, Any]
) -> Tensor:
    """[batch, heads, rows, dim] of queries over [batch, key heads, keys, dim] -> the shape of the queries."""
    groups = query.shape[1] // key.shape[1]
    if mask is not None and query.device.type != "cpu":  # with grouped heads and a mask, GPUs take the slow kernel
        key, value, groups = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1), 1
    options = {"attn_mask": mask, "is_causal": is_causal, "enable_gqa": groups > 1, **options}
    if query.device.type != "cpu" or query.dtype == torch.float64:
        return scaled_dot_product_attention(query, key, value, **options)
    # On CPUs the backward pass of this kernel is several times slower in bfloat16 than in float32.
    with torch.autocast("cpu", enabled=False):
        output = scaled_dot_product_attention(query.float(), key.float(), value.float(), **options)
    return output.to(value.dtype)


def grouped_sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, options: dict[str, Any]) -> Tensor:
    """The same for few rows, whose heads that share a key head are put behind one another: keys are never repeated.

    Args:
        query: [batch, rows, heads, dim]; mask: boolean [batch, rows, keys].
        key, value: [batch, keys, key heads, dim].

    Returns:
        [batch, rows, heads, dim].
    """
    batch, rows, heads, dim = query.shape
    groups = heads // key.shape[2]
    folded = query.reshape(batch, rows, -1, groups, dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
    mask = mask[:, None].repeat(1, 1, groups, 1)
    output = sdpa(folded, key.transpose(1, 2), value.transpose(1, 2), mask, False, options)
    return output.unflatten(2, (groups, rows)).permute(0, 3, 1, 2, 4).flatten(2, 3)
