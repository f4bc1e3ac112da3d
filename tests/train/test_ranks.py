"""Runs of two processes (gloo, real DeepSpeed) against runs of one. The processes are started once, for all cases."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_runs import estimated, name, start, total
from test_stage_train import QUESTIONS, config_of, templated
from train_runs import LONG_RUN, ROWS, STORIES, make_loop, rank_config, samples, validated_losses
from transformers import AutoTokenizer

from pipeline.config import RunConfig, to_yaml
from pipeline.errors import StageError
from pipeline.model import DualBranch
from pipeline.run_folder import RunFolder
from pipeline.train import train
from pipeline.train.checkpoint import Checkpoints
from pipeline.train.memory import held_bytes
from pipeline.train.metrics import read_metrics
from pipeline.train.share import Share

pytestmark = pytest.mark.slow

LOSSES: list[dict[str, Any]] = [
    {"stage": 0, "kind": "full", "method": "bitune", "steps": 8, "loss_reduction": "token"},
    {"stage": 0, "kind": "lora", "method": "bitune", "steps": 3, "micro_batch_tokens": 40},
    {"stage": 1, "kind": "lora", "method": "bitune", "steps": 4},
    {"stage": 2, "kind": "full", "method": "causal", "steps": 4, "loss_reduction": "token"},
    {"stage": 3, "kind": "full", "method": "bitune", "steps": 20},
    {"stage": 3, "kind": "lora", "method": "bitune", "steps": 20, "micro_batch_tokens": 40},
    {"stage": 3, "kind": "lora", "method": "causal", "steps": 2, "places": ["cpu", "cpu"]},
    {"stage": 3, "kind": "full", "method": "bitune", "steps": 2, "places": ["cpu", "cpu"]},
    {"stage": 1, "kind": "lora", "method": "bitune", "steps": 2, "places": ["cpu", "none"]},
    {"stage": 2, "kind": "full", "method": "bitune", "steps": 2, "places": ["cpu", "none"]},
    {"stage": 3, "kind": "full", "method": {"name": "bitune", "embeddings": "separate"}, "steps": 3},
    {"stage": 3, "kind": "full", "method": "bitune", "steps": 4, "precision": "bf16"},
    {"stage": 2, "kind": "lora", "method": "bitune", "steps": 4, "precision": "bf16"},
    {"stage": 3, "kind": "dora", "method": "bitune", "steps": 2},
    {"stage": 3, "kind": "ia3", "method": "bitune", "steps": 2},
    {"stage": 3, "kind": "vera", "method": "bitune", "steps": 2},
    {"stage": 3, "kind": "full", "method": "causal", "steps": 2},
    {"stage": 3, "kind": "lora", "method": "causal", "steps": 2, "rank": 16},
    {"stage": 3, "kind": "full", "method": "shared_weights", "steps": 2, "checkpointing": True},
    {"stage": 3, "kind": "lora", "method": "no_mixing", "steps": 2, "checkpointing": True},
    {"stage": 0, "kind": "lora", "method": "bitune", "steps": 4, "turns": 2},
    {"stage": 1, "kind": "full", "method": "bitune", "steps": 4, "turns": 2},
]
MOVED: list[dict[str, Any]] = [
    {"stage": 3, "kind": "full"},
    {"stage": 3, "kind": "lora"},
    {"stage": 3, "kind": "lora", "rank": 16},
    {"stage": 3, "kind": "dora"},
    {"stage": 3, "kind": "ia3"},
    {"stage": 3, "kind": "vera"},
]
RESUMED: list[dict[str, Any]] = [
    {"stage": 0, "kind": "lora"},
    {"stage": 2, "kind": "full"},
    {"stage": 3, "kind": "full"},
    {"stage": 0, "kind": "lora", "turns": 2},
]
VALIDATED = [{"stage": 0}, {"stage": 2}, {"stage": 3}]
EXPORTED = [{"stage": 3, "kind": "full"}, {"stage": 3, "kind": "vera"}]
SPOILT = [{"stage": 0}, {"stage": 3}]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cases = [
        *(name("losses", case) for case in LOSSES),
        *(name("resumed", case) for case in RESUMED),
        *(name("validated", case) for case in VALIDATED),
        *(name("exported", case) for case in EXPORTED),
        *(name("spoilt", case) for case in SPOILT),
        "unwritable",
        "broken_off",
        "templated",
        "trained",
    ]
    return start(tmp_path_factory.mktemp("two"), 2, cases, timeout=900)


def alone(folder: Path, kind: str, method: str, steps: int, turns: int = 0, **options: Any) -> dict[str, Any]:
    loop = make_loop(rank_config(folder, 0, kind, method, **options), samples(ROWS, turns=turns))
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
    assert found["losses"] == pytest.approx(expected["losses"], rel=2e-3 if "precision" in case else 1e-5)
    assert found["rates"] == expected["rates"]
    assert found["parameters"] == expected["parameters"]


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return start(tmp_path_factory.mktemp("moved"), 2, [name("moved", case) for case in MOVED], timeout=600)


@pytest.mark.parametrize("case", MOVED, ids=lambda case: "-".join(map(str, case.values())))
def test_exactly_the_trained_tensors_change(moved: dict[str, Any], case: dict[str, Any]) -> None:
    found = moved[name("moved", case)]
    assert found["still"] == found["other"] == []
    assert found["trained"] == {"full": 96, "lora": 140, "dora": 205, "ia3": 75, "vera": 140}[case["kind"]]


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_stage_3_shares_everything_out(two: dict[str, Any], kind: str, tmp_path: Path) -> None:
    case = next(case for case in LOSSES if case["stage"] == 3 and case["kind"] == kind)
    whole = total(alone(tmp_path, kind, case["method"], steps=1)["held"])
    for held in two[name("losses", case)]["held"]:
        assert total(held) <= 1.05 * whole / 2


SHARDED = [case for case in LOSSES if case["stage"] and "turns" not in case and case["kind"] in ("full", "lora")]


@pytest.mark.parametrize("case", SHARDED, ids=lambda case: "-".join(map(str, case.values())))
def test_estimate_is_what_is_held(two: dict[str, Any], case: dict[str, Any], tmp_path: Path) -> None:
    parts = {key: case[key] for key in ("stage", "kind", "method", "places", "precision", "rank") if key in case}
    expected = estimated(tmp_path, processes=2, **parts)
    for held in two[name("losses", case)]["held"]:
        assert total(held) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("kind", ["full", "lora"])
@pytest.mark.parametrize("method", ["causal", "bitune"])
def test_estimate_is_what_one_process_holds(kind: str, method: str, tmp_path: Path) -> None:
    held = alone(tmp_path, kind, method, steps=1)["held"]
    assert total(held) == pytest.approx(estimated(tmp_path, 0, kind, method, processes=1), rel=0.1)


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


@pytest.mark.parametrize("case", VALIDATED, ids=lambda case: str(case["stage"]))
def test_validation_on_two_processes_equals_one(two: dict[str, Any], case: dict[str, Any], tmp_path: Path) -> None:
    """9 rows are 9 rows, and training goes on as if nothing had been between."""
    found = two[name("validated", case)]
    assert found["alike"]
    expected = validated_losses(make_loop(rank_config(tmp_path, 0, "lora", "bitune"), samples(ROWS)))
    assert found["losses"] == pytest.approx(expected, rel=1e-5)


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


def test_ranks_have_the_same_rows_in_a_template_of_ones_own(two: dict[str, Any], tmp_path: Path) -> None:
    """In processes of their own, so that nothing that differs between those is in the key; and trained as by one."""
    (key, rows), other = two["templated"]["prepared"]
    assert [key, rows] == other
    tokenizer = AutoTokenizer.from_pretrained(STORIES)
    assert [tokenizer.decode(ids[start:-1]) for ids, start in rows] == [f"=> {answer}" for _, answer in QUESTIONS]
    config = templated(tmp_path / "runs")
    alone, together = train(config, RunFolder.of(config)), two["templated"]["result"]
    assert (alone["prepared_key"], together["prepared_key"], together["processes"]) == (key, key, 2)
    assert together["final_loss"] == pytest.approx(alone["final_loss"], rel=1e-4)


def test_checkpoint_that_one_rank_cannot_write_is_none(two: dict[str, Any]) -> None:
    assert two["unwritable"] == {"messages": ["somewhere: No space left on device"] * 2, "left": []}


def test_signal_to_a_waiting_rank_breaks_off_the_work_of_another(two: dict[str, Any]) -> None:
    found = two["broken_off"]
    assert found["found"] == [["stopped while data were prepared: the same command goes on", 128 + signal.SIGTERM]] * 2
    assert found["seconds"] < 60  # on a quiet machine less than 10


class Command:
    """The command, as a user would start it, and the processes that it starts."""

    def __init__(self, config: RunConfig, *options: str) -> None:
        self.folder = RunFolder.of(config)
        self.folder.root.parent.mkdir(parents=True, exist_ok=True)
        file = self.folder.root.parent / "config.yaml"
        file.write_text(to_yaml(config))
        command = [sys.executable, "-m", "pipeline.cli", "train", str(file), "--processes", "2", *options]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def ranks(self) -> list[int]:
        parent = self.process.pid
        text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        return [int(pid) for pid in text.split()]

    def send(self, number: int, rank: int, after: int) -> None:
        """The signal to one rank, once `after` updates are logged."""
        while len(read_metrics(self.folder.metrics)) < after and self.process.poll() is None:
            time.sleep(0.02)
        os.kill(self.ranks()[rank], number)

    def end(self, timeout: float = 600) -> tuple[int, str]:
        text, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, text


def newest(folder: RunFolder) -> int:
    checkpoint, _ = Checkpoints(folder.checkpoints, {}, 1).latest()
    return checkpoint.step if checkpoint else 0


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds child processes in /proc")
def test_stopped_killed_and_gone_on_equals_straight(two: dict[str, Any], tmp_path: Path) -> None:
    """`dualtune train --processes 2` under ZeRO-3; the last start goes on from a checkpoint that was put aside."""
    straight = RunFolder(Path(two["trained"]))
    config = config_of(tmp_path / "stopped", "full", **LONG_RUN)

    stopped = Command(config)
    stopped.send(signal.SIGTERM, rank=1, after=5)
    sent = time.monotonic()
    status, text = stopped.end()
    assert status == 128 + signal.SIGTERM, text
    assert time.monotonic() - sent < 60  # on a quiet machine less than 10
    logged = len(read_metrics(stopped.folder.metrics))
    assert newest(stopped.folder) == logged >= 5
    assert f"stopped after step {logged} of 18" in text
    assert "FutureWarning" not in text
    aside = shutil.copytree(stopped.folder.checkpoints / f"step-{logged:06d}", tmp_path / f"step-{logged:06d}")

    with pytest.raises(StageError, match="written with processes 2, this run has 1: go on with 2, or remove the ch"):
        train(config_of(tmp_path / "stopped", "full", **LONG_RUN | {"zero": {"stage": 0}}), stopped.folder)

    killed = Command(config)
    killed.send(signal.SIGKILL, rank=0, after=logged + 4)
    status, text = killed.end()
    assert status == 1, text
    assert "a process of the run was killed by SIGKILL" in text
    assert newest(killed.folder) >= logged

    status, text = Command(config, "--resume", str(aside)).end()
    assert status == 0, text
    assert f"resumed after step {logged} of 18" in text
    for file in ("model.safetensors", "prompt_branch.safetensors"):
        assert (stopped.folder.model / file).read_bytes() == (straight.model / file).read_bytes()
    losses = [[row["loss"] for row in read_metrics(folder.metrics)] for folder in (stopped.folder, straight)]
    assert losses[0] == losses[1]
    assert json.loads(stopped.folder.train_result.read_text())["processes"] == 2


FOUR: list[dict[str, Any]] = [
    {"stage": 3, "kind": "full", "method": "bitune", "steps": 20},
    {"stage": 3, "kind": "lora", "method": "bitune", "steps": 20, "micro_batch_tokens": 40},
]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return start(tmp_path_factory.mktemp("four"), 4, [name("losses", case) for case in FOUR], timeout=900)


@pytest.mark.parametrize("case", FOUR, ids=lambda case: case["kind"])
def test_four_processes_equal_one(four: dict[str, Any], case: dict[str, Any], tmp_path: Path) -> None:
    """Batches of 5 and 4 rows on 4 processes: one of them has two rows, or one has none."""
    found = four[name("losses", case)]
    expected = alone(tmp_path, **{key: value for key, value in case.items() if key != "stage"})
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert all(total(held) <= 1.05 * total(expected["held"]) / 4 for held in found["held"])
