"""Sources: where rows come from, and the hash of their content."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import datasets

from pipeline.errors import UserError
from pipeline.files import expanded
from pipeline.prepare.config import SourceConfig
from pipeline.prepare.containers import DAMAGES, DataFile, content_hash, find_files
from pipeline.prepare.labels import join_labels, read_labels
from pipeline.prepare.mapping import ABSENT, map_row, place
from pipeline.prepare.readers import read_delimited, read_json, read_json_lines, read_text_lines
from pipeline.prepare.record import Fault, Record
from pipeline.prepare.tables import load_hub, load_saved, read_arrow, read_dataset, read_parquet

Reader = Callable[[DataFile, SourceConfig], Iterator[Record]]

READERS: dict[str, Reader] = {
    ".json": lambda file, _: read_json(file),
    ".jsonl": lambda file, _: read_json_lines(file),
    ".csv": lambda file, config: read_delimited(file, ",", config.header),
    ".tsv": lambda file, config: read_delimited(file, "\t", config.header),
    ".parquet": lambda file, _: read_parquet(file),
    ".arrow": lambda file, _: read_arrow(file),
    ".txt": lambda file, config: read_text_lines(file, config.lines),
}
"""How a file's name ends (`containers.ENDINGS`) -> its reader."""
PLACES = ("path", "files", "split", "subset", "labels", "weight", "count")
"""Where the content lies, which `Source.content` covers, and how many rows are taken, which `Source.taken` says."""


@dataclass(frozen=True)
class Source:
    """An opened source."""

    label: str
    """Unique name of the source within the run; row ids are `label:line`."""
    config: SourceConfig
    content: str
    """SHA-256 of the content, whatever the path."""
    rows: Callable[[], Iterator[Record]]
    taken: tuple[int, int] | None = None
    """(rows taken, rows there) where `count` or `weight` takes a part, or repeats."""
    skipped: tuple[str, ...] = ()
    """Files of a glob, folder or archive that are not read: their ending tells no form."""

    @property
    def identity(self) -> list[Any]:
        """What its rows depend on, as JSON."""
        return [self.label, self.content, self.config.model_dump(mode="json", exclude=set(PLACES)), self.taken]

    def records(self) -> Iterator[Record]:
        """The rows, bad ones included, with the fields of `columns` and `constants`.

        Raises:
            UserError: the source can't be read, or holds no row.
        """
        found = self._all()
        yield from _take(found, *self.taken, Random(f"{self.config.seed}:{self.label}")) if self.taken else found

    def _all(self) -> Iterator[Record]:
        any_row, seen = False, set[bytes]()
        try:
            for record in islice(self.rows(), self.config.limit):
                any_row = True
                yield self._mapped(record, seen)
        except OSError as error:
            raise _unreadable(self.config.path, error) from None
        if not any_row:
            raise UserError(f"{self.config.path}: holds no rows")

    def _mapped(self, record: Record, seen: set[bytes]) -> Record:
        if record.values is None:
            return record
        try:
            if self.config.unique is not None:
                _check_new(place(record.values, self.config.unique), self.config.unique, seen)
            return replace(record, values=map_row(record.values, self.config))
        except Fault as fault:
            return replace(record, values=None, fault=fault)


def _check_new(value: Any, name: str, seen: set[bytes]) -> None:
    if value in (ABSENT, None, ""):
        raise Fault(f"no value in {name!r}, of which each is used once")
    key = hashlib.blake2b(repr(value).encode(), digest_size=16).digest()
    if key in seen:
        raise Fault(f"another row has the same {name!r}")
    seen.add(key)


def _take(records: Iterator[Record], wanted: int, there: int, chance: Random) -> Iterator[Record]:
    """So many of the rows, in their order: each as often as it goes, and some, drawn, once more. That a file ends early
    is told even where it isn't drawn."""
    times, rest = divmod(wanted, there)
    once_more = set(chance.sample(range(there), rest))
    for index, record in enumerate(records):
        ends_file = record.fault is not None and record.fault.ends_file
        yield from [record] * max(times + (index in once_more), ends_file)


def open_sources(configs: Iterable[SourceConfig]) -> list[Source]:
    """Open and hash all sources; equal file names get a number, so that row ids stay unique.

    Raises:
        UserError: a source is missing, empty, unreadable or of an unknown form, or weights make no mix.
    """
    sources: list[Source] = []
    for config in configs:
        name = Path(config.path).name
        earlier = sum(Path(source.config.path).name == name for source in sources)
        sources.append(_open(config, f"{name}#{earlier + 1}" if earlier else name))
    return _mixed(sources)


def _mixed(sources: list[Source]) -> list[Source]:
    """The sources with the number of rows that `count` and `weight` take of each.

    Raises:
        UserError: some have a weight and others none, or a weight takes no row.
    """
    weighted = [source for source in sources if source.config.weight is not None]
    if weighted and (len(weighted) < len(sources) or any(source.config.count for source in sources)):
        raise UserError("data.sources: either every source has a `weight` and none a `count`, or none has a weight")
    if not weighted and not any(source.config.count for source in sources):
        return sources
    there = [sum(1 for _ in source.records()) if _counted(source) else 0 for source in sources]
    largest = min((rows / (source.config.weight or 1) for source, rows in zip(sources, there, strict=True)), default=0)
    return [
        replace(source, taken=(source.config.count or _weighted(source, largest, rows), rows)) if rows else source
        for source, rows in zip(sources, there, strict=True)
    ]


def _weighted(source: Source, largest: float, rows: int) -> int:
    """The rows that a source's weight takes; a weight of 1 takes `largest`."""
    weight = source.config.weight or 0
    wanted = round(weight * largest)
    if not wanted:
        raise UserError(
            f"{source.config.path}: weight = {weight:g} takes none of its {rows} rows beside the other sources: "
            "raise it, or leave the source out"
        )
    return wanted


def _counted(source: Source) -> bool:
    return source.config.weight is not None or source.config.count is not None


def _open(config: SourceConfig, label: str) -> Source:
    try:
        files, others = find_files(config.path, config.files)
        source = _of_files(files, config, label) if files else _of_dataset(config, label)
        skipped = tuple(file.name for file in others if config.labels not in (file.name, str(file.path)))
        source = replace(source, skipped=skipped)
        if config.labels is None:
            return source
        labels = read_labels(config)
    except OSError as error:
        raise _unreadable(config.path, error) from None
    digest = hashlib.sha256(f"{source.content} {labels}".encode()).hexdigest()
    rows = source.rows
    return replace(source, content=digest, rows=lambda: join_labels(rows(), labels))


def _of_files(files: list[DataFile], config: SourceConfig, label: str) -> Source:
    if files[0].ending not in READERS:
        raise UserError(f"{config.path}: unknown form of file, use one of {', '.join(READERS)} (also .gz, .zst), .zip")
    if not files[0].name and not files[0].path.stat().st_size:
        raise UserError(f"{config.path}: is empty")
    return Source(label, config, content_hash(files), lambda: _rows(files, config))


def _rows(files: list[DataFile], config: SourceConfig) -> Iterator[Record]:
    for file in files:
        try:
            for record in READERS[file.ending](file, config):
                yield replace(record, file=file.name) if file.name else record
        except DAMAGES as error:
            raise UserError(f"{file.shown}: can't be read ({error})") from None


def _of_dataset(config: SourceConfig, label: str) -> Source:
    path = expanded(config.path)
    dataset = _dataset(config, path)
    return Source(label, config, _dataset_hash(dataset), lambda: read_dataset(dataset))


def _dataset(config: SourceConfig, path: Path) -> datasets.Dataset:
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        return load_saved(path, config.split)
    return load_hub(str(path) if path.is_dir() else config.path, config.subset, config.split)


def _dataset_hash(dataset: datasets.Dataset) -> str:
    """Hash of the values, not of the library's fingerprint, which differs between caches."""
    digest = hashlib.sha256()
    for record in read_dataset(dataset):
        values = record.values if record.fault is None else str(record.fault)
        digest.update(json.dumps(values, sort_keys=True, default=repr).encode() + b"\n")
    return digest.hexdigest()


def _unreadable(path: str, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be read ({error.strerror or error})")
