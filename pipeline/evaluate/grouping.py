"""Requests in token ids, and how they are put together into passes within a token budget."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from torch import Tensor

from pipeline.config import digest


@dataclass(frozen=True)
class Scored:
    """One text to score.

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

    @cached_property
    def key(self) -> str:
        """Equal requests have equal keys, and are answered once."""
        return digest([self.prompt, self.stream, self.labels])

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


def by_prompt(requests: Mapping[str, Scored]) -> dict[tuple[int, ...], list[str]]:
    """Keys of the requests of each distinct prompt."""
    found: dict[tuple[int, ...], list[str]] = {}
    for key, request in requests.items():
        found.setdefault(request.prompt, []).append(key)
    return found


def scored_passes(
    branches: int, requests: Mapping[str, Scored], budget: int, share: bool = True
) -> Iterator[list[str]]:
    """Keys of one forward pass each, of at most `budget` tokens: prompts once per branch, then every stream.

    Requests of one prompt stay together; a prompt whose answers exceed the budget is read again for the rest of
    them. The costliest come first: the pass that may not fit runs at once, not at the end.

    Args:
        share: answers to one prompt read it once; otherwise the model reads it for each of them.
    """
    groups = sorted(_groups(requests, branches, budget if share else 0), key=lambda group: -group[0])
    for part in runs([cost for cost, _ in groups], budget):
        yield list(chain.from_iterable(keys for _, keys in groups[part]))


def _groups(requests: Mapping[str, Scored], branches: int, budget: int) -> Iterator[tuple[int, list[str]]]:
    """(tokens, keys) of requests that share a prompt."""
    for prompt, keys in by_prompt(requests).items():
        costs = [len(requests[key].stream) for key in keys]
        base = branches * len(prompt)
        for part in runs(costs, budget - base):
            yield base + sum(costs[part]), keys[part]


@dataclass(frozen=True)
class Continued:
    """One text to continue."""

    prompt: tuple[int, ...]
    new: int
    """Tokens at most."""
    stop: tuple[str, ...]
    settings: str
    """Further options of transformers' `generate`, as JSON."""

    @property
    def options(self) -> tuple[int, tuple[str, ...], str]:
        """Only prompts with equal options are continued together."""
        return self.new, self.stop, self.settings


def continued_keys(requests: Sequence[Continued]) -> list[str]:
    """A key for each request. Sampling one prompt twice asks for two answers, greedy decoding for one."""
    seen: Counter[Continued] = Counter()
    keys = []
    for request in requests:
        keys.append(digest([request.prompt, request.options, seen[request]]))
        seen[request] += json.loads(request.settings)["do_sample"]
    return keys


def continued_passes(branches: int, requests: Mapping[str, Continued], budget: int) -> Iterator[list[str]]:
    """Keys of prompts that are continued together, long ones first, of at most `budget` tokens with the new ones."""
    for options in dict.fromkeys(request.options for request in requests.values()):
        keys = [key for key in requests if requests[key].options == options]
        keys.sort(key=lambda key: -len(requests[key].prompt))
        for part in runs([branches * len(requests[key].prompt) + options[0] for key in keys], budget):
            yield keys[part]


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
