"""The stage as a whole: accounting, refusal, reuse, damage, several processes, kills."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from prepare_inputs import DATA, ROOT, STORIES, MakeRun
from transformers import PreTrainedTokenizerFast

import pipeline.prepare.stage as stage
from pipeline.config import to_yaml
from pipeline.errors import StageError, UserError
from pipeline.files import read_json
from pipeline.prepare import PreparedData, locks, prepare
from pipeline.prepare.identity import tokenizer_hash
from pipeline.prepare.preparation import Preparation
from pipeline.run_folder import RunFolder

GOOD = {"instruction": "Say it.", "output": "It."}


def _rejects(prepared: PreparedData) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (prepared.path / "rejects.jsonl").read_text(encoding="utf-8").splitlines()]


def _lines(path: Path, *rows: Any) -> Path:
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(lines))
    return path


def test_real_data_in_order_with_a_manifest(make_run: MakeRun) -> None:
    config, folder = make_run(DATA / "commonsense_qa_validation.jsonl", DATA / "piqa_validation.jsonl")
    prepared = prepare(config, folder)
    rows = list(prepared.rows())
    manifest = prepared.manifest
    assert len(prepared) == len(rows) == manifest["rows"]["kept"] > 200
    assert rows[0] == prepared[0]
    assert rows[0].id == "commonsense_qa_validation.jsonl:1"
    assert len({row.id for row in rows}) == len(rows)
    assert manifest["tokens"]["total"] == sum(len(row.input_ids) for row in rows)
    assert manifest["tokens"]["prompt"] == sum(row.prompt_length for row in rows)
    assert manifest["tokens"]["per_row"]["max"] == max(len(row.input_ids) for row in rows) <= 400
    assert {source["form"] for source in manifest["sources"]} == {"question_choices"}
    written = read_json(folder.prepare_manifest)
    assert written["key"] == prepared.key == prepared.path.name
    assert list(written["paths"]) == ["commonsense_qa_validation.jsonl", "piqa_validation.jsonl"]


def test_every_row_is_accounted_for(tmp_path: Path, make_run: MakeRun) -> None:
    path = _lines(
        tmp_path / "x.jsonl", GOOD, b'{"instruction": ', {"instruction": "No answer."}, b'{"instruction": "\xff"}',
        {**GOOD, "output": "long " * 400}, {**GOOD, "output": None}, {**GOOD, "instruction": "a" * 1_500_000}, GOOD,
    )  # fmt: skip
    prepared = prepare(*make_run(path))
    manifest = prepared.manifest
    assert manifest["rows"] == {"read": 8, "kept": 2, "rejected": 4, "dropped": 2}
    assert list(manifest["dropped"]) == ["longer than max_tokens"]
    assert sorted(manifest["dropped"]["longer than max_tokens"]["examples"]) == ["x.jsonl:5", "x.jsonl:7"]
    assert {reason: entry["count"] for reason, entry in manifest["rejected"].items()} == {
        "broken JSON": 1, "missing field 'output'": 1, "not UTF-8": 1, "null field 'output'": 1,
    }  # fmt: skip
    assert sorted((entry["source"], entry["line"]) for entry in _rejects(prepared)) == [
        ("x.jsonl", str(line)) for line in range(2, 8)
    ]
    assert [row.id for row in prepared.rows()] == ["x.jsonl:1", "x.jsonl:8"]


def test_rows_on_one_line_have_unique_ids(tmp_path: Path, make_run: MakeRun) -> None:
    (tmp_path / "x.json").write_text(json.dumps([GOOD] * 3))
    assert [row.id for row in prepare(*make_run(tmp_path / "x.json")).rows()] == [
        "x.json:1",
        "x.json:1/2",
        "x.json:1/3",
    ]


def test_too_many_lost_rows_are_refused_with_reasons(tmp_path: Path, make_run: MakeRun) -> None:
    path = _lines(tmp_path / "x.jsonl", GOOD, b"{", b"{", {**GOOD, "output": ""})
    message = r"data: 3 of 4 rows \(75.0%\) can't be used, more than data.max_dropped_percent = 50 allows: "
    for _ in range(2):  # also when it comes from the cache
        with pytest.raises(
            StageError, match=message + r"broken JSON: 2 \(x.jsonl:2, x.jsonl:3\); empty field 'output'"
        ):
            prepare(*make_run(path, max_dropped_percent=50))
    assert len(prepare(*make_run(path, max_dropped_percent=75))) == 1


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("x.json", json.dumps([GOOD] * 9, indent=0).encode()[:-1] + b",\n", "x.json:39"),
        ("x.json", json.dumps([GOOD] * 9, indent=0).encode()[:-9], "x.json:34"),
        ("x.csv", b"instruction,output\n" + b"a,b\n" * 9 + b'"a,b\n' + b"a,b\n" * 9, "x.csv:11"),
        ("x.jsonl.gz", gzip.compress(json.dumps(GOOD).encode() + b"\n", mtime=0)[:-4], "x.jsonl.gz:2"),
    ],
)
@pytest.mark.parametrize("source", [{}, {"count": 2}])
def test_a_file_that_ends_early_is_refused_unless_any_loss_is_allowed(
    tmp_path: Path, make_run: MakeRun, name: str, content: bytes, where: str, source: dict[str, Any]
) -> None:
    (tmp_path / name).write_bytes(content)
    for _ in range(2):  # also when it comes from the cache
        with pytest.raises(
            StageError, match=rf"can't be read to their end.*: 1 \({where}\); mend them, or set data.max"
        ):
            prepare(*make_run(tmp_path / name, source=source, max_dropped_percent=99.9))
    (ended,) = prepare(*make_run(tmp_path / name, source=source)).manifest["ended_early"].values()
    assert ended["examples"] == [where]


def test_nothing_left_is_an_error(tmp_path: Path, make_run: MakeRun) -> None:
    path = _lines(tmp_path / "x.jsonl", {**GOOD, "output": ""}, {"instruction": "x"})
    with pytest.raises(UserError, match="none of the 2 rows can be used"):
        prepare(*make_run(path, source={"form": "alpaca"}))
    with pytest.raises(UserError, match=r"no row can be read; the first, at line 1: broken JSON"):
        prepare(*make_run(_lines(tmp_path / "y.jsonl", b"{", b"{")))


def test_no_data_section(make_run: MakeRun) -> None:
    config, folder = make_run(DATA / "alpaca.json")
    with pytest.raises(UserError, match="data is missing"):
        prepare(config.model_copy(update={"data": None}), folder)


def test_reuse_is_said(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    first = prepare(*make_run(DATA / "alpaca.json"))
    assert "written to" in capsys.readouterr().err
    second = prepare(*make_run(DATA / "alpaca.json"))
    assert "reused from" in capsys.readouterr().err
    assert list(first.rows()) == list(second.rows())


def test_files_that_are_not_read_are_said(
    tmp_path: Path, make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    for name in ("a.jsonl", "b.jsonl.xz"):
        _lines(tmp_path / "data" / name, GOOD)
    for _ in range(2):  # also when the rows come from the cache
        config, folder = make_run(tmp_path / "data" / "*")
        prepare(config, folder)
        assert f"{tmp_path}/data/*: not read, the ending tells no form: b.jsonl.xz" in capsys.readouterr().err
        assert read_json(folder.prepare_manifest)["skipped"] == {"*": ["b.jsonl.xz"]}


def test_key_does_not_depend_on_where_things_lie(tmp_path: Path, make_run: MakeRun) -> None:
    key = prepare(*make_run(DATA / "alpaca.json")).key
    (tmp_path / "alpaca.json").write_bytes((DATA / "alpaca.json").read_bytes())
    moved = tmp_path / "tokenizer"
    moved.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (moved / name).write_bytes((STORIES / name).read_bytes())
    other = make_run(tmp_path / "alpaca.json", model=moved, runs="elsewhere", max_dropped_percent=99)
    assert prepare(*other).key == key


def test_key_depends_on_all_that_matters(
    tmp_path: Path, make_run: MakeRun, tokenizers: dict[str, PreTrainedTokenizerFast], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.json").write_text(json.dumps([GOOD]))
    tokenizers["byte_bpe"].save_pretrained(tmp_path / "bpe")
    (tmp_path / "bpe" / "config.json").write_text('{"model_type": "llama"}')
    bpe = {"model": tmp_path / "bpe"}
    changes: list[dict[str, Any]] = [
        {}, {"max_tokens": 399}, bpe, {"template": "chat", **bpe}, {"source": {"limit": 1}},
        {"source": {"columns": {"input": "note"}}}, {"source": {"form": "alpaca"}},
    ]  # fmt: skip
    runs = [make_run(tmp_path / "x.json", **change) for change in changes]
    keys = [prepare(*run).key for run in runs]
    (tmp_path / "x.json").write_text(json.dumps([GOOD, GOOD]))
    keys.append(prepare(*runs[0]).key)
    monkeypatch.setattr("pipeline.prepare.paper.PROMPT", "Q: {body}\n\nAnswer:")
    keys.append(prepare(*runs[0]).key)
    assert len(set(keys)) == len(keys)


def test_tokenizer_hash_ignores_padding_but_not_special_tokens(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    tokenizer = tokenizers["byte_bpe"]
    before = tokenizer_hash(tokenizer)
    tokenizer(["a", "a b"], padding=True, truncation=True, max_length=2)
    assert tokenizer_hash(tokenizer) == before
    changed = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, eos_token="<|im_end|>")
    assert tokenizer_hash(changed) != before


@pytest.mark.parametrize("damage", ["no manifest", "torn manifest", "torn rows", "changed rows", "no rejects"])
def test_damaged_cache_is_rebuilt(make_run: MakeRun, damage: str) -> None:
    first = prepare(*make_run(DATA / "alpaca.json"))
    expected = list(first.rows())
    file = (
        first.path / {"manifest": "manifest.json", "rows": "rows.arrow", "rejects": "rejects.jsonl"}[damage.split()[1]]
    )
    content = file.read_bytes()
    if damage.startswith("no"):
        file.unlink()
    else:
        middle = len(content) // 2
        kept = content[:middle] if "torn" in damage else content[:middle] + b"\xff" + content[middle + 1 :]
        file.write_bytes(kept)
    assert list(prepare(*make_run(DATA / "alpaca.json")).rows()) == expected
    assert file.read_bytes() == content


def _start(config_file: Path, **environment: str) -> subprocess.Popen[str]:
    code = (
        "import sys, hashlib; from pipeline.config import load_config; from pipeline.prepare import prepare;"
        "from pipeline.run_folder import RunFolder; config = load_config(sys.argv[1]);"
        "prepared = prepare(config, RunFolder.of(config));"
        "print(prepared.key, hashlib.sha256(repr(list(prepared.rows())).encode()).hexdigest())"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(config_file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=config_file.parent, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


def test_several_processes_get_equal_whole_content(tmp_path: Path, make_run: MakeRun) -> None:
    config, _ = make_run(DATA / "alpaca.json", DATA / "commonsense_qa_train.jsonl")
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    processes = [_start(tmp_path / "run.yaml", PYTHONHASHSEED=str(seed)) for seed in range(2)]
    outputs = [process.communicate(timeout=400) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert len({output for output, _ in outputs}) == 1
    assert len(list((tmp_path / "cache" / "prepared").iterdir())) == 1


def test_losing_the_race_keeps_the_winner(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without locks, another process publishes between our look into the cache and our own publication."""
    original, winner = stage._write, []

    def race(*arguments: Any) -> dict[str, Any]:
        if not winner:
            winner.append(None)
            winner[0] = prepare(*make_run(DATA / "alpaca.json"))
        return original(*arguments)

    monkeypatch.setattr(stage, "_write", race)
    monkeypatch.setattr("pipeline.prepare.locks._opened", lambda path: None)
    prepared = prepare(*make_run(DATA / "alpaca.json"))
    assert list(prepared.rows()) == list(winner[0].rows())
    assert (prepared.path / "rows.arrow").stat().st_ino == (winner[0].path / "rows.arrow").stat().st_ino


def test_one_process_writes_and_the_others_wait(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    config, folder = make_run(DATA / "alpaca.json")
    path = Preparation.of(config).path
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with locks.writing(path, print):
            os.write(writer, b"x")
            time.sleep(1)
        os._exit(0)
    os.read(reader, 1)
    started = time.monotonic()
    assert len(prepare(config, folder)) > 100
    assert time.monotonic() - started > 0.5
    os.waitpid(child, 0)
    assert f"{path.name}: process {child} on " in capsys.readouterr().err


def test_killed_half_way_then_rebuilt(tmp_path: Path, make_run: MakeRun) -> None:
    rows = [{"instruction": f"Say {number}.", "output": "word " * 50} for number in range(20_000)]
    config, folder = make_run(_lines(tmp_path / "big.jsonl", *rows))
    cache = tmp_path / "cache" / "prepared"
    child = os.fork()
    if not child:
        prepare(config, folder)
        os._exit(0)
    deadline = time.monotonic() + 60
    while not any(file.stat().st_size > 100_000 for file in cache.glob(".*/rows.arrow")):
        assert time.monotonic() < deadline and os.waitpid(child, os.WNOHANG) == (0, 0)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not [path for path in cache.iterdir() if not path.name.startswith(".")]
    assert not folder.prepare_manifest.exists()
    assert len(prepare(config, RunFolder.of(config))) == 20_000
    assert len(list(cache.iterdir())) == 1, "what the killed process left is gone"


def test_full_disk_leaves_nothing_half_written(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pipeline.prepare.cache.Writer.put", full)
    config, folder = make_run(DATA / "alpaca.json")
    with pytest.raises(StageError, match="No space left on device"):
        prepare(config, folder)
    assert not list((config.paths.cache / "prepared").iterdir())
