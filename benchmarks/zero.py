"""Bytes that each process of a run holds under each ZeRO stage, counted from tensors, and its peak memory.

    .venv/bin/python benchmarks/zero.py --tuning full --processes 2

`shared` is what a process holds, times the number of processes, over what one process holds alone: 1.00 is a perfect
share. RSS is the memory of the whole process between two updates, with libraries and what the allocator keeps; its
peak has activations, gathered layers, DeepSpeed's buckets, and the copies that DeepSpeed makes while it starts.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline.quiet import silence

GIB = 2**30
PARTS = ("parameters", "gradients", "optimizer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/SmolLM2-135M-Instruct")
    parser.add_argument("--method", default="bitune")
    parser.add_argument("--tuning", default="full")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--output", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.output:
        take_part(options)
        return
    alone = start(options, 1, 0)
    table = Table(title=f"{options.model}, {options.method}, {options.tuning}, float32: GiB per process", box=None)
    for column in ("stage", "processes", *PARTS, "held", "shared", "RSS", "peak RSS"):
        table.add_column(column, justify="right")
    add(table, 0, 1, alone, alone)
    for stage in options.stages:
        add(table, stage, options.processes, start(options, options.processes, stage), alone)
    Console(width=120).print(table)


def add(table: Table, stage: int, count: int, found: dict[str, Any], alone: dict[str, Any]) -> None:
    held, whole = (sum(values[part] for part in PARTS) for values in (found, alone))
    numbers = [found[part] / GIB for part in PARTS]
    cells = [*(f"{number:.3f}" for number in numbers), f"{held / GIB:.3f}", f"{held * count / whole:.2f}"]
    table.add_row(str(stage), str(count), *cells, f"{found['now'] / GIB:.2f}", f"{found['peak'] / GIB:.2f}")


def start(options: argparse.Namespace, count: int, stage: int) -> dict[str, Any]:
    """What the process that holds most of `count` holds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    root = str(Path(__file__).resolve().parents[1])
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, __file__, "--output", folder, "--stages", str(stage), "--model", options.model,
            "--method", options.method, "--tuning", options.tuning, "--steps", str(options.steps),
        ]  # fmt: skip
        common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": root}
        processes = [
            subprocess.Popen(command, env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(count)
        ]
        if any([process.wait() for process in processes]):
            raise SystemExit("a process failed")
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text())
        return found


def take_part(options: argparse.Namespace) -> None:
    """One process: a few updates on CommonsenseQA rows, then count."""
    silence()
    import psutil
    import torch
    from train_step import question_rows

    from pipeline.config import parse_config
    from pipeline.model import build_model
    from pipeline.train.engine import Engine
    from pipeline.train.memory import held_bytes
    from pipeline.train.ranks import join
    from pipeline.train.sharded import ShardedEngine, make_sharded_accelerator
    from pipeline.train.share import Packing, Share

    torch.set_num_threads(1)
    stage = options.stages[0]
    config = parse_config(
        {
            "model": {"name": options.model, "precision": "fp32"},
            "method": {"name": options.method},
            "tuning": {"kind": options.tuning},
            "data": {"sources": [{"path": "unused"}]},
            "training": {"batch_size": 8, "micro_batch_size": 2, "zero": {"stage": stage}},
        },
        "benchmark",
    )
    ranks = join(stage > 0)
    accelerator = make_sharded_accelerator(config.training, ranks) if stage else None
    rows = [Row(f"row-{index}", ids, start) for index, (ids, start) in enumerate(question_rows(config.model, 8))]
    model = build_model(config.model, config.method, config.tuning, config.seed)
    engine = (ShardedEngine if stage else Engine)(config, model, options.steps, ranks, accelerator)
    packing = Packing.of(config.training, config.method)
    for _ in range(options.steps):
        engine.update(Share.of(rows, packing, ranks.index, ranks.count))
    found = {**held_bytes(engine), "now": psutil.Process().memory_info().rss, "peak": engine.peak_memory()}
    most = max(ranks.gather(found), key=lambda values: sum(values[part] for part in PARTS))
    if ranks.is_main:
        (Path(options.output) / "found.json").write_text(json.dumps(most))
    ranks.gather(None)
    os._exit(0)


class Row:
    """A prepared row."""

    def __init__(self, name: str, input_ids: list[int], prompt_length: int) -> None:
        self.id, self.input_ids, self.prompt_length = name, input_ids, prompt_length


if __name__ == "__main__":
    main()
