"""Readers of text files: JSON, JSON lines and delimited text, row by row with line numbers."""

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from pipeline.errors import UserError
from pipeline.prepare.containers import DAMAGES, DataFile, damage
from pipeline.prepare.record import Fault, Record, check_text

FIELD_LIMIT = 2**31 - 1
"""Characters in one CSV field; Python's own limit of 131,072 is shorter than some documents."""
LINE_LIMIT = 2**26
"""Bytes in a line of JSON lines or text; a longer one is set aside without being held in memory."""
BROKEN = "broken CSV"
UNREADABLE = "broken JSON: the list can't be read on"
UNCLOSED = "a quote that is never closed: what follows it can't be read"


def read_json(file: DataFile) -> Iterator[Record]:
    """A JSON list of objects. A file that starts otherwise is read as JSON lines.

    A broken row can't be told from those behind it: it is a fault, and the last record.
    """
    with file.open() as opened:
        start = opened.read(4096) if file.plain else b""
    if file.plain and start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"[", b""):
        yield from read_json_lines(file)
        return
    content, fault = file.read()
    text = content.decode("utf-8", errors="surrogateescape").removeprefix("\ufeff")
    if text.lstrip()[:1] == "[":
        yield from _list(text, fault)
    else:
        yield from _json_lines(io.BytesIO(content), fault)


def _list(text: str, fault: Fault | None) -> Iterator[Record]:
    position, line, counted = text.index("[") + 1, 1, 0
    while (position := _skip_space(text, position)) < len(text) and text[position] != "]":
        line, counted = line + text.count("\n", counted, position), position
        try:
            value, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            yield Record(line, None, fault or Fault(UNREADABLE, _short(error), ends_file=True))
            return
        yield _record(line, value)
        position = _skip_space(text, position)
        if text[position : position + 1] not in (",", "]", ""):
            yield Record(line, None, Fault(UNREADABLE, "no comma behind this row", ends_file=True))
            return
        position += text[position : position + 1] == ","
    if text[position:].strip() != "]":
        line += text.count("\n", counted)
        unclosed = Fault("the list of rows is not closed, or something follows it", ends_file=True)
        yield Record(line, None, fault or unclosed)


def read_json_lines(file: DataFile) -> Iterator[Record]:
    """One JSON object per line. Blank lines are no rows. Damaged compression is a fault, and the last record."""
    with file.open() as opened:
        yield from _json_lines(opened)


def _json_lines(file: BinaryIO, fault: Fault | None = None) -> Iterator[Record]:
    for number, raw in _lines(file, fault):
        if isinstance(raw, Fault):
            yield Record(number, None, raw)
            continue
        content = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
        if content.strip():
            yield _parse_line(number, content)


def read_text_lines(file: DataFile, lines: int = 1) -> Iterator[Record]:
    """Rows {text} of so many lines each; the last row may be shorter. Blank rows are no rows."""
    with file.open() as opened:
        block: list[bytes] = []
        number = 0
        for number, raw in _lines(opened):
            if isinstance(raw, Fault):
                yield Record(number, None, raw)
                block = []
                continue
            block.append(raw)
            if len(block) == lines:
                yield from _text_row(number - lines + 1, block)
                block = []
        if block:
            yield from _text_row(number - len(block) + 1, block)


def _text_row(number: int, block: list[bytes]) -> Iterator[Record]:
    content = b"".join(block)
    if not content.strip():
        return
    try:
        yield Record(number, {"text": content.decode("utf-8").replace("\r\n", "\n").removesuffix("\n")})
    except UnicodeDecodeError as error:
        yield Record(number, None, Fault("not UTF-8", f"byte {error.start + 1} of the row"))


def _lines(file: BinaryIO, fault: Fault | None = None) -> Iterator[tuple[int, bytes | Fault]]:
    """Lines with their numbers, too long ones as faults; a damage is the last."""
    number = 0
    try:
        while raw := file.readline(LINE_LIMIT):
            number += 1
            if len(raw) == LINE_LIMIT and not raw.endswith(b"\n"):
                while (more := file.readline(LINE_LIMIT)) and not more.endswith(b"\n"):
                    pass
                yield number, Fault("absurdly long line", f"more than {LINE_LIMIT // 2**20} MiB")
            else:
                yield number, raw
    except DAMAGES as error:
        fault = damage(error)
    if fault:
        yield number + 1, fault


def read_delimited(file: DataFile, delimiter: str, names: Sequence[str] = ()) -> Iterator[Record]:
    """CSV or TSV, with a header line unless the columns' names are given. Missing values are empty strings.

    A quote that is never closed swallows what follows: it is a fault, and the last record.

    Raises:
        UserError: no usable header.
    """
    csv.field_size_limit(FIELD_LIMIT)
    with file.open() as opened:
        text = io.TextIOWrapper(opened, encoding="utf-8-sig", errors="surrogateescape", newline="")
        reader = csv.reader(text, delimiter=delimiter, strict=True)
        header = list(names) or None
        while (line := reader.line_num + 1) and (fields := _next_fields(reader)) is not None:
            if isinstance(fields, list) and not fields:
                continue
            if header is None:
                header = _header(fields, file.shown)
                continue
            yield _delimited_record(line, header, fields)
            if isinstance(fields, Fault) and fields.ends_file:
                return


def _next_fields(reader: Any) -> list[str] | Fault | None:
    try:
        return list(next(reader))
    except StopIteration:
        return None
    except csv.Error as error:
        is_end = "unexpected end of data" in str(error)
        return Fault(UNCLOSED if is_end else BROKEN, str(error), ends_file=is_end)
    except DAMAGES as error:
        return damage(error)


def _header(fields: list[str] | Fault, shown: str) -> list[str]:
    if isinstance(fields, Fault):
        raise UserError(f"{shown}: the header line is broken ({fields.reason}: {fields.detail})")
    if len(set(fields)) < len(fields) or not all(name.strip() for name in fields):
        raise UserError(
            f"{shown}: the header line must name every column once, not {', '.join(map(repr, fields))[:300]} "
            "(a file without one needs `header: [name, ...]`)"
        )
    return fields


def _delimited_record(line: int, header: list[str], fields: list[str] | Fault) -> Record:
    if isinstance(fields, list) and len(fields) != len(header):
        fields = Fault("wrong number of fields", f"{len(fields)} where the header has {len(header)}")
    if isinstance(fields, Fault):
        return Record(line, None, fields)
    return _record(line, dict(zip(header, fields, strict=True)))


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
