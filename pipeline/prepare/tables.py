"""Readers of binary tables: Parquet, Arrow and data sets of the `datasets` library."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UserError
from pipeline.prepare.containers import DataFile
from pipeline.prepare.readers import check_row
from pipeline.prepare.record import Fault, Record

DAMAGES = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What Arrow raises for a damaged table; the last for damaged names of columns."""


def read_parquet(file: DataFile) -> Iterator[Record]:
    """Rows of a Parquet file, up to a damage.

    Raises:
        UserError: nothing of the file can be read, or two columns have one name.
    """
    with _reading(file, "Parquet") as opened, pq.ParquetFile(opened) as table:
        _check_names(table.schema_arrow, file.shown)
        yield from _until_damage(table.iter_batches(batch_size=1000), file, "Parquet")


def read_arrow(file: DataFile) -> Iterator[Record]:
    """Rows of an Arrow file, in the stream form (as `datasets` writes it) or the file form, up to a damage.

    Raises:
        UserError: nothing of the file can be read, or two columns have one name.
    """
    with _reading(file, "Arrow") as opened:
        start = opened.read(6)
        opened.seek(0)
        if start == b"ARROW1":
            reader = pa.ipc.open_file(opened)
            batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
        else:
            reader = pa.ipc.open_stream(opened)
            batches = iter(reader)
        _check_names(reader.schema, file.shown)
        yield from _until_damage(batches, file, "Arrow")


def _check_names(fields: Iterable[pa.Field], shown: str) -> None:
    """Of two columns of one name, or two fields within one, a row would hold the last and say nothing.

    Raises:
        UserError: naming them.
    """
    names = set[str]()
    for field in fields:
        if field.name in names:
            raise UserError(f"{shown}: two columns, or two fields of one, are called {field.name!r}")
        names.add(field.name)
        _check_names(_fields_within(field.type), shown)


def _fields_within(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return list(kind)
    return [kind.value_field] if hasattr(kind, "value_field") else []  # of lists


@contextmanager
def _reading(file: DataFile, kind: str) -> Iterator[Any]:
    """The file as Arrow reads it: mapped into memory, or unpacked there."""
    try:
        if file.plain:
            with pa.memory_map(str(file.path)) as opened:
                yield opened
        else:
            content, fault = file.read()
            if fault:
                raise UserError(f"{file.shown}: {fault}")
            yield pa.BufferReader(content)
    except DAMAGES as error:
        raise _damaged(file.shown, kind, error) from None


def _until_damage(batches: Iterator[pa.RecordBatch], file: DataFile, kind: str) -> Iterator[Record]:
    read = 0
    try:
        for record in _rows(batches):
            read = record.line
            yield record
    except DAMAGES as error:
        if not read:
            raise _damaged(file.shown, kind, error) from None
        fault = Fault(f"not a whole {kind} file: cut off or damaged", _first_line(error), ends_file=True)
        yield Record(read + 1, None, fault)


def read_dataset(dataset: datasets.Dataset) -> Iterator[Record]:
    """Rows of a data set."""
    plain = dataset.with_format("arrow")
    yield from _rows(batch for table in plain.iter(batch_size=1000) for batch in table.to_batches())


def load_saved(path: Path, split: str) -> datasets.Dataset:
    """A folder written by `save_to_disk`: one data set, or one per split.

    Raises:
        UserError: the folder is damaged or has no such split.
    """
    try:
        saved = datasets.load_from_disk(str(path))
    except Exception as error:  # the library raises whatever its parsers raise; all mean a damaged folder
        raise _damaged(path, "data set folder", error) from None
    if isinstance(saved, datasets.Dataset):
        return saved
    if split not in saved:
        raise UserError(f"{path}: has no split {split!r}, only {', '.join(saved)}")
    return saved[split]


def load_hub(name: str, subset: str | None, split: str) -> datasets.Dataset:
    """A data set of the hub, or a local folder of data files.

    Raises:
        UserError: a folder or data set that cannot be loaded.
    """
    try:
        return datasets.load_dataset(name, name=subset, split=split)
    except Exception as error:  # network, missing name, unknown subset or split: each has its own class
        what = f"{name} (subset {subset}, split {split})" if subset else f"{name} (split {split})"
        where = "the folder can't be loaded" if Path(name).is_dir() else "no local file, and the hub did not give it"
        raise UserError(f"{what}: {where}: {_first_line(error)}") from None


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Record]:
    line = 0
    for batch in batches:
        for values in _values(batch):
            line += 1
            yield _record(line, values)


def _values(batch: pa.RecordBatch) -> list[Any]:
    """The rows as dictionaries; a row whose text is not UTF-8 becomes a Fault and spares its neighbours."""
    try:
        return batch.to_pylist()
    except UnicodeDecodeError:
        return [_one(batch.slice(index, 1)) for index in range(batch.num_rows)]


def _one(row: pa.RecordBatch) -> Any:
    try:
        return row.to_pylist()[0]
    except UnicodeDecodeError as error:
        return Fault("not UTF-8", f"byte {error.start + 1} of a field")


def _record(line: int, values: Any) -> Record:
    if isinstance(values, Fault):
        return Record(line, None, values)
    try:
        check_row(values)
    except Fault as fault:
        return Record(line, None, fault)
    return Record(line, values)


def _damaged(shown: Path | str, kind: str, error: Exception) -> UserError:
    return UserError(f"{shown}: is not a whole {kind} ({_first_line(error)})")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
