"""What lies in the cache, who uses it, and that nothing in use is removed."""

import json
import os
import signal
from pathlib import Path

import pytest
from prepare_inputs import DATA, MakeRun

from pipeline.cli import main
from pipeline.errors import UserError
from pipeline.prepare import prepare, prepare_share
from pipeline.prepare.entries import entries, removable, remove
from pipeline.prepare.locks import writing
from pipeline.share import Share


def _child(work: object) -> tuple[int, int]:
    """A process that holds something; the reading end of a pipe that says when."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        work(lambda: os.write(writer, b"x"))  # type: ignore[operator]
        os._exit(0)
    os.read(reader, 1)
    return child, reader


def test_entries_tell_rows_runs_and_oddities(tmp_path: Path, make_run: MakeRun) -> None:
    first = prepare(*make_run(DATA / "alpaca.json"))
    second = prepare(*make_run(DATA / "piqa_validation.jsonl", runs="others"))
    prepare_share(*make_run(DATA / "gsm8k_train.jsonl"), Share(1, 2))
    prepared = first.path.parent
    (prepared / f".{first.key}.abc").mkdir()
    (prepared / "ffffffffffffffff").mkdir()
    found = {entry.path.name: entry for entry in entries(tmp_path / "cache", tmp_path / "runs")}
    assert {entry.kind for entry in found.values()} == {"rows", "shares", "left over", "damaged"}
    assert found[first.key].rows == len(first)
    assert found[first.key].size == sum(file.stat().st_size for file in first.path.iterdir())
    assert len(found[first.key].runs) == 1 and found[second.key].runs == ()
    chosen = {entry.path.name for entry in removable(found.values(), [])}
    assert chosen == {second.key, f".{first.key}.abc", "ffffffffffffffff"}
    with pytest.raises(UserError, match="not in the cache: 0123"):
        removable(found.values(), ["0123"])


def test_what_a_live_process_uses_is_kept(tmp_path: Path, make_run: MakeRun) -> None:
    config, folder = make_run(DATA / "alpaca.json")
    path = prepare(config, folder).path

    def use(ready: object) -> None:
        data = prepare(config, folder)
        ready()  # type: ignore[operator]
        signal.pause()
        print(data)

    child, _ = _child(use)
    (entry,) = entries(tmp_path / "cache", tmp_path / "runs")
    assert remove(entry) == "a process uses it"
    assert path.is_dir()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert remove(entry) is None
    assert not list(path.parent.iterdir())
    assert len(prepare(config, folder)) > 100


def test_what_a_live_process_writes_is_kept(tmp_path: Path, make_run: MakeRun) -> None:
    left = tmp_path / "cache" / "prepared" / ".0123456789abcdef.x"
    left.mkdir(parents=True)

    def write(ready: object) -> None:
        with writing(left.with_name("0123456789abcdef"), None):
            ready()  # type: ignore[operator]
            signal.pause()

    child, _ = _child(write)
    (entry,) = entries(tmp_path / "cache", tmp_path / "runs")
    assert remove(entry) == "a process is preparing it"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert remove(entry) is None


def test_commands(tmp_path: Path, make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    key = prepare(*make_run(DATA / "alpaca.json")).key
    places = ["--cache", str(tmp_path / "cache"), "--runs", str(tmp_path / "runs")]
    assert main(["data", "list", *places]) == 0
    assert key in capsys.readouterr().out
    assert main(["data", "clean", *places]) == 0
    assert "nothing to remove" in capsys.readouterr().err
    assert main(["data", "clean", key, *places]) == 2  # no terminal to ask in
    assert main(["data", "clean", key, "--yes", *places]) == 0
    assert f"{key}: removed" in capsys.readouterr().err
    assert json.loads((next((tmp_path / "runs").iterdir()) / "prepare.json").read_text())["key"] == key
