"""Small real runs that the training tests share: the 260K-parameter Llama on rows of unequal length."""

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pipeline.config import RunConfig, parse_config, signature
from pipeline.model import DualBranch, build_model
from pipeline.run_folder import RunFolder
from pipeline.train.checkpoint import Checkpoints
from pipeline.train.loop import TrainingLoop
from pipeline.train.share import Packing, Share
from pipeline.train.validation import Validation

STORIES = Path(__file__).parents[1] / "fixtures" / "stories260K"


@dataclass(frozen=True)
class Sample:
    id: str
    input_ids: list[int]
    prompt_length: int
    segments: tuple[int, ...] = ()
    turns: tuple[int, ...] = ()


class Samples(list):
    """Rows as the preparation stage would hand them over."""

    key = "prepared-key"
    manifest = {"template_hash": "template-hash"}


def samples(count: int, seed: int = 0, turns: int = 0) -> Samples:
    """Prompts of 1 to 9 and answers of 1 to 12 tokens; the first prompt is empty but for the opening token.

    Args:
        turns: further turns that a sample has at most; every third has none.
    """
    source = random.Random(seed)
    lengths = [(1 if index == 0 else source.randint(1, 9), source.randint(1, 12)) for index in range(count)]
    rows = Samples(
        Sample(f"row-{index}", [1, *(source.randrange(3, 500) for _ in range(prompt + answer - 1))], prompt)
        for index, (prompt, answer) in enumerate(lengths)
    )
    return Samples(_continued(row, min(index % 3, turns), source) for index, row in enumerate(rows))


def _continued(row: Sample, turns: int, source: random.Random) -> Sample:
    """The sample with further turns, of prompts of 1 to 4 and answers of 1 to 5 tokens."""
    ids, places = list(row.input_ids), list(row.turns)
    for _ in range(turns):
        prompt, answer = source.randint(1, 4), source.randint(1, 5)
        places += [len(ids), len(ids) + prompt]
        ids += [source.randrange(3, 500) for _ in range(prompt + answer)]
    return replace(row, input_ids=ids, turns=tuple(places))


def run_config(runs: Path, tuning: dict[str, Any] | None = None, **training: Any) -> RunConfig:
    """Bitune with LoRA and dropout, in float32; 3 batches of 9 rows an epoch."""
    values = {
        "model": {"name": str(STORIES), "precision": "fp32"},
        "method": "bitune",
        "tuning": {"kind": "lora", "rank": 4, "alpha": 8, "dropout": 0.1} | (tuning or {}),
        "data": {"sources": [{"path": "rows.jsonl"}]},
        "training": {
            "batch_size": 4,
            "micro_batch_size": 2,
            "epochs": 3,
            "learning_rate": 1e-2,
            "checkpoint_every": 2,
            "trackers": [],
        }
        | training,
        "paths": {"runs": str(runs)},
    }
    return parse_config(values, "test")


ROWS = 9
LONG_RUN: dict[str, Any] = {"epochs": 6, "checkpoint_every": 3, "zero": {"stage": 3}}
"""A run under ZeRO-3 that can be stopped half-way."""
SMALLEST_SWAP = 4096
"""Bytes: DeepSpeed leaves what is below 1 MiB in memory, which would be all of a small model."""


def rank_config(
    runs: Path,
    stage: int,
    kind: str,
    method: str | dict[str, Any],
    precision: str = "fp32",
    dropout: float = 0.0,
    checkpointing: bool = False,
    places: tuple[str, str] = ("none", "none"),
    rank: int = 4,
    **training: Any,
) -> RunConfig:
    """The same for several processes: nothing small enough to stay whole, batches that don't divide evenly."""
    zero: dict[str, Any] = {"stage": stage}
    if stage == 3:
        zero |= {"offload_optimizer": places[0], "offload_parameters": places[1]}
        sizes = {"stage3_param_persistence_threshold": 0}
        sizes |= {} if places == ("none", "none") else {"sub_group_size": 20_000}  # gradient norms add up by these
        zero["deepspeed"] = {"zero_optimization": sizes}
    elif stage:
        zero["offload_optimizer"] = places[0]
    if "nvme" in places and stage:
        zero["nvme_path"] = str(runs.parent)
        zero["deepspeed"]["aio"] = {"block_size": SMALLEST_SWAP}
    options = {"batch_size": 5, "micro_batch_size": 1, "epochs": 20, "learning_rate": 1e-3, "zero": zero}
    config = run_config(runs, {"kind": kind, "dropout": dropout, "rank": rank}, **options | training)
    model = config.model.model_copy(update={"gradient_checkpointing": checkpointing, "precision": precision})
    return config.model_copy(update={"method": config.method.model_validate(method), "model": model})


def make_model(config: RunConfig) -> DualBranch:
    return build_model(config.model, config.method, config.tuning, config.seed)


def make_loop(config: RunConfig, rows: Samples) -> TrainingLoop:
    folder = RunFolder.of(config)
    identity = {"signature": signature(config), "prepared_key": rows.key}
    checkpoints = Checkpoints(folder.checkpoints, identity, config.training.keep_checkpoints)
    return TrainingLoop(config, folder, make_model(config), rows, checkpoints)


def share(rows: Samples, size: int) -> Share:
    """All rows as one update of this process, in micro-batches of `size`."""
    return Share.of(rows, Packing(size, None, branches=2))


def run_loop(config: RunConfig, rows: Samples) -> TrainingLoop:
    """Start or go on, to the end."""
    loop = make_loop(config, rows)
    loop.resume()
    loop.run()
    return loop


def weights(loop: TrainingLoop) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in loop.state.parameters.items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def validated_losses(loop: TrainingLoop) -> list[float]:
    """Validation on 9 other rows before, between and after three updates, and their losses."""
    validation = Validation(loop.engine, samples(ROWS, seed=3), loop.packing, loop.training.batch_size)
    found = []
    for _ in range(3):
        found += [validation.loss() or 0.0, loop._update()["loss"]]
    return [*found, validation.loss() or 0.0]


TIMES = ("tokens_per_second", "model_flops_utilisation", "wall_seconds", "peak_memory_bytes")


def numbers(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Metrics without what depends on the machine's mood."""
    return [{key: value for key, value in row.items() if key not in TIMES} for row in metrics]
