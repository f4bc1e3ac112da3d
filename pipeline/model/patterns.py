"""Attention patterns over the prompt: which keys may a prompt token see?

Each pattern is one plain boolean rule over (query position, key position). Every fast kernel is tested
against the rule. A new pattern is one entry here and its name in `config.PatternName`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Rule = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Pattern:
    """A rule, and what a kernel may use instead of a mask made from it."""

    rule: Rule
    """(query positions, key positions), broadcastable integers -> may the query see the key?"""
    is_causal: bool = False
    """The rule is key <= query: kernels have a flag for it."""
    is_full: bool = False
    """The rule is always true: no mask is needed."""

    def mask(self, length: int, device: torch.device | None = None) -> Tensor:
        """The rule as a boolean matrix [query, key], [length, length]."""
        positions = torch.arange(length, device=device)
        return self.rule(positions[:, None], positions[None, :])


PATTERNS: dict[str, Pattern] = {
    "causal": Pattern(lambda query, key: key <= query, is_causal=True),
    "bidirectional": Pattern(lambda query, key: (key >= 0) & (query >= 0), is_full=True),
    "anti_causal": Pattern(lambda query, key: key >= query),
}
