"""Grouping: every request once, each prompt read as seldom as the budget allows."""

import random

import pytest

from pipeline.evaluate.grouping import (
    Continued,
    Scored,
    by_prompt,
    continued_keys,
    continued_passes,
    runs,
    scored_passes,
)


def some_requests(count: int) -> dict[str, Scored]:
    draw = random.Random(0)
    prompts = [[draw.randrange(50) for _ in range(draw.randrange(1, 30))] for _ in range(count // 3)]
    lengths = [draw.randrange(1, 9) for _ in range(count)]
    found = [Scored.of(draw.choice(prompts), [draw.randrange(50) for _ in range(length)]) for length in lengths]
    return {f"{index}": request for index, request in enumerate(found)}


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


def cost(requests: dict[str, Scored], keys: list[str], branches: int) -> int:
    part = {key: requests[key] for key in keys}
    return branches * sum(map(len, by_prompt(part))) + sum(len(request.stream) for request in part.values())


@pytest.mark.parametrize("budget", [1, 40, 100, 10_000])
def test_every_request_is_in_exactly_one_pass(budget: int) -> None:
    requests = some_requests(100)
    found = list(scored_passes(2, requests, budget))
    assert sorted(key for keys in found for key in keys) == sorted(requests)
    assert all(cost(requests, keys, 2) <= budget or len(keys) == 1 for keys in found)


def test_each_prompt_is_read_once_when_the_budget_allows() -> None:
    assert len(list(scored_passes(2, some_requests(100), 10_000))) == 1


def test_a_pass_planned_alone_stays_whole() -> None:
    requests = some_requests(100)
    for keys in scored_passes(2, requests, 90):
        assert list(scored_passes(2, {key: requests[key] for key in keys}, 90)) == [keys]


def test_costly_passes_come_first() -> None:
    requests = some_requests(60)
    costs = [cost(requests, keys, 2) for keys in scored_passes(2, requests, 1)]
    assert costs == sorted(costs, reverse=True)


def test_only_equal_options_are_continued_together() -> None:
    greedy, drawn = '{"do_sample": false}', '{"do_sample": true}'
    found = [Continued((1,) * n, 10, (), setting) for n in (3, 7) for setting in (greedy, drawn)]
    requests = dict(zip("abcd", found, strict=True))
    assert list(continued_passes(2, requests, 1000)) == [["c", "a"], ["d", "b"]]
    assert list(continued_passes(2, requests, 24)) == [["c"], ["a"], ["d"], ["b"]]


def test_a_prompt_sampled_twice_gets_two_answers() -> None:
    greedy, drawn = (Continued((1, 2), 5, (), f'{{"do_sample": {flag}}}') for flag in ("false", "true"))
    assert len(set(continued_keys([greedy, greedy]))) == 1
    assert len(set(continued_keys([drawn, drawn, greedy]))) == 3
    assert continued_keys([drawn, drawn]) == continued_keys([drawn, drawn])


def test_a_prompt_read_for_each_answer_counts_as_often() -> None:
    requests = some_requests(100)
    found = list(scored_passes(1, requests, 100, share=False))
    assert sorted(key for keys in found for key in keys) == sorted(requests)
    costs = [sum(len(requests[key].prompt) + len(requests[key].stream) for key in keys) for keys in found]
    assert all(total <= 100 for total in costs) and len(found) < len(requests)
