"""Runs of two processes (gloo, real DeepSpeed) against runs of one. The processes are started once, for all cases."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from train_runs import ROWS, make_loop, rank_config, samples

from pipeline.model import DualBranch
from pipeline.train.memory import held_bytes
from pipeline.train.share import Share

pytestmark = pytest.mark.slow

LOSSES: list[dict[str, Any]] = [
    {"stage": 0, "kind": "full", "method": "bitune", "steps": 20, "loss_reduction": "token"},
    {"stage": 0, "kind": "lora", "method": "bitune", "steps": 3, "micro_batch_tokens": 40},
    {"stage": 1, "kind": "lora", "method": "bitune", "steps": 4},
    {"stage": 2, "kind": "full", "method": "causal", "steps": 4, "loss_reduction": "token"},
    {"stage": 3, "kind": "full", "method": "bitune", "steps": 20},
    {"stage": 3, "kind": "lora", "method": "bitune", "steps": 20, "micro_batch_tokens": 40},
    {"stage": 3, "kind": "lora", "method": "causal", "steps": 2},
    {"stage": 3, "kind": "dora", "method": "bitune", "steps": 3},
    {"stage": 3, "kind": "ia3", "method": "bitune", "steps": 3},
    {"stage": 3, "kind": "vera", "method": "bitune", "steps": 3},
    {"stage": 3, "kind": "full", "method": "shared_weights", "steps": 2, "checkpointing": True},
    {"stage": 3, "kind": "lora", "method": "no_mixing", "steps": 2, "checkpointing": True},
]
RESUMED = [{"stage": 0, "kind": "lora"}, {"stage": 2, "kind": "full"}, {"stage": 3, "kind": "full"}]
EXPORTED = [{"stage": 1, "kind": "full"}, {"stage": 3, "kind": "full"}, {"stage": 3, "kind": "vera"}]
SPOILT = [{"stage": 0}, {"stage": 3}]


def name(case: str, arguments: dict[str, Any]) -> str:
    return f"{case}({json.dumps(arguments)})"


def start(folder: Path, count: int, cases: list[str], timeout: float) -> dict[str, Any]:
    """What the cases gave in `count` processes. A hang is a failure."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    here = Path(__file__)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(here.parents[2]), str(here.parent)]),
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    command = [sys.executable, str(here.with_name("ranks_script.py")), str(folder), *cases]
    with (folder / "log.txt").open("w") as log:
        processes = [
            subprocess.Popen(
                command, env={**environment, "RANK": str(r), "LOCAL_RANK": str(r)}, stdout=log, stderr=log
            )
            for r in range(count)
        ]
        try:
            statuses = [process.wait(timeout) for process in processes]
        finally:
            for process in processes:
                process.kill()
    text = (folder / "log.txt").read_text()
    assert statuses == [0] * count, text[-3000:]
    assert "Warning" not in text, text
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cases = [
        *(name("losses", case) for case in LOSSES),
        *(name("resumed", case) for case in RESUMED),
        *(name("exported", case) for case in EXPORTED),
        *(name("spoilt", case) for case in SPOILT),
        "unwritable",
    ]
    return start(tmp_path_factory.mktemp("two"), 2, cases, timeout=300)


def alone(folder: Path, kind: str, method: str, steps: int, **options: Any) -> dict[str, Any]:
    loop = make_loop(rank_config(folder, 0, kind, method, **options), samples(ROWS))
    updates = [loop._update() for _ in range(steps)]
    losses, rates = ([update[key] for update in updates] for key in ("loss", "learning_rate"))
    return {
        "losses": losses, "rates": rates, "held": held_bytes(loop.engine), "parameters": sorted(loop.engine.parameters)
    }  # fmt: skip


@pytest.mark.parametrize("case", LOSSES, ids=lambda case: "-".join(map(str, case.values())))
def test_two_processes_equal_one(two: dict[str, Any], case: dict[str, Any], tmp_path: Path) -> None:
    """9 rows in batches of 5 and 4, the first prompt empty: ranks differ in rows and in micro-batches."""
    found = two[name("losses", case)]
    expected = alone(tmp_path, **{key: value for key, value in case.items() if key != "stage"})
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["rates"] == expected["rates"]
    assert found["parameters"] == expected["parameters"]


def total(held: dict[str, int]) -> int:
    return sum(held.values())


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_stage_3_shares_everything_out(two: dict[str, Any], kind: str, tmp_path: Path) -> None:
    case = next(case for case in LOSSES if case["stage"] == 3 and case["kind"] == kind)
    whole = total(alone(tmp_path, kind, case["method"], steps=1)["held"])
    for held in two[name("losses", case)]["held"]:
        assert total(held) <= 1.05 * whole / 2


def test_lower_stages_share_less_out(two: dict[str, Any], tmp_path: Path) -> None:
    first, second = (next(case for case in LOSSES if case["stage"] == stage) for stage in (1, 2))
    lora = alone(tmp_path, "lora", "bitune", steps=1)["held"]
    held = two[name("losses", first)]["held"][0]
    assert held["optimizer"] < 0.75 * lora["optimizer"] + lora["gradients"]  # float32 weights of this rank's part
    assert held["gradients"] == lora["gradients"]
    full = alone(tmp_path, "full", "causal", steps=1)["held"]
    assert two[name("losses", second)]["held"][0]["gradients"] <= 0.55 * full["gradients"]


@pytest.mark.parametrize("case", RESUMED, ids=lambda case: "-".join(map(str, case.values())))
def test_resumed_equals_straight_bit_by_bit(two: dict[str, Any], case: dict[str, Any]) -> None:
    """With dropout: the random states of both ranks are needed."""
    assert two[name("resumed", case)] == {"equal": [[True, True]] * 2, "step": 6}


@pytest.mark.parametrize("case", EXPORTED, ids=lambda case: "-".join(map(str, case.values())))
def test_export_equals_memory(two: dict[str, Any], case: dict[str, Any], tmp_path: Path) -> None:
    found = two[name("exported", case)]
    model = DualBranch.from_pretrained(found["folder"])
    loop = make_loop(rank_config(tmp_path, 0, case["kind"], "bitune"), samples(ROWS))
    micro = Share.of(samples(ROWS), loop.packing).micro_batches[0]
    with torch.no_grad():
        assert model.losses(micro.batch, micro.labels).tolist() == pytest.approx(found["losses"], rel=1e-5)
    for _ in range(2):
        loop._update()
    for key, tensor in loop.model.trainable().items():
        assert torch.allclose(dict(model.named_parameters())[key], tensor, atol=2e-5), key


@pytest.mark.parametrize("case", SPOILT, ids=lambda case: str(case["stage"]))
def test_nan_on_one_rank_stops_both_with_its_samples(two: dict[str, Any], case: dict[str, Any]) -> None:
    messages = two[name("spoilt", case)]["messages"]
    assert messages == ["step 1: the loss is nan, from the samples row-7, row-2, row-4"] * 2


def test_checkpoint_that_one_rank_cannot_write_is_none(two: dict[str, Any]) -> None:
    assert two["unwritable"] == {"messages": ["somewhere: No space left on device"] * 2, "left": []}


def test_four_processes_equal_one(tmp_path: Path) -> None:
    """Batches of 5 and 4 rows on 4 processes."""
    case = {"stage": 3, "kind": "full", "method": "bitune", "steps": 4}
    found = start(tmp_path, 4, [name("losses", case)], timeout=200)[name("losses", case)]
    expected = alone(tmp_path / "alone", "full", "bitune", steps=4)
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert all(total(held) <= 1.05 * total(expected["held"]) / 4 for held in found["held"])
