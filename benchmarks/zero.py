"""Bytes that each process of a run holds under each ZeRO stage, counted from tensors, and its peak memory.

    .venv/bin/python benchmarks/zero.py --tuning full --processes 2 4

`shared` is what a process holds, times the number of processes, over what one process holds alone: 1.00 is a perfect
share. The second table says where the rest of a process's memory (RSS) comes from, each a difference between two
readings: libraries (imported, processes connected, nothing built); model (as it is built); start (the peak while the
engine is made, above what is there afterwards: copies that DeepSpeed makes); engine (what stays of that: flat buffers,
master weights); update (the peak of the updates, above what was there before: activations, gathered layers, gradients
and optimizer states that come to stay, buckets). `buckets` is the part of it that the configuration sets.
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

MIB = 2**20
PARTS = ("parameters", "gradients", "optimizer")
CAUSES = ("libraries", "model", "start", "engine", "update")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/SmolLM2-135M-Instruct")
    parser.add_argument("--method", default="bitune")
    parser.add_argument("--tuning", default="full")
    parser.add_argument("--processes", type=int, nargs="+", default=[2])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--output", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.output:
        take_part(options)
        return
    runs = [(0, 1), *((stage, count) for count in options.processes for stage in options.stages)]
    found = {run: start(options, run[1], run[0]) for run in runs}
    console, title = Console(width=120), f"{options.model}, {options.method}, {options.tuning}, float32"
    console.print(held_table(found, f"{title}: MiB per process"))
    console.print(cause_table(found, f"{title}: MiB of memory by cause"))


def held_table(found: dict[tuple[int, int], dict[str, Any]], title: str) -> Table:
    table = Table(title=title, box=None)
    for column in ("stage", "processes", *PARTS, "held", "shared", "RSS", "peak RSS"):
        table.add_column(column, justify="right")
    whole = sum(found[0, 1][part] for part in PARTS)
    for (stage, count), values in found.items():
        held = sum(values[part] for part in PARTS)
        sizes = [*(values[part] for part in PARTS), held]
        cells = [f"{size / MIB:.2f}" for size in sizes]
        table.add_row(str(stage), str(count), *cells, f"{held * count / whole:.3f}",
                      f"{values['now'] / MIB:.0f}", f"{values['peak'] / MIB:.0f}")  # fmt: skip
    return table


def cause_table(found: dict[tuple[int, int], dict[str, Any]], title: str) -> Table:
    table = Table(title=title, box=None)
    for column in ("stage", "processes", *CAUSES, "buckets"):
        table.add_column(column, justify="right")
    for (stage, count), values in found.items():
        table.add_row(str(stage), str(count), *(f"{values[cause] / MIB:.1f}" for cause in (*CAUSES, "buckets")))
    return table


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
    ranks, meter = join(stage > 0), Meter()
    meter.read()  # of libraries
    accelerator = make_sharded_accelerator(config.training, ranks) if stage else None
    rows = [Row(f"row-{index}", ids, start) for index, (ids, start) in enumerate(question_rows(config.model, 8))]
    model = build_model(config.model, config.method, config.tuning, config.seed)
    meter.read()
    engine = (ShardedEngine if stage else Engine)(config, model, options.steps, ranks, accelerator)
    packing = Packing.of(config.training, config.method)
    meter.read()
    for _ in range(options.steps):
        engine.update(Share.of(rows, packing, ranks.index, ranks.count))
    meter.read()
    found = {**held_bytes(engine), **meter.causes(), "buckets": bucket_bytes(engine)}
    found |= {"now": meter.now[-1], "peak": max(meter.peak)}
    most = max(ranks.gather(found), key=lambda values: sum(values[part] for part in PARTS))
    if ranks.is_main:
        (Path(options.output) / "found.json").write_text(json.dumps(most))
    ranks.gather(None)
    os._exit(0)


def bucket_bytes(engine: Any) -> int:
    """DeepSpeed's buffers, as the configuration sets them."""
    plugin = engine.accelerator.state.deepspeed_plugin
    sizes = plugin.deepspeed_config["zero_optimization"] if plugin else {}
    return 4 * sum(sizes.get(name, 0) for name in ("reduce_bucket_size", "stage3_prefetch_bucket_size",
                                                   "allgather_bucket_size"))  # fmt: skip


class Meter:
    """This process's memory at each reading, and its peak since the one before. Linux only."""

    def __init__(self) -> None:
        self.now: list[int] = []
        self.peak: list[int] = []

    def read(self) -> None:
        lines = Path("/proc/self/status").read_text().splitlines()
        values = {key: int(rest.split()[0]) * 1024 for key, _, rest in (line.partition(":") for line in lines)
                  if key in ("VmRSS", "VmHWM")}  # fmt: skip
        self.now.append(values["VmRSS"])
        self.peak.append(values["VmHWM"])
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew

    def causes(self) -> dict[str, int]:
        libraries, model, engine, _ = self.now
        return {
            "libraries": libraries, "model": model - libraries, "start": self.peak[2] - max(model, engine),
            "engine": engine - model, "update": self.peak[3] - engine,
        }  # fmt: skip


class Row:
    """A prepared row."""

    def __init__(self, name: str, input_ids: list[int], prompt_length: int) -> None:
        self.id, self.input_ids, self.prompt_length = name, input_ids, prompt_length
        self.segments: tuple[int, ...] = ()
        self.turns: tuple[int, ...] = ()


if __name__ == "__main__":
    main()
