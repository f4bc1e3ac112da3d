"""Which rows of an update each rank gets, and how they are packed: the same plan on every rank, without a word
between them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pipeline.model.config import MethodConfig
from pipeline.train.batches import MicroBatch, Row, answer_tokens
from pipeline.train.config import TrainingConfig


@dataclass(frozen=True)
class Packing:
    """How the rows of an update become micro-batches: of `size` rows each, or within a budget of `tokens`."""

    size: int
    tokens: int | None
    branches: int
    """How often the prompt passes through the layers."""

    @classmethod
    def of(cls, training: TrainingConfig, method: MethodConfig) -> "Packing":
        return cls(training.micro_batch_size, training.micro_batch_tokens, len(method.branches))

    def cost(self, row: Row) -> int:
        """Tokens that pass through the layers."""
        answers = answer_tokens([row])
        return self.branches * (len(row.input_ids) - answers) + answers

    def plan(self, rows: Sequence[Row], ranks: int) -> list[list[list[int]]]:
        """For each rank its micro-batches, as indices into `rows`. Every row is in exactly one of them."""
        if self.tokens is None:
            return [_cut(part, self.size) for part in _parts(len(rows), ranks)]
        return self._balance([self.cost(row) for row in rows], ranks, self.tokens)

    def _balance(self, costs: Sequence[int], ranks: int, budget: int) -> list[list[list[int]]]:
        """As many micro-batches for each rank, as few as the budget allows, as equal as can be.

        The longest row goes to the emptiest micro-batch, then the next (LPT, Graham 1969).
        """
        order = sorted(range(len(costs)), key=lambda index: (-costs[index], index))
        count = ranks * max(1, -(-sum(costs) // (budget * ranks)))
        parts = _fill(order, costs, count)
        while max(sum(costs[index] for index in part) for part in parts) > budget and count < len(costs):
            count += ranks  # ends at rows longer than the budget, each alone
            parts = _fill(order, costs, count)
        return [[sorted(part) for part in parts[rank::ranks] if part] for rank in range(ranks)]


def _parts(count: int, ranks: int) -> list[range]:
    """0..count cut into consecutive parts whose sizes differ by one at most."""
    bounds = [count * rank // ranks for rank in range(ranks + 1)]
    return [range(start, end) for start, end in pairwise(bounds)]


def _cut(part: Sequence[int], size: int) -> list[list[int]]:
    return [list(part[start : start + size]) for start in range(0, len(part), size)]


def _fill(order: Sequence[int], costs: Sequence[int], count: int) -> list[list[int]]:
    parts: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for index in order:
        emptiest = loads.index(min(loads))
        parts[emptiest].append(index)
        loads[emptiest] += costs[index]
    return parts


@dataclass(frozen=True)
class Share:
    """One rank's part of an update, and what it must know of the whole."""

    micro_batches: list[MicroBatch]
    """As many on every rank. Ranks with fewer rows get idle ones: all ranks must take part in each forward pass."""
    samples: int
    """Of the whole batch."""
    answer_tokens: int
    """Of the whole batch."""
    tokens: int
    """Real tokens of the whole batch."""

    @classmethod
    def of(cls, rows: Sequence[Row], packing: Packing, rank: int = 0, ranks: int = 1) -> "Share":
        plan = packing.plan(rows, ranks)
        rounds = max(map(len, plan))
        own = [MicroBatch.pack([rows[index] for index in part]) for part in plan[rank]]
        idle = _idle(rows)
        return cls(
            micro_batches=[*own, *(next(idle) for _ in range(rounds - len(own)))],
            samples=len(rows),
            answer_tokens=answer_tokens(rows),
            tokens=sum(len(row.input_ids) for row in rows),
        )


def _idle(rows: Sequence[Row]) -> Iterator[MicroBatch]:
    """Micro-batches of the shortest row that count for nothing."""
    shortest = min(rows, key=lambda row: len(row.input_ids))
    while True:
        yield replace(MicroBatch.pack([shortest]), ids=(), tokens=0, is_idle=True)
