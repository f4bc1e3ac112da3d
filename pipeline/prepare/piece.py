"""A piece: what became of one chunk of rows, in a form that goes between processes and lies on disk."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa
import pyarrow.compute as compute

from pipeline.prepare.record import Fault
from pipeline.prepare.tokens import Tokens

SCHEMA = pa.schema([
    ("id", pa.string()), ("input_ids", pa.list_(pa.int32())), ("prompt_length", pa.int32()),
    ("segments", pa.list_(pa.int32())), ("turns", pa.list_(pa.int32())),
])  # fmt: skip


@dataclass(frozen=True)
class Reject:
    """A row that was set aside: rejected (it can't be used) or dropped (by a filter)."""

    name: str
    reason: str
    detail: str
    dropped: bool
    place: int
    """Of the row in its chunk."""
    ends_file: bool = False
    """See `Fault`."""

    @classmethod
    def of(cls, name: str, fault: Fault, place: int, dropped: bool) -> "Reject":
        return cls(name, fault.reason, fault.detail, dropped, place, fault.ends_file)

    def as_dict(self) -> dict[str, Any]:
        """As a line of rejects.jsonl."""
        source, _, line = self.name.rpartition(":")
        return {"source": source, "line": line, "reason": self.reason, "detail": self.detail, "dropped": self.dropped}


@dataclass
class Piece:
    """What became of a chunk."""

    rows: pa.RecordBatch
    """The rows that are kept: the columns of `SCHEMA`, and fingerprints where duplicates will be looked for."""
    read: int
    """Rows of the chunk, those set aside included."""
    merged: int = 0
    """Rows with a token that reaches from the prompt into the answer."""
    rejects: list[Reject] = field(default_factory=list)
    overlaps: list[tuple[str, str]] = field(default_factory=list)
    """Rows that share words with an evaluation set, and the set."""


FACTS = ("read", "merged", "overlaps")
"""What is written of a piece besides its rows and rejects."""


def batch_of(names: list[str], rows: list[Tokens]) -> pa.RecordBatch:
    """Prepared rows as columns of `SCHEMA`."""
    return pa.record_batch(
        [
            pa.array(names, pa.string()),
            pa.array([row.input_ids for row in rows], pa.list_(pa.int32())),
            pa.array([row.prompt_length for row in rows], pa.int32()),
            pa.array([row.segments for row in rows], pa.list_(pa.int32())),
            pa.array([row.turns for row in rows], pa.list_(pa.int32())),
        ],
        schema=SCHEMA,
    )


def lengths_of(rows: pa.RecordBatch) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Prompt tokens and answer tokens (EOS included) of each row, all turns together."""
    prompt = rows["prompt_length"].to_numpy()
    if len(rows["turns"].flatten()):
        prompt = prompt + [sum(turns[1::2]) - sum(turns[::2]) for turns in rows["turns"].to_pylist()]
    return prompt, compute.list_value_length(rows["input_ids"]).to_numpy() - prompt


class PieceWriter:
    """Writes pieces to a file, one batch each, however small."""

    def __init__(self, path: Path) -> None:
        self._file = pa.OSFile(str(path), "wb")
        self._stream: pa.ipc.RecordBatchStreamWriter | None = None
        self.count = 0
        """Pieces put so far."""

    def put(self, piece: Piece) -> None:
        self._stream = self._stream or pa.ipc.new_stream(self._file, piece.rows.schema)
        facts = {name: getattr(piece, name) for name in FACTS} | {"rejects": [vars(one) for one in piece.rejects]}
        self._stream.write_batch(piece.rows, custom_metadata={b"piece": json.dumps(facts).encode()})
        self.count += 1

    def __enter__(self) -> "PieceWriter":
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream:
            self._stream.close()
        self._file.close()


def read_pieces(path: Path) -> Iterator[Piece]:
    """The pieces of a file, in the order in which they were put."""
    if not path.stat().st_size:
        return
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as stream:
        while True:
            try:
                rows, metadata = stream.read_next_batch_with_custom_metadata()
            except StopIteration:
                return
            facts = json.loads(metadata[b"piece"])
            rejects = [Reject(**values) for values in facts.pop("rejects")]
            yield Piece(rows, rejects=rejects, **facts)
