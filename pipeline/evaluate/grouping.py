"""Requests grouped by the prompt they share, and groups packed into passes of bounded size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Scored:
    """One text to score, in token ids.

    The branches read `prompt`; the answer stream reads `stream`, whose first token opens the answer. Of the
    predictions made at its rows, the last `len(labels)` are scored.
    """

    prompt: tuple[int, ...]
    stream: tuple[int, ...]
    labels: tuple[int, ...]

    @classmethod
    def of(cls, context: Sequence[int], continuation: Sequence[int]) -> "Scored":
        """All of the context but its last token is the prompt; that last token opens the answer."""
        return cls(tuple(context[:-1]), (context[-1], *continuation[:-1]), tuple(continuation))

    @classmethod
    def without_prompt(cls, context: Sequence[int], continuation: Sequence[int]) -> "Scored":
        """The context belongs to the answer stream: everything is read causally."""
        return cls((), (*context, *continuation[:-1]), tuple(continuation))

    @property
    def row_labels(self) -> tuple[int, ...]:
        """A label for every row; those of unscored rows mean nothing."""
        return (0,) * (len(self.stream) - len(self.labels)) + self.labels

    def total(self, losses: Tensor, hits: Tensor) -> tuple[float, bool]:
        """Log-likelihood of the labels, and whether each was the most likely token.

        Args:
            losses: negative log-likelihood of every row, [rows]; hits: label is the argmax, [rows].
        """
        scored = len(self.labels)
        return -losses[-scored:].double().sum().item(), bool(hits[-scored:].all())


@dataclass(frozen=True)
class Group:
    """Requests that read one prompt, by their index."""

    prompt: tuple[int, ...]
    members: tuple[int, ...]
    cost: int
    """Tokens of one pass: the prompt once per branch, then every stream."""


def groups(requests: Sequence[Scored], branches: int, budget: int, share: bool = True) -> list[Group]:
    """Each distinct prompt once, the costliest first: the pass that may not fit runs at once, not at the end.

    A prompt whose answers exceed the budget is read again for the rest of them; without `share`, for each answer.
    """
    members: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for index, request in enumerate(requests):
        members.setdefault((request.prompt, 0 if share else index), []).append(index)
    found = []
    for (prompt, _), indices in members.items():
        costs = [len(requests[index].stream) for index in indices]
        base = branches * len(prompt)
        found += [Group(prompt, tuple(indices[part]), base + sum(costs[part])) for part in runs(costs, budget - base)]
    return sorted(found, key=lambda group: -group.cost)


def passes(requests: Sequence[Scored], branches: int, budget: int, share: bool = True) -> Iterator[list[Group]]:
    """Groups whose cost together stays within `budget` tokens; one that exceeds it alone is a pass of its own."""
    ordered = groups(requests, branches, budget, share)
    for part in runs([group.cost for group in ordered], budget):
        yield ordered[part]


def runs(costs: Sequence[int], budget: int) -> Iterator[slice]:
    """Cut a sequence into consecutive runs, each as long as its costs stay within the budget, at least one item."""
    start = spent = 0
    for index, cost in enumerate(costs):
        if index > start and spent + cost > budget:
            yield slice(start, index)
            start, spent = index, 0
        spent += cost
    if costs:
        yield slice(start, len(costs))
