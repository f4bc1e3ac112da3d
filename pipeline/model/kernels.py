"""Scaled dot-product attention as all streams and patterns call it."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


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
