"""Grouping: every request once, each prompt read as seldom as the budget allows."""

import random

import pytest

from pipeline.evaluate.grouping import Scored, groups, passes, runs


def some_requests(count: int) -> list[Scored]:
    draw = random.Random(0)
    prompts = [[draw.randrange(50) for _ in range(draw.randrange(1, 30))] for _ in range(count // 3)]
    lengths = [draw.randrange(1, 9) for _ in range(count)]
    return [Scored.of(draw.choice(prompts), [draw.randrange(50) for _ in range(length)]) for length in lengths]


def test_the_last_context_token_opens_the_answer() -> None:
    assert Scored.of([1, 2, 3], [4, 5]) == Scored(prompt=(1, 2), stream=(3, 4), labels=(4, 5))
    assert Scored.of([1], [4]) == Scored(prompt=(), stream=(1,), labels=(4,))


def test_text_without_prompt_scores_only_its_continuation() -> None:
    scored = Scored.without_prompt([1, 2, 3], [4, 5])
    assert scored == Scored(prompt=(), stream=(1, 2, 3, 4), labels=(4, 5))
    assert scored.row_labels == (0, 0, 4, 5)


def test_runs_respect_the_budget() -> None:
    assert list(runs([3, 3, 3, 9, 1], 6)) == [slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 5)]
    assert list(runs([], 6)) == []


@pytest.mark.parametrize("budget", [1, 40, 100, 10_000])
def test_every_request_is_in_exactly_one_pass(budget: int) -> None:
    requests = some_requests(100)
    found = list(passes(requests, branches=2, budget=budget))
    members = [index for groups_ in found for group in groups_ for index in group.members]
    assert sorted(members) == list(range(100))
    for groups_ in found:
        cost = sum(2 * len(g.prompt) + sum(len(requests[i].stream) for i in g.members) for g in groups_)
        assert cost == sum(group.cost for group in groups_)
        assert cost <= budget or (len(groups_) == 1 and len(groups_[0].members) == 1)


def test_each_prompt_is_read_once_when_the_budget_allows() -> None:
    requests = some_requests(100)
    assert len(groups(requests, 2, 10_000)) == len({request.prompt for request in requests})
    assert len(list(passes(requests, 2, 10_000))) == 1


def test_costly_groups_come_first() -> None:
    costs = [group.cost for group in groups(some_requests(60), 2, 10_000)]
    assert costs == sorted(costs, reverse=True)
