"""Every file form reads the same rows; damage is named, with its place, and what stands before it is kept."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from prepare_inputs import DATA

from pipeline.errors import UserError
from pipeline.prepare.config import SourceConfig
from pipeline.prepare.containers import find_files
from pipeline.prepare.record import Record
from pipeline.prepare.sources import open_sources

ROWS = [{"instruction": f"Say {word}.", "input": "", "output": word} for word in ("é", "zwei\nlines", "3")]
GOOD = b'{"prompt": "a", "completion": "b"}'


def _read(path: Path | str, **options: Any) -> list[Record]:
    return list(open_sources([SourceConfig(path=str(path), **options)])[0].records())


def _values(records: list[Record]) -> list[Any]:
    return [record.values if record.fault is None else record.fault.reason for record in records]


def _write(path: Path, rows: list[dict[str, str]]) -> Path:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    table = pa.Table.from_pylist(rows)
    if path.name.endswith(".json"):
        path.write_text(json.dumps(rows, ensure_ascii=False, indent=1), encoding="utf-8")
    elif path.name.endswith(".jsonl"):
        path.write_text(lines, encoding="utf-8")
    elif path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    elif path.name.endswith(".zst"):
        path.write_bytes(zstandard.ZstdCompressor().compress(lines.encode()))
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="," if path.suffix == ".csv" else "\t")
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.name == "file.arrow":
        with pa.ipc.new_file(str(path), table.schema) as sink:
            sink.write_table(table)
    elif path.suffix == ".arrow":
        with pa.ipc.new_stream(str(path), table.schema) as sink:
            sink.write_table(table)
    else:
        datasets.Dataset.from_list(rows).save_to_disk(str(path))
    return path


FILES = [
    "x.json",
    "x.jsonl",
    "x.jsonl.gz",
    "x.jsonl.zst",
    "x.csv",
    "x.tsv",
    "x.parquet",
    "file.arrow",
    "stream.arrow",
    "folder",
]


@pytest.mark.parametrize("name", FILES)
def test_every_form_reads_the_same_rows(tmp_path: Path, name: str) -> None:
    path = _write(tmp_path / name, ROWS)
    assert _values(_read(path)) == ROWS
    assert _values(_read(path, limit=2)) == ROWS[:2]


def test_line_numbers_are_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('[\n {"a": 1},\n\n {"a":\n 2}, {"a": 3}]')
    assert [record.line for record in _read(tmp_path / "x.json")] == [2, 4, 5]
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n\n{"a": 2}')
    assert [record.line for record in _read(tmp_path / "x.jsonl")] == [1, 3]
    assert [record.line for record in _read(_write(tmp_path / "x.csv", ROWS))] == [2, 3, 6]


def test_bad_lines_are_set_aside_and_neighbours_kept(tmp_path: Path) -> None:
    bad = {
        b'{"prompt": "a", ': "broken JSON",
        b'{"prompt": "caf\xe9", "completion": "b"}': "not UTF-8",
        b'{"prompt": "\\ud800", "completion": "b"}': "not UTF-8",
        b'["a", "b"]': "not an object",
        b"null": "not an object",
        b'{"prompt": "a", "prompt": "c", "completion": "b"}': "duplicate key",
        b'{"x": {"y": 1, "y": 2}}': "duplicate key",
        b'{"prompt": "a"}{"prompt": "b"}': "broken JSON",
        b'{"prompt": "a\x00", "completion": "b"}': "broken JSON",
        b'{"a": ' + b"9" * 5000 + b"}": "broken JSON",
        b"[" * 100_000: "broken JSON",
    }
    content = b"\n".join([b"\xef\xbb\xbf" + GOOD, *(line + b"\r\n" + GOOD for line in bad)])
    (tmp_path / "x.jsonl").write_bytes(content)
    records = _read(tmp_path / "x.jsonl")
    assert _values(records[1::2]) == list(bad.values())
    assert [record.line for record in records] == list(range(1, len(records) + 1))
    assert all(record.values == json.loads(GOOD) for record in records[::2])


def test_huge_line_is_read(tmp_path: Path) -> None:
    row = {"prompt": "a" * 5_000_000, "completion": "b"}
    (tmp_path / "x.jsonl").write_bytes(json.dumps(row).encode() + b"\n" + GOOD)
    assert _values(_read(tmp_path / "x.jsonl")) == [row, json.loads(GOOD)]
    assert _values(_read(_write(tmp_path / "x.csv", [row]))) == [row]


def test_json_list_with_bad_rows(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b'\xef\xbb\xbf[\r\n{"a": "caf\xe9"},\r\n7,\r\n{"a": "b"}\r\n]\r\n')
    assert _values(_read(tmp_path / "x.json")) == ["not UTF-8", "not an object", {"a": "b"}]


def test_json_file_that_holds_lines(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(GOOD + b"\n" + GOOD)
    assert len(_read(tmp_path / "x.json")) == 2


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b'[{"a": 1},\n{"a": }]', 2, "broken JSON: the list can't be read on"),
        (b'[{"a": 1} {"a": 2}]', 1, "broken JSON: the list can't be read on"),
        (b'[{"a": 1},\n', 2, "the list of rows is not closed, or something follows it"),
        (b'[{"a": 1}] x', 1, "the list of rows is not closed, or something follows it"),
    ],
)
def test_broken_json_lists_are_read_up_to_the_damage(tmp_path: Path, content: bytes, line: int, reason: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    records = _read(tmp_path / "x.json")
    assert _values(records) == [{"a": 1}, reason]
    assert records[-1].line == line


@pytest.mark.parametrize(
    ("content", "message"), [(b"[]", "holds no rows"), (b" \n", "holds no rows"), (b"", "is empty")]
)
def test_empty_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UserError, match=rf"x\.json: {message}"):
        _read(tmp_path / "x.json")


def test_csv_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(
        b'\xef\xbb\xbfprompt,completion\r\na,b\r\na,b,c\r\na\r\ncaf\xe9,b\r\n"a"x,b\r\n\r\n"q ""r""\r\ns",b\r\n'
    )
    expected = {"prompt": "a", "completion": "b"}
    wrong = "wrong number of fields"
    assert _values(_read(path)) == [
        expected, wrong, wrong, "not UTF-8", "broken CSV", {"prompt": 'q "r"\r\ns', "completion": "b"},
    ]  # fmt: skip
    assert [record.line for record in _read(path)] == [2, 3, 4, 5, 6, 8]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"prompt,prompt\na,b\n", "must name every column once, not 'prompt', 'prompt'"),
        (b"prompt,\na,b\n", "must name every column once"),
        (b"prompt,completion\n", "holds no rows"),
    ],
)
def test_csv_without_a_header_or_rows_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(UserError, match=message):
        _read(tmp_path / "x.csv")


def test_an_unclosed_quote_ends_the_file(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b'prompt,completion\na,b\n"a,b\na,b\n')
    records = _read(tmp_path / "x.csv")
    assert _values(records) == [
        {"prompt": "a", "completion": "b"},
        "a quote that is never closed: what follows it can't be read",
    ]
    assert records[-1].line == 3


MANY = [{"prompt": f"{index**7}", "completion": "b"} for index in range(12_000)]


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl.zst"])
def test_compressed_text_is_read_up_to_the_damage(tmp_path: Path, name: str) -> None:
    path = _write(tmp_path / name, MANY)
    assert _values(_read(path)) == MANY
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    *records, last = _read(path)
    assert 0 < len(records) < len(MANY)
    assert _values(records) == MANY[: len(records)]
    assert last.fault
    assert last.fault.reason == "the compressed data is damaged or cut off"


def test_a_compressed_list_is_read_up_to_the_damage(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps(MANY).encode())
    (tmp_path / "x.json.gz").write_bytes(packed[: len(packed) * 2 // 3])
    *records, last = _read(tmp_path / "x.json.gz")
    assert 0 < len(records) < len(MANY)
    assert _values(records) == MANY[: len(records)]
    assert last.fault
    assert last.fault.reason == "the compressed data is damaged or cut off"


@pytest.mark.parametrize("name", ["x.parquet", "file.arrow", "stream.arrow"])
def test_a_table_of_which_nothing_can_be_read_is_refused(tmp_path: Path, name: str) -> None:
    path = _write(tmp_path / name, MANY)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.raises(UserError, match=name) as caught:
        _read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"no such thing, but text\n" * 10)
    with pytest.raises(UserError, match=name):
        _read(tmp_path / name)


def test_text_under_a_compressed_name_is_one_reject(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl.gz").write_bytes(b"no such thing, but text\n" * 10)
    assert _values(_read(tmp_path / "x.jsonl.gz")) == ["the compressed data is damaged or cut off"]


def test_text_that_is_not_utf8_in_a_table(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"caf\xe9", b"good"], pa.binary())
    column = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    pq.write_table(pa.table({"prompt": column}), tmp_path / "x.parquet")
    assert _values(_read(tmp_path / "x.parquet")) == [{"prompt": "good"}, "not UTF-8", {"prompt": "good"}]


def test_saved_folder_of_splits(tmp_path: Path) -> None:
    splits = {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS[:1])}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "folder"))
    assert _values(_read(tmp_path / "folder", split="test")) == ROWS[:1]
    with pytest.raises(UserError, match="has no split 'dev', only train, test"):
        _read(tmp_path / "folder", split="dev")
    (tmp_path / "folder" / "train" / "data-00000-of-00001.arrow").write_bytes(b"torn")
    with pytest.raises(UserError, match="is not a whole data set folder"):
        _read(tmp_path / "folder")


def test_missing_and_unknown_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.jsonl: no such file"):
        _read("absent.jsonl")
    with pytest.raises(UserError, match=r"absent: no such file"):
        _read(tmp_path / "absent")
    (tmp_path / "x.doc").write_text("text")
    with pytest.raises(UserError, match=r"x\.doc: unknown form of file, use one of \.json, \.jsonl"):
        _read(tmp_path / "x.doc")


def test_links_that_loop_give_each_file_once(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    (folder / "more").mkdir(parents=True)
    for name in ("b.jsonl", "more/a.jsonl"):
        (folder / name).write_text("{}\n")
    (folder / "more" / "loop").symlink_to(folder)
    files, _ = find_files(str(folder), "**/*.jsonl")
    assert [file.name for file in files] == ["b.jsonl", "more/a.jsonl"]


def test_hub_failures_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def offline(path: str, **options: Any) -> None:
        asked.append((path, options))
        raise ConnectionError("cannot reach the hub\nlong trace")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(UserError) as caught:
        _read("allenai/ai2_arc", subset="ARC-Challenge", split="test")
    assert asked == [("allenai/ai2_arc", {"name": "ARC-Challenge", "split": "test"})]
    assert str(caught.value).startswith("allenai/ai2_arc (subset ARC-Challenge, split test): no local file")
    assert "\n" not in str(caught.value)


def test_hub_rows_are_read_and_hashed_by_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_list(ROWS))
    first, second = (open_sources([SourceConfig(path="owner/name")])[0] for _ in range(2))
    assert _values(list(first.records())) == ROWS
    assert first.content == second.content


def test_labels_and_content_hashes(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jsonl").write_bytes(GOOD)
    configs = [SourceConfig(path=str(tmp_path / folder / "x.jsonl")) for folder in ("one", "two")]
    first, second = open_sources(configs)
    assert (first.label, second.label) == ("x.jsonl", "x.jsonl#2")
    assert first.content == second.content
    (tmp_path / "two" / "x.jsonl").write_bytes(GOOD + b"\n")
    assert open_sources(configs)[1].content != first.content


def test_shipped_data_is_whole() -> None:
    expected = {"commonsense_qa_train.jsonl": 1024, "commonsense_qa_validation.jsonl": 128, "alpaca.json": 200,
                "piqa_validation.jsonl": 128, "arc_challenge_test.jsonl": 128, "arc_easy_test.jsonl": 128}  # fmt: skip
    for name, rows in expected.items():
        records = _read(DATA / name)
        assert len(records) == rows
        assert not any(record.fault for record in records), name
