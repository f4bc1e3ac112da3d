"""Which prepared rows are held out of training: decided by each row's content alone."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy

from pipeline.errors import UserError
from pipeline.train.batches import PreparedRows, Row


@dataclass(frozen=True)
class Subset:
    """Some of the rows, in their order."""

    rows: PreparedRows
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Row:
        return self.rows[self.numbers[index]]

    def __iter__(self) -> Iterator[Row]:
        return (self.rows[number] for number in self.numbers)


def split(rows: PreparedRows, fraction: float) -> tuple[PreparedRows, PreparedRows]:
    """Rows to train on, and rows to validate on, about `fraction` of them.

    A row is held out if the hash of its prompt says so, wherever it stands and whatever the seed: other rows don't
    move it, and rows with equal prompts are on the same side. Rows without a prompt go by all of their tokens.

    Raises:
        UserError: one side has no rows.
    """
    if not fraction:
        return rows, Subset(rows, ())
    held_out = [_place(rows[number]) < fraction for number in range(len(rows))]
    sides = [Subset(rows, [n for n, is_out in enumerate(held_out) if is_out is side]) for side in (False, True)]
    if not all(map(len, sides)):
        which = "none is held out" if not len(sides[1]) else "none is left to train on"
        raise UserError(
            f"data.validation_fraction = {fraction:g} of {len(rows)} rows: {which}, choose another fraction"
        )
    return sides[0], sides[1]


def _place(row: Row) -> float:
    """Where a row falls in [0, 1)."""
    tokens = row.input_ids[: row.prompt_length] if row.prompt_length > 1 else row.input_ids
    content = numpy.asarray(tokens, dtype="<i8").tobytes()
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") / 2**64
