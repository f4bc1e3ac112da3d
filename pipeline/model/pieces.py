"""Consecutive pieces of the one row of hidden states, each of which is attended to by itself."""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from pipeline.model.patterns import Pattern
from pipeline.model.slippery import SlipperyPlan


class Pieces:
    """Consecutive pieces of a row, and their view as a padded block for one attention call.

    Args:
        tail: known tokens that follow each piece and are not part of it: the one that opens the answer, or none.
        segments: for each piece, where a further segment of it starts; (): nowhere.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        device: torch.device,
        tail: int = 0,
        segments: Sequence[Sequence[int]] = (),
    ) -> None:
        self.lengths = list(lengths)
        self.count, self.total, self.longest = len(lengths), sum(lengths), max(lengths, default=0)
        self.device, self.tail, self.segments = device, tail, segments
        self._masks: dict[int, Tensor] = {}
        self._plans: dict[int, SlipperyPlan] = {}
        self.is_even = all(length == self.longest for length in lengths)

    def to(self, device: torch.device) -> "Pieces":
        return Pieces(self.lengths, device, self.tail, self.segments)

    @cached_property
    def valid(self) -> Tensor:
        """[count, longest]: is there a token at this place of the padded block?"""
        lengths = torch.tensor(self.lengths, device=self.device)
        return torch.arange(self.longest, device=self.device)[None, :] < lengths[:, None]

    @cached_property
    def segment(self) -> Tensor | None:
        """[count, longest]: number of the segment of each place of the padded block; None: there is only one."""
        if not any(self.segments):
            return None
        found = torch.zeros(self.count, self.longest, dtype=torch.long)
        for row, starts in zip(found, self.segments, strict=True):
            for start in starts:
                row[start:] += 1
        return found.to(self.device)

    @cached_property
    def _rows(self) -> Tensor:
        """[count * longest]: row of each place of the block; padding repeats some row, never read."""
        lengths = torch.tensor(self.lengths, device=self.device)
        starts = lengths.cumsum(0) - lengths
        places = torch.arange(self.longest, device=self.device)
        return (starts[:, None] + places).clamp(max=self.total - 1).flatten()

    @cached_property
    def _places(self) -> Tensor:
        """[total]: place in the block of each row."""
        return self.valid.flatten().nonzero().squeeze(1)

    def pad(self, rows: Tensor) -> Tensor:
        """[1, heads, total, dim] -> [count, heads, longest, dim]."""
        if self.count == 1:
            return rows
        rows = rows[0].transpose(0, 1)
        block = rows if self.is_even else rows.index_select(0, self._rows)
        return block.reshape(self.count, self.longest, *rows.shape[1:]).transpose(1, 2)

    def mask(self, pattern: Pattern) -> Tensor | None:
        """Boolean [count or 1, 1, longest or 1, longest], or None where the kernel needs no mask; made once."""
        if pattern.is_causal or (pattern.is_full and self.is_even):
            return None
        if id(pattern) not in self._masks:
            valid = self.valid
            # A padded query is never read, but a row of a mask must not be empty: NaN would reach the gradients.
            if pattern.is_full:
                self._masks[id(pattern)] = (valid | ~valid[:, :1])[:, None, None, :]
            else:
                rule = pattern.mask(self.longest, self.device, self.tail, self.segment)
                self._masks[id(pattern)] = (rule & valid[:, None, :] | ~valid[:, :, None])[:, None]
        return self._masks[id(pattern)]

    def plan(self, pattern: Pattern) -> SlipperyPlan:
        """Which rows meet which keys under a sparse pattern; made once."""
        if id(pattern) not in self._plans:
            self._plans[id(pattern)] = SlipperyPlan.of(pattern, self.lengths, self.device, self.tail)
        return self._plans[id(pattern)]

    def unpad(self, block: Tensor) -> Tensor:
        """[count, heads, longest, dim] -> [1, total, heads, dim]."""
        rows = block.transpose(1, 2)
        if self.count > 1:
            rows = rows.reshape(1, self.count * self.longest, *rows.shape[2:])
            rows = rows if self.is_even else rows.index_select(1, self._places)
        return rows
