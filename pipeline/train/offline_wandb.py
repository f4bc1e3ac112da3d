"""What Weights & Biases has on disk of a run without a server.

Its service writes some seconds behind, and ends with the process: the last updates before a kill are not there. A file
is a log as LevelDB writes it (blocks of 32 KiB; records of one or more pieces, each behind a checksum, a length and a
kind), with a protocol buffer of W&B in each record.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER, BLOCK = 7, 2**15
"""Bytes: of the file as of each piece, and of a block, which no piece goes beyond."""
WHOLE, LAST = 1, 4
"""Kinds of piece that end a record."""


def last_step(folder: Path, run: str) -> int:
    """The last update that any start of the run wrote below the folder; 0 if there is none."""
    files = folder.glob(f"wandb/offline-run-*/run-{run}.wandb")
    return max((int(row["_step"]) for file in files for row in history(file)), default=0)


def history(file: Path) -> Iterator[dict[str, Any]]:
    """The numbers of each update, up to where the file was cut."""
    from wandb.proto import wandb_internal_pb2

    kind: Any = wandb_internal_pb2

    for content in _records(file.read_bytes()):
        record = kind.Record()
        record.ParseFromString(content)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(content: bytes) -> Iterator[bytes]:
    position, pending = HEADER, b""
    while position + HEADER <= len(content):
        if (left := BLOCK - position % BLOCK) < HEADER:
            position += left
            continue
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        position += HEADER
        if position + length > len(content):
            return
        pending += content[position : position + length]
        position += length
        if kind in (WHOLE, LAST):
            yield pending
            pending = b""
