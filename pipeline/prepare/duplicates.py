"""Duplicates among rows, found by their fingerprints once all rows have been seen.

Rows and fingerprints lie on disk meanwhile. In memory are 9 bytes a row, the ids of rows that have duplicates, and up
to 24 bytes for each of the `PART` fingerprints that are sorted at once.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy
import pyarrow as pa
from datasketch import MinHashLSH

from pipeline.prepare.filter_config import DuplicatesConfig
from pipeline.prepare.fingerprints import matrix_of
from pipeline.prepare.piece import Piece, PieceWriter, Reject, read_pieces

PART = 4_000_000
"""Fingerprints sorted at once."""
BLOCK = 1 << 14
"""Fingerprints read at once."""
MULTIPLIER = numpy.uint64(0x9E3779B97F4A7C15)
Pairs = tuple[numpy.ndarray, numpy.ndarray]
"""Numbers of earlier rows, and of the later rows that may repeat them."""


def without_duplicates(pieces: Iterable[Piece], folder: Path, config: DuplicatesConfig) -> Iterator[Piece]:
    """The same pieces with each duplicate set aside, once all have been seen.

    Args:
        folder: where the pieces and their fingerprints lie meanwhile; it is removed.
    """
    folder.mkdir()
    finder = DuplicateFinder(folder, config)
    with PieceWriter(folder / "pieces") as file:
        for piece in pieces:
            file.put(piece)
            finder.add(piece.rows)
    yield from _filtered(read_pieces(folder / "pieces"), *finder.find())
    shutil.rmtree(folder)


def _filtered(pieces: Iterator[Piece], earlier: numpy.ndarray, is_exact: numpy.ndarray) -> Iterator[Piece]:
    named = numpy.zeros(len(earlier), dtype=bool)
    named[earlier[earlier >= 0]] = True
    names: dict[int, str] = {}
    start = 0
    for piece in pieces:
        end = start + piece.rows.num_rows
        ids, places = piece.rows["id"], piece.rows["place"]
        for row in numpy.flatnonzero(named[start:end]).tolist():
            names[start + row] = ids[row].as_py()
        rejects = list(piece.rejects)
        for row in numpy.flatnonzero(earlier[start:end] >= 0).tolist():
            kind = "exact" if is_exact[start + row] else "near"
            of = names[int(earlier[start + row])]
            rejects.append(Reject(ids[row].as_py(), f"{kind} duplicate", f"of {of}", True, places[row].as_py()))
        rejects.sort(key=lambda reject: reject.place)
        kept = piece.rows.filter(pa.array(earlier[start:end] < 0))
        yield replace(piece, rows=kept, rejects=rejects)
        start = end


class DuplicateFinder:
    """Collects the fingerprints of rows, then says which rows repeat an earlier one."""

    def __init__(self, folder: Path, config: DuplicatesConfig) -> None:
        self.config, self.rows, self._folder = config, 0, folder
        lsh = MinHashLSH(config.near, config.permutations) if config.near else None
        self._bands: int = lsh.b if lsh else 0
        self._band_size: int = lsh.r if lsh else 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Columns `exact` and `near`, as far as the configuration asks for them."""
        self.rows += rows.num_rows
        if self.config.exact:
            halves = matrix_of(rows["exact"], "<u8")
            self._append("exact-key", halves[:, 0])
            self._append("exact-rest", halves[:, 1])
        if self.config.near:
            signatures = matrix_of(rows["near"], "<u4")
            self._append("near", signatures)
            for band in range(self._bands):
                part = signatures[:, band * self._band_size : (band + 1) * self._band_size]
                self._append(f"band-{band}", _folded(part))

    def _append(self, name: str, values: numpy.ndarray) -> None:
        with (self._folder / name).open("ab") as file:
            file.write(numpy.ascontiguousarray(values).tobytes())

    def find(self) -> tuple[numpy.ndarray, numpy.ndarray]:
        """For each row the earlier row that it repeats, or -1; and whether that is exact.

        A near duplicate is compared with the first row in its bucket of each band (locality-sensitive hashing, Indyk
        and Motwani 1998): similar rows can be missed, rows estimated below the threshold are never taken.
        """
        earlier = numpy.full(self.rows, -1, dtype=numpy.int64)
        if self.config.exact:
            for pairs in self._candidates("exact-key"):
                self._settle(pairs, earlier, "exact-rest", "<u8", 1, 1.0)
        is_exact = earlier >= 0
        for band in range(self._bands):
            for pairs in self._candidates(f"band-{band}"):
                self._settle(pairs, earlier, "near", "<u4", self.config.permutations, self.config.near or 1.0)
        return earlier, is_exact

    def _candidates(self, name: str) -> Iterator[Pairs]:
        """Rows with equal keys, each with the first of them; a part of the keys at a time."""
        parts = -(-self.rows // PART)
        for part in range(parts):
            keys, numbers = self._part(name, part, parts)
            order = numpy.argsort(keys, kind="stable")
            keys, numbers = keys[order], numbers[order]
            starts = numpy.flatnonzero(numpy.r_[True, keys[1:] != keys[:-1]])
            first = numpy.repeat(numbers[starts], numpy.diff(numpy.r_[starts, len(keys)]))
            is_later = first != numbers
            yield first[is_later], numbers[is_later]

    def _part(self, name: str, part: int, parts: int) -> Pairs:
        """The keys of one part and the numbers of their rows."""
        keys, numbers = [], []
        for start in range(0, self.rows, BLOCK):
            block = numpy.fromfile(self._folder / name, "<u8", BLOCK, offset=8 * start)
            own = numpy.flatnonzero(block % numpy.uint64(parts) == part)
            keys.append(block[own])
            numbers.append(own + start)
        return numpy.concatenate(keys), numpy.concatenate(numbers)

    def _settle(self, pairs: Pairs, earlier: numpy.ndarray, name: str, dtype: str, width: int, share: float) -> None:
        """Note the pairs of which at least a share of the numbers in a file agree."""
        is_open = earlier[pairs[1]] < 0
        first, later = pairs[0][is_open], pairs[1][is_open]
        with (self._folder / name).open("rb") as file:
            for start in range(0, len(first), BLOCK):
                left, right = first[start : start + BLOCK], later[start : start + BLOCK]
                agreeing = (_read(file, left, dtype, width) == _read(file, right, dtype, width)).mean(axis=1)
                earlier[right[agreeing >= share]] = left[agreeing >= share]


def _read(file: BinaryIO, rows: numpy.ndarray, dtype: str, width: int) -> numpy.ndarray:
    """[rows, width] from a file of all rows."""
    size = width * numpy.dtype(dtype).itemsize
    content = b"".join(os.pread(file.fileno(), size, row * size) for row in rows.tolist())
    return numpy.frombuffer(content, dtype).reshape(len(rows), width)


def _folded(values: numpy.ndarray) -> numpy.ndarray:
    """One 64-bit key for each row of numbers; equal rows have equal keys, and seldom others."""
    keys = numpy.zeros(len(values), dtype="<u8")
    for column in values.T:
        keys = (keys ^ column) * MULTIPLIER
        keys ^= keys >> numpy.uint64(29)
    return keys
