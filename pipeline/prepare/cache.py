"""The cache of prepared rows: one folder per key, whole or absent.

CACHE/prepared/KEY/
  rows.arrow      id, input_ids, prompt_length, segments, turns (Arrow stream, as the `datasets` library reads it)
  rejects.jsonl   rows set aside: source, line, reason, detail
  manifest.json   counts, and the checksum of each file
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import datasets
import pyarrow as pa

from pipeline.errors import StageError
from pipeline.files import atomic_folder, read_json, write_json
from pipeline.prepare.locks import Tell, use, writing
from pipeline.prepare.piece import SCHEMA, Piece

ROWS, REJECTS, MANIFEST = "rows.arrow", "rejects.jsonl", "manifest.json"


@dataclass(frozen=True)
class Row:
    """A prepared row: `input_ids` = [BOS] prompt answer EOS, then further turns; see `pipeline.prepare.tokens`."""

    id: str
    input_ids: list[int]
    prompt_length: int
    segments: list[int]
    """Prompt tokens with which a further segment of the prompt starts."""
    turns: list[int] = field(default_factory=list)
    """Of each turn but the first: where its prompt starts, and where its answer does."""


class PreparedData:
    """Prepared rows in the cache, read as they are needed."""

    def __init__(self, path: Path, manifest: dict[str, Any], guard: IO[bytes]) -> None:
        """
        Args:
            guard: keeps the rows from being cleaned away, see `pipeline.prepare.locks.use`.
        """
        self.path = path
        self.manifest = manifest
        self._guard = guard
        self._rows = datasets.Dataset.from_file(str(path / ROWS))

    @property
    def key(self) -> str:
        """Identity of content, template, tokenizer and filters."""
        return str(self.manifest["key"])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        return Row(**self._rows[index])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows in columns, a few hundred at a time, read without being mapped."""
        with pa.OSFile(str(self.path / ROWS), "rb") as file, pa.ipc.open_stream(file) as stream:
            yield from stream

    def rows(self) -> Iterator[Row]:
        """All rows, in the order of the sources."""
        for row in self._rows:
            yield Row(**row)


class Writer:
    """Writes rows.arrow and rejects.jsonl as pieces come by."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stream = pa.ipc.new_stream(str(folder / ROWS), SCHEMA)
        self._rejects = (folder / REJECTS).open("w", encoding="utf-8")

    def put(self, piece: Piece) -> None:
        if piece.rows.num_rows:
            self._stream.write_batch(piece.rows.select(SCHEMA.names))
        for reject in piece.rejects:
            self._rejects.write(json.dumps(reject.as_dict(), ensure_ascii=False) + "\n")

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self._rejects.close()
        self._stream.close()


class _Published(Exception):
    """Another process was first with the same content."""


def load(path: Path) -> PreparedData | None:
    """The prepared rows, or None where the folder is absent, torn or damaged."""
    guard = use(path / MANIFEST)
    manifest = read_json(path / MANIFEST)
    try:
        if guard is None or not isinstance(manifest, dict) or manifest["key"] != path.name:
            return None
        if any(_checksum(path / name) != manifest["sha256"][name] for name in (ROWS, REJECTS)):
            return None
        data = PreparedData(path, manifest, guard)
    except (OSError, KeyError, TypeError, pa.ArrowException):
        return None
    return data if len(data) == manifest["rows"]["kept"] else None


def publish(path: Path, write: Callable[[Writer], dict[str, Any]], tell: Tell) -> tuple[PreparedData, bool]:
    """The rows that another process has written meanwhile, or those of `write`, moved to their place whole.

    One process writes, those that want the same key wait for it. Where the file system has no locks all write, and
    the first to finish is kept.

    Args:
        write: puts the rows into the writer and returns the manifest.
        tell: is told when another process is waited for.

    Returns:
        The rows, and whether they were there.

    Raises:
        StageError: the folder can't be written.
    """
    with writing(path, tell):
        found = load(path)
        if found is not None:
            return found, True
        remove_leftovers(path)
        _write(path, write)
    data = load(path)
    if data is None:
        raise StageError(f"{path}: what was written can't be read back whole")
    return data, False


def remove_leftovers(path: Path) -> None:
    """What writers of this key that were killed have left. Only for who holds the right to write."""
    for leftover in path.parent.glob(f".{path.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _write(path: Path, write: Callable[[Writer], dict[str, Any]]) -> None:
    try:
        with atomic_folder(path) as temporary:
            _fill(temporary, write)
            if load(path):
                raise _Published
    except _Published:
        pass
    except StageError:
        if not load(path):  # losing the race to an equal folder is no failure
            raise


def _fill(folder: Path, write: Callable[[Writer], dict[str, Any]]) -> None:
    with Writer(folder) as writer:
        manifest = write(writer)
    write_json(folder / MANIFEST, {**manifest, "sha256": {name: _checksum(folder / name) for name in (ROWS, REJECTS)}})


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
