"""The cache of prepared rows: one folder per key, whole or absent.

CACHE/prepared/KEY/
  rows.arrow      id, input_ids, prompt_length, segments (Arrow stream, as the `datasets` library reads it)
  rejects.jsonl   rows set aside: source, line, reason, detail
  manifest.json   counts, and the checksum of each file
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import datasets
import pyarrow as pa

from pipeline.errors import StageError
from pipeline.files import atomic_folder, read_json, write_json
from pipeline.prepare.tokens import Tokens

ROWS, REJECTS, MANIFEST = "rows.arrow", "rejects.jsonl", "manifest.json"
SCHEMA = pa.schema([
    ("id", pa.string()), ("input_ids", pa.list_(pa.int32())), ("prompt_length", pa.int32()),
    ("segments", pa.list_(pa.int32())),
])  # fmt: skip
BATCH = 1000


@dataclass(frozen=True)
class Row:
    """A prepared row: `input_ids` = [BOS] prompt answer EOS; the labels are `input_ids[prompt_length:]`."""

    id: str
    input_ids: list[int]
    prompt_length: int
    segments: list[int]
    """Prompt tokens with which a further segment of the prompt starts."""


class PreparedData:
    """Prepared rows in the cache, read as they are needed."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self._rows = datasets.Dataset.from_file(str(path / ROWS))

    @property
    def key(self) -> str:
        """Identity of content, template, tokenizer and filters."""
        return str(self.manifest["key"])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        return Row(**self._rows[index])

    def rows(self) -> Iterator[Row]:
        """All rows, in the order of the sources."""
        for row in self._rows:
            yield Row(**row)


class Writer:
    """Writes rows.arrow and rejects.jsonl as rows come by, a batch at a time."""

    def __init__(self, folder: Path) -> None:
        self._stream = pa.ipc.new_stream(str(folder / ROWS), SCHEMA)
        self._rejects = (folder / REJECTS).open("w", encoding="utf-8")
        self._batch: list[dict[str, Any]] = []

    def add(self, name: str, tokens: Tokens) -> None:
        self._batch.append({
            "id": name, "input_ids": tokens.input_ids, "prompt_length": tokens.prompt_length,
            "segments": tokens.segments,
        })  # fmt: skip
        if len(self._batch) >= BATCH:
            self._flush()

    def reject(self, values: dict[str, Any]) -> None:
        self._rejects.write(json.dumps(values, ensure_ascii=False) + "\n")

    def _flush(self) -> None:
        self._stream.write_batch(pa.RecordBatch.from_pylist(self._batch, schema=SCHEMA))
        self._batch = []

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._rejects.close()
            self._stream.close()


class _Published(Exception):
    """Another process was first with the same content."""


def load(path: Path) -> PreparedData | None:
    """The prepared rows, or None where the folder is absent, torn or damaged."""
    manifest = read_json(path / MANIFEST)
    try:
        if not isinstance(manifest, dict) or manifest["key"] != path.name:
            return None
        if any(_checksum(path / name) != manifest["sha256"][name] for name in (ROWS, REJECTS)):
            return None
        data = PreparedData(path, manifest)
    except (OSError, KeyError, TypeError, pa.ArrowException):
        return None
    return data if len(data) == manifest["rows"]["kept"] else None


def publish(path: Path, write: Callable[[Writer], dict[str, Any]]) -> PreparedData:
    """Write a folder and move it to its place whole. Processes that prepare one key at once all end up with
    whole, equal content: the first to finish is kept.

    Args:
        write: puts the rows into the writer and returns the manifest.

    Raises:
        StageError: the folder can't be written.
    """
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
    data = load(path)
    if data is None:
        raise StageError(f"{path}: what was written can't be read back whole")
    return data


def _fill(folder: Path, write: Callable[[Writer], dict[str, Any]]) -> None:
    with Writer(folder) as writer:
        manifest = write(writer)
    write_json(folder / MANIFEST, {**manifest, "sha256": {name: _checksum(folder / name) for name in (ROWS, REJECTS)}})


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
