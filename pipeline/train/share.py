"""Which rows of an update each rank gets, and how they are packed: the same plan on every rank, without a word
between them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pipeline.model.config import MethodConfig
from pipeline.train.batches import MicroBatch, Row, answer_tokens
from pipeline.train.config import TrainingConfig

Plan = list[list[list[int]]]
"""For each rank its micro-batches, as indices into the rows of an update."""


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

    def plan(self, rows: Sequence[Row], ranks: int) -> Plan:
        """Every row is in exactly one micro-batch."""
        if self.tokens is None:
            return [_cut(part, self.size) for part in _parts(len(rows), ranks)]
        return grouped(balanced([self.cost(row) for row in rows], ranks, self.tokens), ranks)


def balanced(costs: Sequence[int], ranks: int, budget: int) -> list[int]:
    """The micro-batch of each row, by its number; the ranks have them in turn. As many for each rank, as few as the
    budget allows, as equal as can be.

    The longest row goes to the emptiest micro-batch, then the next (LPT, Graham 1969).
    """
    order = sorted(range(len(costs)), key=lambda index: (-costs[index], index))
    count = ranks * max(1, -(-sum(costs) // (budget * ranks)))
    places, largest = _fill(order, costs, count)
    while largest > budget and count < len(costs):
        count += ranks  # ends at rows longer than the budget, each alone
        places, largest = _fill(order, costs, count)
    return places


def grouped(places: Sequence[int], ranks: int) -> Plan:
    """The plan that `balanced` says."""
    parts: dict[int, list[int]] = {}
    for index, place in enumerate(places):
        parts.setdefault(place, []).append(index)
    return [[parts[place] for place in sorted(parts) if place % ranks == rank] for rank in range(ranks)]


def _parts(count: int, ranks: int) -> list[range]:
    """0..count cut into consecutive parts whose sizes differ by one at most."""
    bounds = [count * rank // ranks for rank in range(ranks + 1)]
    return [range(start, end) for start, end in pairwise(bounds)]


def _cut(part: Sequence[int], size: int) -> list[list[int]]:
    return [list(part[start : start + size]) for start in range(0, len(part), size)]


def _fill(order: Sequence[int], costs: Sequence[int], count: int) -> tuple[list[int], int]:
    """The micro-batch of each row, and the largest one's cost."""
    places, loads = [0] * len(costs), [0] * count
    for index in order:
        places[index] = loads.index(min(loads))
        loads[places[index]] += costs[index]
    return places, max(loads)


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
    def of(
        cls, rows: Sequence[Row], packing: Packing, rank: int = 0, ranks: int = 1, plan: Plan | None = None
    ) -> "Share":
        """
        Args:
            plan: that of `packing`, where it is known.
        """
        plan = plan or packing.plan(rows, ranks)
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
