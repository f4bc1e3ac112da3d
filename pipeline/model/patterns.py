"""Attention patterns over the prompt: which keys may a prompt token see?

Each pattern is one plain boolean rule over (query, key), which are told by their `Places`. Every fast kernel is tested
against the rule. A new pattern is one entry in `PATTERNS`: configurations, the preset of its name, `show pattern` and
the tests find it there. Importing this module does not import torch.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Scope = Literal["prompt", "input"]


@dataclass(frozen=True)
class Places:
    """Where tokens lie in what is read at once: integers, all of one shape."""

    position: "Tensor"
    """From the sample's first token on."""
    segment: "Tensor"
    """Number of the segment of the prompt (system, user, ...), from 0."""
    behind: "Tensor"
    """Known tokens that follow; 0 for the one from which the first new token is predicted."""

    def queries(self) -> "Places":
        """[..., n] -> [..., n, 1]"""
        return Places(self.position[..., :, None], self.segment[..., :, None], self.behind[..., :, None])

    def keys(self) -> "Places":
        """[..., n] -> [..., 1, n]"""
        return Places(self.position[..., None, :], self.segment[..., None, :], self.behind[..., None, :])


Rule = Callable[[Places, Places], "Tensor"]


@dataclass(frozen=True)
class Sparsity:
    """The parameters of a pattern whose rows see `sinks` first tokens, `window` tokens before them, and themselves."""

    sinks: int = 1
    window: int = 1
    full_rows: int = 1
    """Rows at the end of the known tokens that see everything before them; the token that opens the answer is one."""
    scope: Scope = "prompt"
    """Which tokens are known: those of the prompt, or all that are read at once, the last one excepted."""


@dataclass(frozen=True)
class Pattern:
    """A rule, and what a kernel may use instead of a mask made from it."""

    rule: Rule
    """(queries, keys), broadcastable -> may the query see the key?"""
    is_causal: bool = False
    """The rule is key <= query: kernels have a flag for it."""
    is_full: bool = False
    """The rule is always true: no mask is needed."""
    sparsity: Sparsity | None = None
    """Rows see few keys: a kernel of linear cost reads these (`pipeline.model.slippery`)."""

    @property
    def parameters(self) -> dict[str, Any]:
        """What a configuration may set, with the values in use."""
        return asdict(self.sparsity) if self.sparsity else {}

    def mask(
        self, length: int, device: "torch.device | None" = None, tail: int = 0, segment: "Tensor | None" = None
    ) -> "Tensor":
        """The rule as a boolean matrix [..., query, key], [..., length, length].

        Args:
            tail: known tokens behind these.
            segment: the segment of each token, [..., length]; default: all in one.
        """
        import torch

        position = torch.arange(length, device=device)
        segment = torch.zeros_like(position) if segment is None else segment
        places = Places(position, segment, length + tail - 1 - position)
        return self.rule(places.queries(), places.keys())


def slippery(**parameters: Any) -> Pattern:
    """Slippery attention: known tokens see the sinks and a short window, full rows see all that is before them.

    Args:
        parameters: those of `Sparsity`.
    """
    sparsity = Sparsity(**parameters)

    def rule(query: Places, key: Places) -> "Tensor":
        near = (key.position < sparsity.sinks) | (key.position >= query.position - sparsity.window)
        return (key.position <= query.position) & (near | (query.behind < sparsity.full_rows))

    return Pattern(rule, sparsity=sparsity)


PATTERNS: dict[str, Pattern] = {
    "causal": Pattern(lambda query, key: key.position <= query.position, is_causal=True),
    "bidirectional": Pattern(lambda query, key: (key.position >= 0) & (query.position >= 0), is_full=True),
    "anti_causal": Pattern(lambda query, key: key.position >= query.position),
    "segment": Pattern(lambda query, key: key.segment <= query.segment),
    "slippery": slippery(),
}


def make_pattern(name: str, parameters: dict[str, Any]) -> Pattern:
    """The pattern of that name; only slippery attention has parameters."""
    return slippery(**parameters) if parameters else PATTERNS[name]
