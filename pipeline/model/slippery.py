"""Attention of linear cost for patterns whose rows see few keys: sinks, a window, and themselves.

The rows of each sample are cut into blocks. A block of queries meets the keys that any of them may see, gathered: the
sample's sinks, the window before the block, and the block itself. So a row costs (sinks + window + block) products
instead of as many as there are tokens before it, nothing of n x n is ever made, and one masked call serves many blocks
of all samples. Rows that see everything are computed apart, by ordinary attention.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pipeline.model.kernels import grouped_sdpa
from pipeline.model.patterns import Pattern, Places

BLOCK = 32
"""Queries of a block: large enough for the processor's matrix products, small enough to waste few of them."""
CHUNK = 1024
"""Queries computed at a time: bounds what is gathered, whatever the number of tokens."""


@dataclass(frozen=True)
class Gathered:
    """Queries of several blocks (or samples), each with the keys that they may see. Padding repeats some row."""

    queries: Tensor
    """[blocks, rows]: row of each query."""
    answered: Tensor
    """Boolean [blocks, rows]: is this query's output the one of its row? (No padding, and not computed elsewhere.)"""
    keys: Tensor | None
    """[blocks, keys]: row of each key; None: all rows, in order."""
    mask: Tensor
    """Boolean [blocks, rows, keys]."""

    def split(self, blocks: int) -> Iterator["Gathered"]:
        """The same, at most so many blocks at a time."""
        keys = [None] if self.keys is None else self.keys.split(blocks)
        parts = (self.queries.split(blocks), self.answered.split(blocks), keys, self.mask.split(blocks))
        return (Gathered(*part) for part in zip(*parts, strict=True))

    def gather(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[total, heads, dim] each -> [blocks, rows or keys, heads, dim] each."""
        if self.keys is None:
            return _take(query, self.queries), key[None], value[None]
        return _take(query, self.queries), _take(key, self.keys), _take(value, self.keys)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        """What `gather` gives -> [blocks, rows, heads, dim]. Without autocast, of which no backward pass knows."""
        with torch.autocast(query.device.type, enabled=False):
            return grouped_sdpa(query, key, value, self.mask, options)

    def places(self) -> tuple[Tensor, Tensor]:
        """(places among the flattened queries, rows) of what is answered here."""
        places = self.answered.flatten().nonzero().squeeze(1)
        return places, self.queries.flatten()[places]


@dataclass(frozen=True)
class SlipperyPlan:
    """Which rows meet which keys; made once for a batch, used in every layer."""

    parts: tuple[Gathered, ...]
    answers: tuple[tuple[Tensor, Tensor], ...]
    """Of each part `Gathered.places()`."""

    @classmethod
    def of(cls, pattern: Pattern, lengths: list[int], device: torch.device, tail: int) -> "SlipperyPlan":
        """
        Args:
            lengths: of the samples, which lie one behind another.
            tail: known tokens behind each sample, which are not among its rows.
        """
        assert pattern.sparsity is not None
        sizes = torch.tensor(lengths, device=device)
        full = min(max(pattern.sparsity.full_rows - tail, 0), max(lengths))
        blocks = _blocks(pattern, sizes, tail, full)
        parts = tuple(blocks.split(max(1, CHUNK // blocks.queries.shape[1])))
        parts += (_full_rows(pattern, sizes, full, tail),) if full else ()
        return cls(parts, tuple(part.places() for part in parts))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        """[1, heads, total, dim] each (keys and values with their own heads) -> [1, total, heads, dim]."""
        rows = [part[0].transpose(0, 1).to(value.dtype) for part in (query, key, value)]
        if options.get("dropout_p"):  # computed again in the backward pass, it would drop others
            return self.run(options, *rows)[None]
        output: Tensor = _Recomputed.apply(self, options, *rows)
        return output[None]

    def run(self, options: dict[str, Any], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[total, heads, dim] each -> [total, heads, dim]."""
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        for part, (places, rows) in zip(self.parts, self.answers, strict=True):
            block = part.attend(*part.gather(query, key, value), options).flatten(0, 1)
            output.index_copy_(0, rows, block.index_select(0, places))
        return output

    def gradients(
        self, options: dict[str, Any], inputs: tuple[Tensor, Tensor, Tensor], gradient: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of queries, keys and values: part by part, computing each once more."""
        found = [torch.zeros_like(part, memory_format=torch.contiguous_format) for part in inputs]
        for part, (places, rows) in zip(self.parts, self.answers, strict=True):
            query, key, value = gathered = [piece.detach().requires_grad_() for piece in part.gather(*inputs)]
            with torch.enable_grad():
                block = part.attend(query, key, value, options)
            slope = block.new_zeros(block.shape).flatten(0, 1).index_copy_(0, places, gradient.index_select(0, rows))
            parts = torch.autograd.grad(block, gathered, slope.view_as(block))
            for total, index, piece in zip(found, (part.queries, part.keys, part.keys), parts, strict=True):
                _add(total, index, piece)
        return found[0], found[1], found[2]


class _Recomputed(torch.autograd.Function):
    """Nothing but queries, keys and values is kept for the backward pass: gathered keys would be twice their size."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, plan: SlipperyPlan, options: dict[str, Any], query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.plan, ctx.options = plan, options
        return plan.run(options, query, key, value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return None, None, *ctx.plan.gradients(ctx.options, ctx.saved_tensors, gradient)


def _take(rows: Tensor, places: Tensor) -> Tensor:
    """[total, heads, dim] at [...] -> [..., heads, dim]."""
    return rows.index_select(0, places.flatten()).view(*places.shape, *rows.shape[1:])


def _add(total: Tensor, places: Tensor | None, rows: Tensor) -> None:
    """Add rows back to where `_take` found them, in place."""
    if places is None:
        total += rows[0]
    else:
        total.index_add_(0, places.flatten(), rows.flatten(0, 1))


def _blocks(pattern: Pattern, lengths: Tensor, tail: int, full: int) -> Gathered:
    """The blocks of all samples; `full` last rows of each are answered elsewhere."""
    assert pattern.sparsity is not None
    sinks, window = pattern.sparsity.sinks, pattern.sparsity.window
    size = max(BLOCK, sinks + window)  # so that keys are gathered at most twice
    device, starts = lengths.device, lengths.cumsum(0) - lengths
    counts = (lengths + size - 1) // size
    owner = torch.arange(len(lengths), device=device).repeat_interleave(counts)
    first = (torch.arange(len(owner), device=device) - (counts.cumsum(0) - counts)[owner])[:, None] * size
    query = first + torch.arange(size, device=device)
    near = first + torch.arange(-window, size, device=device)
    sink = torch.arange(sinks, device=device).expand(len(owner), sinks)
    # A sink that lies in the window's part of the keys must not be there twice.
    exists = torch.cat([sink < first - window, near >= 0], dim=1)
    key, length = torch.cat([sink, near], dim=1), lengths[owner, None]
    rows = [starts[owner, None] + part.clamp(min=0).minimum(length - 1) for part in (query, key)]
    mask = _sees(pattern, query, key, length + tail) & exists[:, None, :]
    return Gathered(rows[0], query < length - full, rows[1], mask)


def _full_rows(pattern: Pattern, lengths: Tensor, full: int, tail: int) -> Gathered:
    """The last rows of each sample over all of its keys."""
    device, length = lengths.device, lengths[:, None]
    starts = (lengths.cumsum(0) - lengths)[:, None]
    query = length - full + torch.arange(full, device=device)
    key = torch.arange(int(lengths.max()), device=device).expand(len(lengths), -1)
    # A query that is not there (a sample shorter than the full rows, or empty) must see something too.
    mask = _sees(pattern, query, key, length + tail) & (key < length)[:, None, :] | (key == 0)[:, None, :]
    last = int(lengths.sum()) - 1
    rows = [(starts + part.clamp(min=0).minimum(length - 1)).clamp(0, last) for part in (query, key)]
    return Gathered(rows[0], query >= 0, rows[1] if len(lengths) > 1 else None, mask)


def _sees(pattern: Pattern, query: Tensor, key: Tensor, known: Tensor) -> Tensor:
    """The rule at [blocks, queries] and [blocks, keys] positions of samples with [blocks, 1] known tokens."""
    places = [Places(part, torch.zeros_like(part), known - 1 - part) for part in (query, key)]
    return pattern.rule(places[0].queries(), places[1].keys())
