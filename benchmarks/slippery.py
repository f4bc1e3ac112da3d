"""Slippery attention against full causal attention: alone, in a whole model, and a chart of both.

    .venv/bin/python benchmarks/slippery.py                       # attention alone, and prefill at 8,192 tokens
    .venv/bin/python benchmarks/slippery.py --chart docs/slippery # prefill by length: docs/slippery.png and .json

Attention alone: 9 heads x 64, float32, 2 threads, PyTorch's SDPA with its causal flag beside ours; what is compared
runs in turn, medians are printed. Extra memory is the rise of the process's peak, each in a process of its own, in
multiples of queries + keys + values. A whole model: one prefill, and the share of the time spent in attention.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import scaled_dot_product_attention
from train_step import interleave, median_ratio
from transformers import AttentionInterface

from pipeline.model import attention, build_model
from pipeline.model.config import MethodConfig, ModelConfig, TuningConfig
from pipeline.model.generation import prefill
from pipeline.model.patterns import PATTERNS
from pipeline.model.slippery import SlipperyPlan

HEADS, DIM = 9, 64
METHODS = {"full": "causal", "slippery": "slippery"}
MEGABYTE = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/SmolLM2-135M-Instruct")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192, 16384, 32768], help="attention alone")
    parser.add_argument("--training", type=int, default=8192, help="tokens of the training step, attention alone")
    parser.add_argument("--prefill", type=int, nargs="+", default=[1024, 2048, 4096, 8192], help="tokens of the chart")
    parser.add_argument(
        "--share", type=int, default=8192, help="tokens of the prefill whose attention share is printed"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--chart", type=Path, help="only draw the chart: file name without its ending")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.chart:
        return chart(options)
    attention_alone(options)
    whole_model(options)


def inputs(length: int) -> list[torch.Tensor]:
    """Queries, keys and values as a model makes them, [1, heads, length, dim]."""
    return [torch.randn(1, length, HEADS, DIM).transpose(1, 2).requires_grad_() for _ in range(3)]


def full(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def slippery(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """As in `scope: input`: the last row sees everything. The plan, which a model makes once, is included."""
    length = query.shape[2]
    return SlipperyPlan.of(PATTERNS["slippery"], [length], query.device, 0).attend(query, key, value, {})


KERNELS: dict[str, Callable[..., torch.Tensor]] = {"full": full, "slippery": slippery}


def call(kernel: str, rows: list[torch.Tensor], training: bool) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    with torch.set_grad_enabled(training):
        output = KERNELS[kernel](*rows)
        if training:
            torch.autograd.grad(output.sum(), rows)
    return time.perf_counter() - start


def attention_alone(options: argparse.Namespace) -> None:
    table = Table("attention alone", "tokens", "full s", "slippery s", "full / slippery", "extra memory / (q+k+v)")
    seconds = {}
    for training, lengths in ((False, options.lengths), (True, [options.training])):
        for length in lengths:
            rows = inputs(length)
            steps = {name: lambda name=name: call(name, rows, training) for name in KERNELS}  # noqa: B023
            times = interleave(steps, options.rounds)
            seconds[training, length] = statistics.median(times["slippery"])
            table.add_row(
                "forward + backward" if training else "forward", f"{length:,}",
                *(f"{statistics.median(times[name]):.4f}" for name in KERNELS),
                f"{median_ratio(times['full'], times['slippery']):.1f}",
                f"{apart(extra_memory, length, training, options.threads):.2f}",
            )  # fmt: skip
    Console().print(table)
    first, last = min(options.lengths), max(options.lengths)
    print(f"slippery: time({last:,}) / time({first:,}) = {seconds[False, last] / seconds[False, first]:.1f}")


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's result, from a process of its own: peaks of memory never fall."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak() -> int:
    """Bytes, the highest of this process so far. Linux only: `getrusage` would give that of the parent, if higher."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def extra_memory(length: int, training: bool, threads: int) -> float:
    torch.set_num_threads(threads)
    call("slippery", inputs(64), training)  # what libraries load at the first call is not counted
    rows = inputs(length)
    before = peak()
    call("slippery", rows, training)
    return (peak() - before) / (3 * rows[0].numel() * rows[0].element_size())


def open_model(name: str, method: str) -> Any:
    config = ModelConfig(name=name, precision="fp32")
    return build_model(config, MethodConfig.model_validate(METHODS[method]), TuningConfig(kind="none"), 0).eval()


def prompt_of(length: int) -> list[int]:
    return torch.randint(10, 40000, (length,), generator=torch.Generator().manual_seed(0)).tolist()


@torch.no_grad()
def timed_prefill(model: Any, length: int) -> tuple[float, float]:
    """Seconds of a prefill, and of it those in attention."""
    spent = 0.0

    def timed(*arguments: Any, **options: Any) -> Any:
        nonlocal spent
        start = time.perf_counter()
        result = attention.attend(*arguments, **options)
        spent += time.perf_counter() - start
        return result

    AttentionInterface.register(attention.NAME, timed)
    start = time.perf_counter()
    prefill(model, [prompt_of(length)])
    total = time.perf_counter() - start
    attention.register()
    return total, spent


def whole_model(options: argparse.Namespace) -> None:
    models = {name: open_model(options.model, name) for name in METHODS}
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in METHODS}
    for _ in range(max(2, options.rounds // 2)):
        for name, model in models.items():
            results[name].append(timed_prefill(model, options.share))
    table = Table("prefill", "tokens", "seconds", "of it attention", "share")
    for name, found in results.items():
        total, spent = (statistics.median(part) for part in zip(*found, strict=True))
        table.add_row(name, f"{options.share:,}", f"{total:.2f}", f"{spent:.2f}", f"{100 * spent / total:.1f} %")
    Console().print(table)


def measured(model: str, method: str, length: int, threads: int) -> dict[str, Any]:
    """One prefill of a fresh process: seconds, and by how much memory rose above that of the loaded model."""
    torch.set_num_threads(threads)
    loaded = open_model(model, method)
    timed_prefill(loaded, 64)
    before = peak()
    seconds, _ = timed_prefill(loaded, length)
    return {"method": method, "tokens": length, "seconds": seconds, "megabytes": (peak() - before) / MEGABYTE}


def chart(options: argparse.Namespace) -> None:
    from matplotlib.figure import Figure  # an extra: plots

    points = [
        apart(measured, options.model, method, length, options.threads)
        for length in options.prefill
        for method in METHODS
    ]
    options.chart.with_suffix(".json").write_text(json.dumps(points, indent=1) + "\n", encoding="utf-8")
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for place, (key, label) in enumerate((("seconds", "prefill, seconds"), ("megabytes", "peak above the model, MB"))):
        axes = figure.add_subplot(1, 2, place + 1, xlabel="tokens of the prompt", ylabel=label)
        for method in METHODS:
            own = [point for point in points if point["method"] == method]
            axes.plot([point["tokens"] for point in own], [point[key] for point in own], marker="o", label=method)
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.savefig(options.chart.with_suffix(".png"), dpi=120)
    table = Table("method", "tokens", "seconds", "MB above the model")
    for point in points:
        table.add_row(point["method"], f"{point['tokens']:,}", f"{point['seconds']:.2f}", f"{point['megabytes']:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
