import random

import pytest
from train_runs import Sample, Samples, samples

from pipeline.model.config import MethodConfig
from pipeline.train.config import TrainingConfig
from pipeline.train.share import Packing, Share


def unequal(count: int, seed: int = 0) -> Samples:
    """Lengths as of chat data: many short rows and some long ones."""
    source = random.Random(seed)
    lengths = [min(500, int(source.lognormvariate(4, 1)) + 2) for _ in range(count)]
    return Samples(
        Sample(f"row-{i}", [1] * length, max(1, source.randrange(length))) for i, length in enumerate(lengths)
    )


def flat(plan: list[list[list[int]]]) -> list[int]:
    return sorted(index for rank in plan for part in rank for index in part)


@pytest.mark.parametrize("tokens", [None, 1, 300, 10**6])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 3, 9, 40])
def test_every_row_is_in_exactly_one_micro_batch(count: int, ranks: int, tokens: int | None) -> None:
    plan = Packing(2, tokens, branches=2).plan(unequal(count), ranks)
    assert len(plan) == ranks
    assert flat(plan) == list(range(count))


def test_nine_rows_over_two_ranks_are_nine_rows() -> None:
    shares = [Share.of(samples(9), Packing(1, None, 2), rank, 2) for rank in range(2)]
    ids = [[sample for micro in share.micro_batches for sample in micro.ids] for share in shares]
    assert sorted(ids[0] + ids[1]) == [f"row-{index}" for index in range(9)]
    assert [len(share.micro_batches) for share in shares] == [5, 5]  # one rank has an idle one
    assert [sum(micro.is_idle for micro in share.micro_batches) for share in shares] == [1, 0]
    assert {(share.samples, share.tokens, share.answer_tokens) for share in shares} == {
        (9, shares[0].tokens, shares[0].answer_tokens)
    }
    assert sum(micro.tokens for share in shares for micro in share.micro_batches) == shares[0].tokens


def test_one_rank_takes_rows_in_order() -> None:
    assert Packing(2, None, 2).plan(samples(5), 1) == [[[0, 1], [2, 3], [4]]]


def test_a_prompt_counts_once_per_branch() -> None:
    row = Sample("a", [1] * 10, 4)
    costs = [Packing.of(TrainingConfig(), MethodConfig.model_validate(name)).cost(row) for name in ("causal", "bitune")]
    assert costs == [10, 14]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_budget_holds_and_ranks_are_balanced(ranks: int) -> None:
    rows, budget = unequal(200), 2000
    packing = Packing(1, budget, branches=2)
    plan = packing.plan(rows, ranks)
    loads = [[sum(packing.cost(rows[index]) for index in part) for part in rank] for rank in plan]
    assert max(load for rank in loads for load in rank) <= budget
    assert len({len(rank) for rank in loads}) == 1
    totals = [sum(rank) for rank in loads]
    assert max(totals) <= 1.05 * min(totals)
    used = sum(totals) / (sum(map(len, loads)) * budget)
    assert used > 0.8  # of the budget; their number is a multiple of that of the ranks
    assert packing.plan(rows, ranks) == plan


def test_row_longer_than_the_budget_is_alone() -> None:
    rows = Samples([Sample("long", [1] * 50, 5), *(Sample(f"s{i}", [1] * 5, 2) for i in range(4))])
    assert [0] in Packing(1, 20, branches=1).plan(rows, 1)[0]
