"""Archives, globs, label files, mappings and mixes: which rows a source has."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UserError
from pipeline.prepare.config import SourceConfig
from pipeline.prepare.reading import OpenedSource
from pipeline.prepare.record import Fault
from pipeline.prepare.sources import Source, open_sources


def _lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _source(path: Path, **options: Any) -> Source:
    return open_sources([SourceConfig(path=str(path), **options)])[0]


def _values(source: Source) -> list[Any]:
    return [record.values if record.fault is None else record.fault.reason for record in source.records()]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        file.writestr("set/b.jsonl", _lines({"a": 2}))
        file.writestr("set/a.jsonl", _lines({"a": 1}))
        file.writestr("set/labels.lst", "yes\nno\n")
    return tmp_path / "x.zip"


def test_rows_of_an_archive_are_named_by_file(archive: Path) -> None:
    source = _source(archive, files="*.jsonl", form="messages")
    assert _values(source) == [{"a": 1}, {"a": 2}]
    names = [row.name for row in OpenedSource.open(source, 0).rows()]
    assert names == ["x.zip/set/a.jsonl:1", "x.zip/set/b.jsonl:1"]


def test_globs_and_folders_read_files_in_order(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.jsonl").write_text(_lines({"a": name}))
    expected = [{"a": "a"}, {"a": "b"}, {"a": "c"}]
    assert _values(_source(tmp_path / "*.jsonl")) == expected
    assert _values(_source(tmp_path, files="*.jsonl")) == expected
    with pytest.raises(UserError):
        _source(tmp_path / "*.csv")


def test_labels_join_by_line(archive: Path, tmp_path: Path) -> None:
    joined = _source(archive, files="*/a.jsonl", labels="set/labels.lst")
    assert _values(joined) == [{"a": 1, "answer": "yes"}, "a label without a row"]
    (tmp_path / "x.jsonl").write_text(_lines({"a": 1}, {"a": 2}))
    (tmp_path / "x.lst").write_text("0\n")
    labels = str(tmp_path / "x.lst")
    first = _source(tmp_path / "x.jsonl", labels=labels)
    assert _values(first) == [{"a": 1, "answer": "0"}, "no label on the row's line of the label file"]
    (tmp_path / "x.lst").write_text("1\n")
    assert _source(tmp_path / "x.jsonl", labels=labels).content != first.content


def test_columns_reach_inside_and_fill_texts(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(_lines({"doc": {"q": ["one"]}, "a": "two"}, {"a": "two"}))
    columns = {"prompt": "{{ doc.q[0] }}?", "completion": "a", "system": "doc.q.0"}
    assert _values(_source(path, columns=columns)) == [
        {"prompt": "one?", "completion": "two", "system": "one"},
        "a value that columns.prompt needs is missing",
    ]
    fixed = _source(path, columns={"completion": "a"}, constants={"prompt": "Say it."})
    assert _values(fixed)[1] == {"prompt": "Say it.", "completion": "two"}


@pytest.mark.parametrize("text", ["{{ a.__class__.__mro__ }}", "{{ a.append(1) }}"])
def test_texts_reach_nothing_but_the_row(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.jsonl").write_text(_lines({"a": ["b"]}))
    (record,) = _source(tmp_path / "x.jsonl", columns={"prompt": text}).records()
    assert isinstance(record.fault, Fault)


def test_each_value_of_a_unique_column_is_used_once(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(_lines({"a": 1}, {"a": 2}, {"a": 1}))
    assert _values(_source(tmp_path / "x.jsonl", unique="a")) == [{"a": 1}, {"a": 2}, "another row has the same 'a'"]


def test_rows_without_a_unique_value_are_rejected_as_such(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(_lines({"a": None}, {"a": 0}, {"b": 1}, {"a": ""}, {"a": None}))
    missing = "no value in 'a', of which each is used once"
    assert _values(_source(tmp_path / "x.jsonl", unique="a")) == [missing, {"a": 0}, missing, missing, missing]


def _numbered(path: Path, rows: int) -> str:
    path.write_text(_lines(*({"a": index} for index in range(rows))))
    return str(path)


def test_count_draws_by_the_seed_and_repeats(tmp_path: Path) -> None:
    path = Path(_numbered(tmp_path / "x.jsonl", 100))
    drawn = [[row["a"] for row in _values(_source(path, count=30, seed=seed))] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] == sorted(set(drawn[0]))
    assert len(drawn[0]) == len(drawn[2]) == 30
    assert drawn[0] != drawn[2]
    repeated = [row["a"] for row in _values(_source(path, count=250))]
    assert len(repeated) == 250
    assert {repeated.count(index) for index in range(100)} == {2, 3}


def test_weights_take_the_largest_mix_without_a_repeat(tmp_path: Path) -> None:
    paths = [_numbered(tmp_path / name, rows) for name, rows in (("x.jsonl", 100), ("y.jsonl", 40))]
    mixed = open_sources([SourceConfig(path=path, weight=weight) for path, weight in zip(paths, (1, 2), strict=True)])
    assert [source.taken for source in mixed] == [(20, 100), (40, 40)]
    assert [len(_values(source)) for source in mixed] == [20, 40]
    with pytest.raises(UserError, match=r"y\.jsonl: weight = 0.001 takes none of its 40 rows"):
        open_sources([SourceConfig(path=paths[0], weight=1), SourceConfig(path=paths[1], weight=0.001)])
    with pytest.raises(UserError, match="either every source has a `weight`"):
        open_sources([SourceConfig(path=paths[0], weight=1), SourceConfig(path=paths[1])])
