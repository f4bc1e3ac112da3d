"""Readers of text files: JSON, JSON lines and delimited text, row by row with line numbers."""

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.errors import UserError
from pipeline.prepare.record import Fault, Record, check_text

FIELD_LIMIT = 2**31 - 1
"""Characters in one CSV field; Python's own limit of 131,072 is shorter than some documents."""


def read_json(path: Path) -> Iterator[Record]:
    """A JSON list of objects. A file that starts otherwise is read as JSON lines.

    Raises:
        UserError: the list is broken, since no row behind the fault can be told from its parts.
    """
    text = path.read_bytes().decode("utf-8", errors="surrogateescape").removeprefix("\ufeff")
    if text.lstrip()[:1] != "[":
        yield from read_json_lines(path)
        return
    position, line, counted = text.index("[") + 1, 1, 0
    while (position := _skip_space(text, position)) < len(text) and text[position] != "]":
        line, counted = line + text.count("\n", counted, position), position
        try:
            value, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: the row at line {line} is not valid JSON ({_short(error)})") from None
        yield _record(line, value)
        position = _skip_space(text, position)
        if text[position : position + 1] not in (",", "]"):
            raise UserError(f"{path}: the row at line {line} is followed by neither a comma nor the list's end")
        position += text[position] == ","
    if text[position:].strip() != "]":
        raise UserError(f"{path}: the list of rows is not closed, or something follows it")


def read_json_lines(path: Path) -> Iterator[Record]:
    """One JSON object per line, plain or gzipped (`.gz`). Blank lines are no rows.

    Raises:
        UserError: compressed data is damaged or cut off, since the rows behind can't even be counted.
    """
    number = 0
    try:
        with _open(path) as file:
            for number, raw in enumerate(file, start=1):
                content = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                if content.strip():
                    yield _parse_line(number, content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: the compressed data is damaged or cut off after line {number} ({error})") from None


def read_delimited(path: Path, delimiter: str) -> Iterator[Record]:
    """CSV or TSV with a header line. Missing values are empty strings.

    Raises:
        UserError: no usable header, or a quote that is never closed (it swallows the rest of the file).
    """
    csv.field_size_limit(FIELD_LIMIT)
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        header: list[str] | None = None
        while (line := reader.line_num + 1) and (fields := _next_fields(reader, path, line)) is not None:
            if isinstance(fields, list) and not fields:
                continue
            if header is None:
                header = _header(fields, path)
                continue
            yield _delimited_record(line, header, fields)


def _next_fields(reader: Any, path: Path, line: int) -> list[str] | Fault | None:
    try:
        return list(next(reader))
    except StopIteration:
        return None
    except csv.Error as error:
        if "unexpected end of data" in str(error):
            raise UserError(f"{path}: a quote opened in the row at line {line} is never closed") from None
        return Fault("broken CSV", str(error))


def _header(fields: list[str] | Fault, path: Path) -> list[str]:
    if isinstance(fields, Fault):
        raise UserError(f"{path}: the header line is broken ({fields.detail})")
    if len(set(fields)) < len(fields) or not all(name.strip() for name in fields):
        raise UserError(f"{path}: the header line must name every column once, not {', '.join(map(repr, fields))}")
    return fields


def _delimited_record(line: int, header: list[str], fields: list[str] | Fault) -> Record:
    if isinstance(fields, list) and len(fields) != len(header):
        fields = Fault("wrong number of fields", f"{len(fields)} where the header has {len(header)}")
    if isinstance(fields, Fault):
        return Record(line, None, fields)
    return _record(line, dict(zip(header, fields, strict=True)))


def _open(path: Path) -> BinaryIO:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _parse_line(number: int, raw: bytes) -> Record:
    try:
        return _record(number, _DECODER.decode(raw.decode("utf-8").strip("\r\n\t ")))
    except UnicodeDecodeError as error:
        return Record(number, None, Fault("not UTF-8", f"byte {error.start + 1} of the line"))
    except (ValueError, RecursionError) as error:  # ValueError: also an integer of more than 4,300 digits
        return Record(number, None, Fault("broken JSON", _short(error)))


def _record(line: int, value: Any) -> Record:
    try:
        check_row(value)
    except Fault as fault:
        return Record(line, None, fault)
    return Record(line, value)


def check_row(value: Any) -> None:
    """Raise a Fault unless the value is an object with unique keys and sound text."""
    if not isinstance(value, dict):
        raise Fault("not an object", f"a row must hold named fields, not {type(value).__name__}")
    try:
        if _has_duplicates(value):
            raise Fault("duplicate key")
        check_text(value)
    except RecursionError:
        raise Fault("nested too deeply") from None


class _Duplicates(dict):
    """An object in which a key occurred twice; plain parsing would keep the last and say nothing."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    return values if len(values) == len(pairs) else _Duplicates(values)


def _has_duplicates(value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(value, _Duplicates) or any(_has_duplicates(inner) for inner in value.values())
    return isinstance(value, list) and any(_has_duplicates(inner) for inner in value)


def _short(error: BaseException) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__


_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder(object_pairs_hook=_object)
