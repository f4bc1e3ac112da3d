"""Which samples each update uses, and how they are packed: a pure function of (seed, step)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy
import torch
from torch import Tensor

from pipeline.errors import StageError
from pipeline.model import Batch


class Row(Protocol):
    """One prepared sample: `input_ids` = prompt (`prompt_length` tokens, BOS included) + answer + EOS."""

    @property
    def id(self) -> str: ...
    @property
    def input_ids(self) -> Sequence[int]: ...
    @property
    def prompt_length(self) -> int: ...
    @property
    def segments(self) -> Sequence[int]: ...


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
        epoch, position = divmod(step - 1, self.steps_per_epoch)
        start = position * self.batch_size
        return _permutation(self.rows, self.seed, epoch)[start : start + self.batch_size]


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
        """Split each row at its last prompt token, which opens the answer (Bitune, section 2).

        Raises:
            StageError: a row without a prompt token or without an answer token.
        """
        for row in rows:
            if not 1 <= row.prompt_length < len(row.input_ids):
                raise StageError(
                    f"sample {row.id}: prompt_length {row.prompt_length} must lie between 1 and "
                    f"{len(row.input_ids) - 1} (tokens in the row minus one)"
                )
        labels = [row.input_ids[row.prompt_length :] for row in rows]
        prompts = [row.input_ids[: row.prompt_length - 1] for row in rows]
        answers = [row.input_ids[row.prompt_length - 1 : -1] for row in rows]
        return cls(
            ids=tuple(row.id for row in rows),
            batch=Batch.pack(prompts, answers, segments=[row.segments for row in rows]),
            labels=torch.tensor([token for row in labels for token in row]),
            lengths=tuple(len(row) for row in labels),
            tokens=sum(len(row.input_ids) for row in rows),
        )


def answer_tokens(rows: Sequence[Row]) -> int:
    """Labels of all rows together."""
    return sum(len(row.input_ids) - row.prompt_length for row in rows)
