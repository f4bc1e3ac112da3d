"""Several processes and shares make the same rows, bit for bit, as one process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prepare_inputs import DATA, ROOT, MakeRun

from pipeline.config import RunConfig, to_yaml
from pipeline.errors import StageError, UserError
from pipeline.files import read_json
from pipeline.prepare import PreparedData, prepare, prepare_share
from pipeline.prepare.pool import in_order
from pipeline.prepare.preparation import Preparation
from pipeline.prepare.shares import Shares
from pipeline.run_folder import RunFolder
from pipeline.share import Share

FILES = ("rows.arrow", "rejects.jsonl", "manifest.json")
Run = tuple[RunConfig, RunFolder]


@pytest.fixture
def mixed(tmp_path: Path, make_run: MakeRun) -> Run:
    """Two sources of several chunks, good rows and bad."""
    lines = [json.dumps({"instruction": f"Say {n}.", "output": "" if n % 7 == 0 else "word " * (n % 150 + 1)})
             for n in range(1700)]  # fmt: skip
    (tmp_path / "x.jsonl").write_text("\n".join([*lines, "{"]))
    return make_run(tmp_path / "x.jsonl", DATA / "commonsense_qa_train.jsonl", max_tokens=200)


def _contents(prepared: PreparedData) -> list[bytes]:
    return [(prepared.path / name).read_bytes() for name in FILES]


def _elsewhere(run: Run, name: str) -> Run:
    """The same run with a cache of its own."""
    config = run[0]
    paths = config.paths.model_copy(update={"cache": config.paths.cache / name})
    return config.model_copy(update={"paths": paths}), run[1]


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_make_the_same_files(mixed: Run, processes: int) -> None:
    one = prepare(*_elsewhere(mixed, "one"))
    assert one.manifest["rows"]["rejected"] > 200 < one.manifest["rows"]["dropped"]
    assert _contents(prepare(*_elsewhere(mixed, "several"), processes=processes)) == _contents(one)


@pytest.mark.parametrize("count", [1, 2, 5, 9])  # 9: more shares than chunks
def test_shares_join_to_the_same_files(mixed: Run, count: int) -> None:
    one, run = prepare(*_elsewhere(mixed, "one")), _elsewhere(mixed, "shares")
    for number in range(count, 0, -1):
        waiting = prepare_share(*run, Share(number, count))
        assert bool(waiting) == (number > 1)
    again = prepare(*run)
    assert _contents(again) == _contents(one)
    assert [path.name for path in again.path.parent.iterdir()] == [again.key], "the shares are gone"
    assert prepare_share(*run, Share(1, count)) == []


def test_a_final_call_joins_shares_that_ended_together(mixed: Run) -> None:
    preparation = Preparation.of(mixed[0])
    for share in (Share(1, 2), Share(2, 2)):
        Shares(preparation.path).write(share, preparation.pieces(preparation.opened(), 1, share))
    joined = _contents(prepare(*mixed))
    assert joined == _contents(prepare(*_elsewhere(mixed, "one")))


def test_an_incomplete_number_of_shares_is_not_taken_for_all(mixed: Run) -> None:
    prepare_share(*mixed, Share(1, 2))
    prepare_share(*mixed, Share(2, 3))
    assert _contents(prepare(*mixed)) == _contents(prepare(*_elsewhere(mixed, "one")))


def test_share_of_another_form_is_refused() -> None:
    with pytest.raises(UserError, match="share 3/2"):
        Share(3, 2)


def _die(item: int) -> int:
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_a_dead_worker_is_an_error_and_order_is_kept() -> None:
    assert list(in_order(lambda item: item * 2, range(50), 2)) == list(range(0, 100, 2))
    with pytest.raises(StageError, match="a process that prepares rows died"):
        list(in_order(_die, range(10), 2))


def test_no_more_is_read_than_a_few_items_ahead() -> None:
    read: list[int] = []
    results = in_order(lambda item: item, (read.append(n) or n for n in range(1000)), 2)
    for number in range(5):
        assert next(results) == number
    assert len(read) <= 12
    results.close()


@pytest.mark.slow
def test_killed_with_its_workers_then_rebuilt(tmp_path: Path, make_run: MakeRun) -> None:
    rows = [json.dumps({"instruction": f"Say {n}.", "output": "word " * 50}) for n in range(20_000)]
    (tmp_path / "big.jsonl").write_text("\n".join(rows))
    config, folder = make_run(tmp_path / "big.jsonl")
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    command = [sys.executable, "-m", "pipeline.cli", "prepare", "run.yaml", "--num-proc", "2"]
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    cache = tmp_path / "cache" / "prepared"
    deadline = time.monotonic() + 60
    while not any(file.stat().st_size > 100_000 for file in cache.glob(".*/rows.arrow")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert len(prepare(config, folder)) == 20_000, "the workers have let go of the lock"
    assert len(list(cache.iterdir())) == 1


@pytest.mark.slow
def test_shares_on_the_command_line(tmp_path: Path, make_run: MakeRun) -> None:
    config, folder = make_run(DATA / "alpaca.json")
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    command = [sys.executable, "-m", "pipeline.cli", "prepare", "run.yaml"]
    said = []
    for share in ("1/2", "2/2"):
        done = subprocess.run([*command, "--share", share], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
                              capture_output=True, text=True, timeout=120)  # fmt: skip
        assert done.returncode == 0, done.stderr
        said.append(done.stderr)
    assert "prepare 1/2: done; the prepared rows must wait for other shares" in said[0]
    assert "prepare 2/2: done, and with it all shares" in said[1]
    assert read_json(folder.prepare_manifest)["rows"]["kept"] > 100
