"""Sources: where rows come from, and the hash of their content."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import datasets

from pipeline.errors import UserError
from pipeline.prepare.config import SourceConfig
from pipeline.prepare.readers import read_delimited, read_json, read_json_lines
from pipeline.prepare.record import Record
from pipeline.prepare.tables import load_hub, load_saved, read_arrow, read_dataset, read_parquet

Reader = Callable[[Path], Iterator[Record]]

READERS: dict[str, Reader] = {
    ".json": read_json,
    ".jsonl": read_json_lines,
    ".jsonl.gz": read_json_lines,
    ".csv": lambda path: read_delimited(path, ","),
    ".tsv": lambda path: read_delimited(path, "\t"),
    ".parquet": read_parquet,
    ".arrow": read_arrow,
}
"""How a file's name ends -> its reader. A new form of file is one more line."""


@dataclass(frozen=True)
class Source:
    """An opened source."""

    label: str
    """Unique name of the source within the run; row ids are `label:line`."""
    config: SourceConfig
    content: str
    """SHA-256 of the content, whatever the path."""
    rows: Callable[[], Iterator[Record]]

    def records(self) -> Iterator[Record]:
        """The first `limit` rows, bad ones included.

        Raises:
            UserError: the source can't be read to its end, or holds no row.
        """
        count = 0
        try:
            for record in islice(self.rows(), self.config.limit):
                count += 1
                yield record
        except OSError as error:
            raise _unreadable(self.config.path, error) from None
        if not count:
            raise UserError(f"{self.config.path}: holds no rows")


def open_sources(configs: Iterable[SourceConfig]) -> list[Source]:
    """Open and hash all sources; equal file names get a number, so that row ids stay unique.

    Raises:
        UserError: a source is missing, empty, unreadable or of an unknown form.
    """
    sources: list[Source] = []
    for config in configs:
        name = Path(config.path).name
        earlier = sum(Path(source.config.path).name == name for source in sources)
        sources.append(_open(config, f"{name}#{earlier + 1}" if earlier else name))
    return sources


def _open(config: SourceConfig, label: str) -> Source:
    path = Path(config.path).expanduser()
    reader = next((reader for ending, reader in READERS.items() if path.name.lower().endswith(ending)), None)
    if path.is_file():
        if reader is None:
            raise UserError(f"{config.path}: unknown form of file, use one of {', '.join(READERS)}")
        return Source(label, config, _file_hash(path, config.path), lambda: reader(path))
    if not path.is_dir() and (reader or config.path.startswith((".", "/", "~"))):
        raise UserError(f"{config.path}: no such file")
    dataset = _dataset(config, path)
    return Source(label, config, _dataset_hash(dataset), lambda: read_dataset(dataset))


def _dataset(config: SourceConfig, path: Path) -> datasets.Dataset:
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        return load_saved(path, config.split)
    return load_hub(str(path) if path.is_dir() else config.path, config.subset, config.split)


def _file_hash(path: Path, shown: str) -> str:
    try:
        if not path.stat().st_size:
            raise UserError(f"{shown}: is empty")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(shown, error) from None


def _dataset_hash(dataset: datasets.Dataset) -> str:
    """Hash of the values, not of the library's fingerprint, which differs between caches."""
    digest = hashlib.sha256()
    for record in read_dataset(dataset):
        values = record.values if record.fault is None else str(record.fault)
        digest.update(json.dumps(values, sort_keys=True, default=repr).encode() + b"\n")
    return digest.hexdigest()


def _unreadable(path: str, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be read ({error.strerror or error})")
