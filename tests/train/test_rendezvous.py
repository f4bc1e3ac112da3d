"""Where the ranks of a job meet."""

import json
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path

import pytest

from pipeline.train.rendezvous import FIRST, PORTS, RENDEZVOUS, candidates, meet


def variables(rank: int, count: int = 2) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}


def test_every_port_is_tried_once_and_starts_differ() -> None:
    assert sorted(candidates("17-0.json")) == list(range(FIRST, FIRST + PORTS))
    firsts = {next(candidates(f"{job}-{restart}.json")) for job in range(40) for restart in range(3)}
    assert len(firsts) > 110  # of 120; those that are equal are told apart by binding


def test_others_find_rank_0_through_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RENDEZVOUS, str(tmp_path / "train" / "rendezvous" / "17-0.json"))
    found: list[bytes] = []

    def second() -> None:
        store = meet(variables(1))
        store.set("from", "rank 1")
        found.append(store.get("answer"))

    thread = threading.Thread(target=second)
    thread.start()  # it waits for the announcement
    store = meet(variables(0))
    assert store.get("from") == b"rank 1"
    store.set("answer", "rank 0")
    thread.join(30)
    assert found == [b"rank 0"]


def test_two_starts_with_the_same_first_port_do_not_share_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As two runs on one node: another process holds the port that this one would take first."""
    holder = (
        "import socket, sys; s = socket.socket(socket.AF_INET6); s.setsockopt(41, 26, 0); "
        "s.bind(('::', int(sys.argv[1]))); s.listen(); print('held', flush=True); sys.stdin.read()"
    )
    first, second = islice(candidates("17-0.json"), 2)
    command = [sys.executable, "-c", holder, str(first)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        stores = []
        for run in ("a", "b"):
            file = tmp_path / run / "17-0.json"
            monkeypatch.setenv(RENDEZVOUS, str(file))
            stores.append(meet(variables(0, count=1)))
            assert json.loads(file.read_text())["port"] == stores[-1].port
        other.communicate()
    assert stores[0].port == second
    assert stores[0].port != stores[1].port != first
