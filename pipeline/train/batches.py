"""Which samples each update uses, and how they are packed: a pure function of (seed, step)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

import numpy
import torch
from torch import Tensor

from pipeline.errors import StageError
from pipeline.model import Batch
from pipeline.prepare.tokens import answer_spans


class Row(Protocol):
    """One prepared sample: `input_ids` = prompt (`prompt_length` tokens, BOS included) + answer + EOS, and further
    prompts and answers where `turns` say so; see `pipeline.prepare.tokens.Tokens`."""

    @property
    def id(self) -> str: ...
    @property
    def input_ids(self) -> Sequence[int]: ...
    @property
    def prompt_length(self) -> int: ...
    @property
    def segments(self) -> Sequence[int]: ...
    @property
    def turns(self) -> Sequence[int]: ...


class PreparedRows(Protocol):
    """Prepared data, indexed by row number."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Row: ...


@dataclass(frozen=True)
class SampleOrder:
    """Each epoch is its own permutation of the rows, cut into batches; the last batch of an epoch may be smaller."""

    rows: int
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.rows / self.batch_size)

    def total_steps(self, epochs: float, max_steps: int | None = None) -> int:
        """Number of updates. A part of an epoch is rounded up to whole batches."""
        steps = max(1, math.ceil(epochs * self.steps_per_epoch - 1e-9))
        return steps if max_steps is None else min(steps, max_steps)

    def batch(self, step: int) -> list[int]:
        """Row numbers used by update `step`; the first update is 1."""
        epoch, start = self.place(step)
        return self.permutation(epoch)[start : start + self.batch_size]

    def place(self, step: int) -> tuple[int, int]:
        """The epoch of an update, from 0, and where its rows start in it."""
        epoch, position = divmod(step - 1, self.steps_per_epoch)
        return epoch, position * self.batch_size

    def permutation(self, epoch: int) -> list[int]:
        """All row numbers, in the order of an epoch."""
        return _permutation(self.rows, self.seed, epoch)


@lru_cache(maxsize=2)
def _permutation(rows: int, seed: int, epoch: int) -> list[int]:
    permutation: list[int] = numpy.random.default_rng([seed, epoch]).permutation(rows).tolist()
    return permutation


@dataclass(frozen=True)
class MicroBatch:
    """Samples packed for one forward pass."""

    ids: tuple[str, ...]
    batch: Batch
    labels: Tensor
    """[answer rows] the token after each answer row."""
    lengths: tuple[int, ...]
    """Answer tokens (labels) of each sample."""
    tokens: int
    """Real tokens: prompt and answer, EOS included."""
    is_idle: bool = False
    """Stands in where a rank has no rows left: its losses count for nothing."""

    @classmethod
    def pack(cls, rows: Sequence[Row]) -> "MicroBatch":
        """Split each turn at its last prompt token, which opens the answer (Bitune, section 2).

        Raises:
            StageError: a turn without a prompt token or without an answer token.
        """
        for row in rows:
            _check(row)
        turns = [(number, row, *turn) for number, row in enumerate(rows) for turn in _turns(row)]
        return cls(
            ids=tuple(row.id for row in rows),
            batch=Batch.pack(
                [row.input_ids[start : answer - 1] for _, row, start, answer, _ in turns],
                [row.input_ids[answer - 1 : end - 1] for _, row, _, answer, end in turns],
                segments=[_segments(row, start, answer) for _, row, start, answer, _ in turns],
                samples=[number for number, *_ in turns] if len(turns) > len(rows) else (),
            ),
            labels=torch.tensor([token for _, row, _, answer, end in turns for token in row.input_ids[answer:end]]),
            lengths=tuple(answer_tokens([row]) for row in rows),
            tokens=sum(len(row.input_ids) for row in rows),
        )


def _check(row: Row) -> None:
    bounds = [0, row.prompt_length, *row.turns, len(row.input_ids)]
    if any(one >= other for one, other in pairwise(bounds)):
        further = f", and turns {list(row.turns)} must rise between them" if row.turns else ""
        raise StageError(
            f"sample {row.id}: prompt_length {row.prompt_length} must lie between 1 and "
            f"{len(row.input_ids) - 1} (tokens in the row minus one){further}"
        )


def _turns(row: Row) -> list[tuple[int, int, int]]:
    """Of each turn: the first token that is read, the first of its answer, and the answer's end. The EOS that closes an
    answer is a label only; it is read at the start of the next turn."""
    spans = answer_spans(row)
    starts = [0, *(end - 1 for _, end in spans[:-1])]
    return [(start, *span) for start, span in zip(starts, spans, strict=True)]


def _segments(row: Row, start: int, answer: int) -> list[int]:
    return [place - start for place in row.segments if start <= place <= answer]


def answer_tokens(rows: Sequence[Row]) -> int:
    """Labels of all rows together."""
    return sum(end - start for row in rows for start, end in answer_spans(row))
