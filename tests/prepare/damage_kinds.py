"""Damaged inputs by kind of reader: what test_prepare_damage.py does to lines, done to lists, packed files, tables."""

import gzip
import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard


class Case(NamedTuple):
    """One damaged file."""

    name: str
    content: bytes
    sound: int
    """Rows that stand before the damage, or apart from it, and must be kept."""
    whole: int
    """Rows of the file before it was damaged: if fewer are kept, something must be recorded."""


GOOD = [{"instruction": f"Say {number}.", "output": f"It is {number}, è vero."} for number in range(4)]
MIDDLE = 2


def line(row: Any) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode()


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("rows.jsonl"), content)
    return file.getvalue()


PACKED = {
    "jsonl.gz": lambda content: gzip.compress(content, mtime=0),
    "jsonl.zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    "zip": zipped,
}
ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252", "utf-8-sig", "utf-7")
NOTHING = {"empty": b"", "newline": b"\n", "blank": b" \r\n\t\r\n", "BOM": b"\xef\xbb\xbf", "NUL": b"\x00" * 64}


def in_lists(bad_lines: dict[str, bytes], places: dict[str, int]) -> Iterator[Case]:
    """Bad rows of a JSON list: one that is JSON spares its neighbours, any other hides those behind it."""
    for what, bad in bad_lines.items():
        for place, index in places.items():
            rows = [*map(line, GOOD)]
            rows.insert(index, bad)
            content = b"[" + b",\n".join(rows) + b"]"
            yield Case(f"{what} {place} listed.json", content, sound=len(GOOD) if _is_json(bad) else index, whole=5)


def _is_json(bad: bytes) -> bool:
    try:
        json.loads(bad.decode("utf-8", errors="surrogateescape"))
    except (ValueError, RecursionError):
        return False
    return True


def packed(bad_lines: dict[str, bytes]) -> Iterator[Case]:
    """Files that are packed whole, and damaged within."""
    lines = b"\n".join(map(line, GOOD))
    for ending, pack in PACKED.items():
        for what, bad in bad_lines.items():
            rows = [*map(line, GOOD)]
            rows.insert(MIDDLE, bad)
            yield Case(f"{what} within.{ending}", pack(b"\n".join(rows)), sound=len(GOOD), whole=5)
        for encoding in ENCODINGS:
            is_read = encoding == "utf-8-sig"
            yield Case(
                f"all in {encoding} within.{ending}", pack(lines.decode().encode(encoding)), len(GOOD) * is_read, 4
            )
        for what, content in NOTHING.items():
            yield Case(f"nothing but {what} within.{ending}", pack(content), sound=0, whole=4)
        yield Case(f"CRLF within.{ending}", pack(lines.replace(b"\n", b"\r\n")), sound=len(GOOD), whole=4)


def delimited() -> Iterator[Case]:
    """Lines of CSV and TSV; those behind a quote that is never closed are swallowed by it."""
    for ending, delimiter in (("csv", b","), ("tsv", b"\t")):
        rows = [row["instruction"].encode() + delimiter + b'"' + row["output"].encode() + b'"' for row in GOOD]
        header = b"instruction" + delimiter + b"output"
        for what, bad in _bad_fields(delimiter).items():
            lines = [header, *rows[:MIDDLE], bad, *rows[MIDDLE:]]
            sound = MIDDLE if what == "never closed" else len(GOOD)
            yield Case(f"{what}.{ending}", b"\n".join(lines), sound, whole=5)
        for what, bad in _bad_headers(delimiter).items():
            yield Case(f"{what}.{ending}", b"\n".join([bad, *rows]), sound=0, whole=4)
        for end in (b"\n", b"\r\n", b"\r", b"\n\n"):
            yield Case(f"{end!r}.{ending}", end.join([header, *rows, b""]), sound=len(GOOD), whole=4)
        yield Case(f"header alone.{ending}", header, sound=0, whole=4)


def _bad_fields(delimiter: bytes) -> dict[str, bytes]:
    pairs = {
        "NUL": (b"Say\x00it.", b"It."),
        "control characters": (b"Say\x01\x07\x1b[31m.", b"It.\x7f"),
        "latin-1": ("Sage è.".encode("latin-1"), "Sì.".encode("latin-1")),
        "text behind a quote": (b'"Say"it.', b"It."),
        "never closed": (b'"Say it.', b"It."),
        "too many": (b"Say it.", delimiter.join([b"It.", b"It."])),
        "no answer": (b"Say it.", b""),
        "blank": (b" ", b" "),
        "long": (b"a " * 5_000_000, b"It."),
        "carriage return": (b"Say\rit.", b"It."),
    }
    return {what: delimiter.join(pair) for what, pair in pairs.items()} | {"too few": b"Say it."}


def _bad_headers(delimiter: bytes) -> dict[str, bytes]:
    names = {"twice a name": [b"instruction", b"output", b"output"], "no name": [b"instruction", b""],
             "other names": [b"one", b"two"], "latin-1 name": [b"instruction", b"\xe8"]}  # fmt: skip
    return {what: delimiter.join(name) for what, name in names.items()}


def columns() -> Iterator[Case]:
    """Parquet and Arrow with columns that hold something else than text, or texts that can't be."""
    for what, (table, sound) in _tables().items():
        for ending, write in (("parquet", _parquet), ("file.arrow", _file), ("stream.arrow", _stream)):
            if what != "mixed types" or ending != "parquet":  # which has no such columns
                # Where none is sound, more than there are must be kept to be silent.
                yield Case(f"{what}.{ending}", write(table), sound, whole=table.num_rows + (not sound))


def _tables() -> dict[str, tuple[pa.Table, int]]:
    asked = pa.array([row["instruction"] for row in GOOD] + ["Say it."])
    said = [row["output"] for row in GOOD]

    def table(answers: Any) -> pa.Table:
        return pa.table({"instruction": asked, "output": answers})

    texts = {"null": None, "blank": " ", "NUL": "a\x00b", "control characters": "a\x01\x1b[31m",
             "long": "a" * 10_000_000, "CRLF": "a\r\nb"}  # fmt: skip
    turns = [[{"role": "user", "content": "Say."}, {"role": "assistant", "content": text}] for text in said]
    unsaid = [turns[0][0], {"role": "assistant"}]
    nulls = {"null for turns": None, "null for a turn": [None, None], "null for a text": unsaid}
    said_twice = pa.array([*said, "It."])
    return {
        **{what: (table(pa.array([*said, text])), 4) for what, text in texts.items()},
        **{what: (pa.table({"messages": pa.array([*turns, bad])}), 4) for what, bad in nulls.items()},
        "not UTF-8": (table(_not_utf8(said)), 4),
        "mixed types": (table(_mixed(said)), 4),
        "numbers": (table(pa.array(range(5))), 0),
        "bytes": (table(pa.array([text.encode() for text in [*said, "It."]])), 0),
        "lists with nulls": (table(pa.array([[None, text] for text in [*said, None]])), 0),
        "nothing but null": (table(pa.nulls(5)), 0),
        "twice a name": (pa.table([asked, said_twice, said_twice], ["instruction", "output", "output"]), 0),
        "twice a name within": (pa.table([asked, _within(said_twice)], ["instruction", "output"]), 0),
        "no rows": (table(pa.array([*said, "It."])).slice(0, 0), 0),
    }  # fmt: skip


def _within(texts: pa.Array) -> pa.Array:
    """A list with one object, which has two fields of one name."""
    objects = pa.StructArray.from_arrays([texts, texts], ["text", "text"])
    return pa.ListArray.from_arrays(pa.array(range(len(texts) + 1), pa.int32()), objects)


def _not_utf8(said: list[str]) -> pa.Array:
    content = pa.array([*(text.encode() for text in said), "è".encode("latin-1")], pa.binary())
    return pa.StringArray.from_buffers(len(content), *content.buffers()[1:])


def _mixed(said: list[str]) -> pa.Array:
    kinds, places = pa.array([0, 0, 0, 0, 1], pa.int8()), pa.array([0, 1, 2, 3, 0], pa.int32())
    return pa.UnionArray.from_dense(kinds, places, [pa.array(said), pa.array([3])])


def _parquet(table: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


def _file(table: pa.Table) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_file(file, table.schema) as sink:
        sink.write_table(table)
    return file.getvalue()


def _stream(table: pa.Table) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as sink:
        sink.write_table(table)
    return file.getvalue()
