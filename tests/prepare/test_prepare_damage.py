"""Hundreds of damaged inputs: each ends in a sentence that names the file, or with every row kept or recorded."""

import csv
import gzip
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from damage_kinds import ENCODINGS, NOTHING, Case, columns, delimited, in_lists, line, packed, zipped
from prepare_inputs import MakeRun

from pipeline.errors import StageError, UserError
from pipeline.prepare.cache import REJECTS
from pipeline.prepare.stage import obtain

ROWS = [{"instruction": f"Say {number}.", "output": f"It is {number}, è vero."} for number in range(24)]


def _delimited(delimiter: str) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(ROWS[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return text.getvalue().encode()


def _tables() -> dict[str, bytes]:
    table = pa.Table.from_pylist(ROWS)
    parquet, file, stream = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pq.write_table(table, parquet, row_group_size=6)
    with pa.ipc.new_file(file, table.schema) as sink:
        sink.write_table(table, max_chunksize=6)
    with pa.ipc.new_stream(stream, table.schema) as sink:
        sink.write_table(table, max_chunksize=6)
    return {"rows.parquet": parquet.getvalue(), "file.arrow": file.getvalue(), "stream.arrow": stream.getvalue()}


LINES = b"\n".join(map(line, ROWS)) + b"\n"
WHOLE = {
    "rows.jsonl": LINES,
    "rows.json": json.dumps(ROWS, ensure_ascii=False, indent=1).encode(),
    "rows.csv": _delimited(","),
    "rows.tsv": _delimited("\t"),
    "rows.jsonl.gz": gzip.compress(LINES, mtime=0),
    "rows.jsonl.zst": zstandard.ZstdCompressor(write_checksum=True).compress(LINES),
    "rows.zip": zipped(LINES),
    **_tables(),
}
GOOD = ROWS[0]
DEEP = b'{"instruction": "a", "output": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
BAD_LINES: dict[str, bytes] = {
    "cut": b'{"instruction": "Say',
    "no object": b'["instruction", "output"]',
    "number": b"17",
    "text": b'"instruction"',
    "null": b"null",
    "nothing of use": b"{}",
    "null field": line({**GOOD, "output": None}),
    "nested null": line({**GOOD, "output": [None, {"text": None}]}),
    "number for text": line({**GOOD, "output": 3}),
    "list for text": line({**GOOD, "output": ["It"]}),
    "object for text": line({**GOOD, "instruction": {"text": "Say"}}),
    "truth for text": line({**GOOD, "output": True}),
    "empty answer": line({**GOOD, "output": ""}),
    "blank answer": line({**GOOD, "output": " \t\n "}),
    "missing answer": line({"instruction": "Say."}),
    "missing prompt": line({"output": "It."}),
    "other names": line({"Instruction": "Say.", "Output": "It."}),
    "twice a key": b'{"instruction": "a", "output": "b", "output": "c"}',
    "twice a key within": b'{"instruction": "a", "output": "b", "more": {"x": 1, "x": 2}}',
    "control character": b'{"instruction": "a\x01b", "output": "c"}',
    "escaped control character": b'{"instruction": "a\\u0000b\\u0007", "output": "c\\u001b"}',
    "lone surrogate": b'{"instruction": "a\\ud800", "output": "c"}',
    "NUL": b"\x00" * 40,
    "latin-1": '{"instruction": "Sage è", "output": "é"}'.encode("latin-1"),
    "overlong": b'{"instruction": "\xc0\x80", "output": "c"}',
    "not a number": b'{"instruction": "a", "output": NaN}',
    "infinity": b'{"instruction": "a", "output": "b", "weight": -Infinity}',
    "huge integer": b'{"instruction": "a", "output": "b", "n": ' + b"9" * 5000 + b"}",
    "deep": DEEP,
    "long": line({**GOOD, "instruction": "a " * 5_000_000}),
    "long answer": line({**GOOD, "output": "a" * 2_000_000}),
    "two objects": line(GOOD) + line(GOOD),
    "comma behind": line(GOOD) + b",",
    "single quotes": b"{'instruction': 'a', 'output': 'b'}",
    "comment": b"// not a row",
    "markup": b"<html><body>404</body></html>",
    "git lfs": b"version https://git-lfs.github.com/spec/v1",
    "trailing comma": b'{"instruction": "a", "output": "b",}',
    "bad escape": b'{"instruction": "\\x41", "output": "b"}',
}
PLACES = {"first": 0, "middle": 2, "last": 4}
WITHIN = ("cut", "null", "nested null", "number for text", "object for text", "twice a key", "control character",
          "latin-1", "NUL", "long", "git lfs")  # fmt: skip
"""Of the bad lines, those that are packed as well."""


def _bad_lines() -> Iterator[Case]:
    for what, bad in BAD_LINES.items():
        for place, index in PLACES.items():
            lines = [*map(line, ROWS[:4])]
            lines.insert(index, bad)
            yield Case(f"{what} {place}.jsonl", b"\n".join(lines), sound=4, whole=5)
    for end in (b"\r\n", b"\n\n", b"\n \n", b"\r\n\r\n"):
        yield Case(f"{end!r}.jsonl", end.join(map(line, ROWS)), len(ROWS), len(ROWS))


def _cut() -> Iterator[Case]:
    for name, content in WHOLE.items():
        for share in (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
            end = int(len(content) * share)
            plain, has_header = name.endswith((".jsonl", "v")), name.endswith("v")
            lines = len(content[:end].splitlines()) - has_header
            ended = content[:end].count(b"\n") - has_header
            # Of lines, those behind the cut can't be missed, nor in CSV the end of the last field.
            yield Case(f"cut at {share} {name}", content[:end], *((max(0, ended), lines) if plain else (0, len(ROWS))))


def _flipped() -> Iterator[Case]:
    for name, content in WHOLE.items():
        for seed in range(5):
            changed = bytearray(content)
            changed[random.Random(f"{name} {seed}").randrange(len(content))] ^= 0xFF
            yield Case(f"flipped {seed} {name}", bytes(changed), 0, len(ROWS))


def _encoded() -> Iterator[Case]:
    for name in ("rows.jsonl", "rows.json", "rows.csv", "rows.tsv"):
        for encoding in ENCODINGS:
            content = WHOLE[name].decode().encode(encoding)
            yield Case(f"{encoding} {name}", content, len(ROWS) * (encoding == "utf-8-sig"), len(ROWS))


def _nothing() -> Iterator[Case]:
    for name in WHOLE:
        for what, content in NOTHING.items():
            yield Case(f"{what} {name}", content, 0, len(ROWS))


CASES = [
    *_bad_lines(), *_cut(), *_flipped(), *_encoded(), *_nothing(), *in_lists(BAD_LINES, PLACES),
    *packed({what: BAD_LINES[what] for what in WITHIN}), *delimited(), *columns(),
    Case("CRLF.json", WHOLE["rows.json"].replace(b"\n", b"\r\n"), len(ROWS), len(ROWS)),
]  # fmt: skip


def test_there_are_enough() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 200


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_is_lost_without_a_word(case: Case, tmp_path: Path, make_run: MakeRun) -> None:
    path = tmp_path / case.name.replace(" ", "_").replace("\\", "_").replace("'", "")
    path.write_bytes(case.content)
    try:
        prepared = obtain(*make_run(path))
    except (UserError, StageError) as error:
        assert case.sound == 0 and path.name in str(error)
        assert len(str(error).splitlines()) == 1 and "Traceback" not in str(error)
        return
    rows = prepared.manifest["rows"]
    recorded = [json.loads(line) for line in (prepared.path / REJECTS).read_text(encoding="utf-8").splitlines()]
    assert rows["read"] == rows["kept"] + rows["rejected"] + rows["dropped"]
    assert len(recorded) == rows["rejected"] + rows["dropped"]
    assert all(entry["reason"] and entry["source"] and entry["line"] for entry in recorded)
    assert rows["kept"] >= case.sound
    assert rows["kept"] >= case.whole or recorded, "rows are gone, and nothing says so"
