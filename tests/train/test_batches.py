import random

import pytest
import torch
from train_runs import Sample, samples, share

from pipeline.errors import StageError
from pipeline.train.batches import MicroBatch, SampleOrder


def epoch(order: SampleOrder, number: int) -> list[int]:
    first = number * order.steps_per_epoch + 1
    return [row for step in range(first, first + order.steps_per_epoch) for row in order.batch(step)]


@pytest.mark.parametrize("rows, batch_size", [(9, 4), (8, 4), (1, 4), (3, 5), (10, 1)])
def test_every_epoch_has_every_row_once(rows: int, batch_size: int) -> None:
    order = SampleOrder(rows, batch_size, seed=7)
    for number in range(3):
        assert sorted(epoch(order, number)) == list(range(rows))


def test_last_batch_of_an_epoch_is_smaller() -> None:
    order = SampleOrder(9, 4, seed=0)
    assert [len(order.batch(step)) for step in range(1, 7)] == [4, 4, 1, 4, 4, 1]


def test_order_depends_on_seed_and_epoch_only() -> None:
    first = SampleOrder(50, 8, seed=1)
    expected = [epoch(first, number) for number in range(2)]
    random.seed(99)
    torch.manual_seed(99)
    again = SampleOrder(50, 8, seed=1)
    assert [epoch(again, 1), epoch(again, 0)] == expected[::-1]
    assert expected[0] != expected[1]
    assert epoch(SampleOrder(50, 8, seed=2), 0) != expected[0]


@pytest.mark.parametrize(
    "epochs, max_steps, steps", [(1, None, 3), (3, None, 9), (0.5, None, 2), (0.01, None, 1), (3, 4, 4), (1, 99, 3)]
)
def test_number_of_steps_is_known_ahead(epochs: float, max_steps: int | None, steps: int) -> None:
    assert SampleOrder(9, 4, seed=0).total_steps(epochs, max_steps) == steps


def test_a_tenth_of_thirty_batches_is_three() -> None:
    assert SampleOrder(30, 1, seed=0).total_steps(0.1) == 3
    assert SampleOrder(10, 1, seed=0).total_steps(0.7) == 7


def test_rows_are_split_at_the_token_that_opens_the_answer() -> None:
    micro = MicroBatch.pack([Sample("a", [1, 5, 6, 7, 8, 2], 3), Sample("b", [1, 9, 2], 1)])
    assert micro.batch.tokens.tolist() == [1, 5, 6, 7, 8, 1, 9]  # prompts [1 5] [], answers [6 7 8] [1 9]
    assert micro.labels.tolist() == [7, 8, 2, 9, 2]
    assert (micro.batch.prompt_lengths, micro.batch.answer_lengths, micro.lengths) == ((2, 0), (3, 2), (3, 2))
    assert micro.tokens == 9


@pytest.mark.parametrize("size, sizes", [(1, [1] * 5), (2, [2, 2, 1]), (9, [5])])
def test_micro_batches_hold_every_sample_in_order(size: int, sizes: list[int]) -> None:
    micro_batches = share(samples(5), size).micro_batches
    assert [len(micro.ids) for micro in micro_batches] == sizes
    assert [sample for micro in micro_batches for sample in micro.ids] == [f"row-{index}" for index in range(5)]


@pytest.mark.parametrize("prompt_length", [0, 3, 4])
def test_row_without_prompt_or_answer_is_named(prompt_length: int) -> None:
    with pytest.raises(StageError, match="sample odd: prompt_length"):
        MicroBatch.pack([Sample("odd", [1, 5, 2], prompt_length)])
