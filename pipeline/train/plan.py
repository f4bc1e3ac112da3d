"""Packing plans: the micro-batch of every row of an epoch, worked out once and kept beside the prepared rows.

CACHE/prepared/KEY/plans/DIGEST: for each row, in the order of the epoch, the number of its micro-batch within
its update (4 bytes, little-endian), then the SHA-256 of all that.
"""

import hashlib
from contextlib import suppress
from pathlib import Path

import numpy

from pipeline.config import digest
from pipeline.errors import StageError
from pipeline.files import atomic_file
from pipeline.prepare.cache import PreparedData
from pipeline.prepare.piece import lengths_of
from pipeline.train.batches import PreparedRows, SampleOrder, answer_tokens
from pipeline.train.share import Packing, Plan, balanced, grouped
from pipeline.train.split import Subset

PLANS = "plans"
"""The folder's name."""
PLAN_VERSION = 1
"""Raised when `balanced` or the file changes: no plan from before is read then."""
SEAL = hashlib.sha256().digest_size


class Plans:
    """How the rows of each update are packed within a budget of tokens: on every rank the same, whether it was read or
    worked out.

    Args:
        ranks: processes that share an update.
        folder: where plans are kept; None: nowhere.
        keeps: whether this process writes them.
    """

    def __init__(self, rows: PreparedRows, order: SampleOrder, packing: Packing, ranks: int, folder: Path | None,
                 keeps: bool = True) -> None:  # fmt: skip
        assert packing.tokens is not None
        self.order, self.budget, self.ranks = order, packing.tokens, ranks
        self.folder, self.keeps = folder, keeps
        self.costs = _costs(rows, packing.branches)
        self._epoch = -1
        self._places = numpy.zeros(0, "<i4")

    def of(self, step: int) -> Plan:
        """The plan of an update."""
        epoch, start = self.order.place(step)
        if epoch != self._epoch:
            self._epoch, self._places = epoch, self._of_epoch(epoch)
        return grouped(self._places[start : start + self.order.batch_size].tolist(), self.ranks)

    def path(self, epoch: int) -> Path | None:
        """Where an epoch's plan is kept; its name is a digest of all that the plan depends on."""
        if self.folder is None:
            return None
        costs = hashlib.sha256(self._ordered(epoch).astype("<i8").tobytes()).hexdigest()
        facts = {"version": PLAN_VERSION, "costs": costs, "batch_size": self.order.batch_size}
        return self.folder / digest({**facts, "budget": self.budget, "ranks": self.ranks})

    def _of_epoch(self, epoch: int) -> numpy.ndarray:
        path = self.path(epoch)
        places = _read(path, len(self.costs)) if path else None
        if places is not None:
            return places
        places = self._worked_out(epoch)
        if path and self.keeps:
            with suppress(StageError, OSError):  # a cache that can't be written to serves as well
                _write(path, places)
        return places

    def _worked_out(self, epoch: int) -> numpy.ndarray:
        costs, size = self._ordered(epoch).tolist(), self.order.batch_size
        batches = (costs[start : start + size] for start in range(0, len(costs), size))
        return numpy.array([place for batch in batches for place in balanced(batch, self.ranks, self.budget)], "<i4")

    def _ordered(self, epoch: int) -> numpy.ndarray:
        found: numpy.ndarray = self.costs[self.order.permutation(epoch)]
        return found


def _costs(rows: PreparedRows, branches: int) -> numpy.ndarray:
    """Tokens of each row that pass through the layers, see `Packing.cost`."""
    prompt, answer = _lengths(rows)
    return branches * prompt + answer


def _lengths(rows: PreparedRows) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Tokens of each row's prompts and of its answers. Of prepared data in columns: row by row takes a minute."""
    if isinstance(rows, Subset):
        prompt, answer = _lengths(rows.rows)
        numbers = numpy.asarray(rows.numbers, dtype=numpy.int64)
        return prompt[numbers], answer[numbers]
    if isinstance(rows, PreparedData):
        found = [lengths_of(batch) for batch in rows.batches()]
        return numpy.concatenate([one for one, _ in found]), numpy.concatenate([one for _, one in found])
    every = [rows[number] for number in range(len(rows))]
    answers = numpy.array([answer_tokens([row]) for row in every], dtype=numpy.int64)
    return numpy.array([len(row.input_ids) for row in every], dtype=numpy.int64) - answers, answers


def _read(path: Path, rows: int) -> numpy.ndarray | None:
    """A plan that is there and whole."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    body, seal = content[:-SEAL], content[-SEAL:]
    is_whole = len(body) == 4 * rows and hashlib.sha256(body).digest() == seal
    return numpy.frombuffer(body, "<i4") if is_whole else None


def _write(path: Path, places: numpy.ndarray) -> None:
    body = places.tobytes()
    with atomic_file(path) as temporary:
        temporary.write_bytes(body + hashlib.sha256(body).digest())
