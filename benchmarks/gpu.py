"""What a GPU does with dualtune: are its attention kernels right, and how fast are training steps?

    .venv/bin/python benchmarks/gpu.py                       # one large GPU, made to take less than six minutes
    .venv/bin/python benchmarks/gpu.py --device cpu --tiny   # does the script work? Its times mean nothing

Kernels: outputs and gradients of each in bfloat16, for every preset and for grouped heads, against masked attention in
float64. Slippery attention: our gathered kernel beside FlexAttention's block mask. Steps: forward, backward, clipping
and AdamW on random weights in the shape of Llama 3.2 1B and 3B, 8 packed samples of 512 prompt and 256 answer tokens.
Utilisation: the model's operations (2 for each weight and row forward, 2 for the gradient of the activations, 2 for
that of trained weights; attention scores left out), over what a matrix product of 8192 x 8192 reached on the same GPU.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, AutoModelForCausalLM

from pipeline.model import Batch, DualBranch
from pipeline.model.building import assemble, decoder_layers
from pipeline.model.config import PRESETS, MethodConfig, ModelConfig, TuningConfig
from pipeline.model.flex import FlexKernel
from pipeline.model.kernel_choice import TOLERANCE, worst_error
from pipeline.model.kernels import Kernel
from pipeline.model.layout import Pieces, lay_out
from pipeline.model.patterns import PATTERNS
from pipeline.model.slippery import SlipperyPlan
from pipeline.model.varlen import VarlenKernel, find_flash
from pipeline.train.config import TrainingConfig
from pipeline.train.schedule import make_optimizer

SHAPES: dict[str, dict[str, int]] = {
    "1B": {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
           "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256},
    "3B": {"hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8,
           "head_dim": 128, "intermediate_size": 8192, "vocab_size": 128256},
}  # fmt: skip
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "intermediate_size": 64, "vocab_size": 200}  # fmt: skip
HEADS = ((32, 8, 64), (24, 8, 128), (8, 8, 64))
SAMPLES = [(512, 256)] * 8
STEPS = (("causal", "lora"), ("bitune", "lora"), ("slippery", "lora"), ("causal", "full"), ("bitune", "full"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the script")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=6.0, help="no step is begun after five sixths of them")
    options = parser.parse_args()
    options.end = time.monotonic() + options.minutes * 50
    options.device = torch.device(options.device)
    options.dtype = torch.bfloat16 if options.device.type == "cuda" else torch.float32
    console = Console(width=120)
    console.print(check_kernels(options))
    console.print(time_slippery(options))
    console.print(time_steps(options))


def kernels(device: torch.device) -> dict[str, Kernel]:
    found: dict[str, Kernel] = {"flex": FlexKernel(compiles=device.type == "cuda")}
    flash = find_flash()
    return found | ({f"varlen ({flash[1]})": VarlenKernel(flash[0])} if flash and device.type == "cuda" else {})


def check_kernels(options: argparse.Namespace) -> Table:
    has_backward = options.device.type == "cuda"
    what = "outputs and gradients" if has_backward else "outputs"
    table = Table("kernel", "heads, key heads, dim", "presets", "largest error", "verdict", title=f"kernels: {what}")
    for name, kernel in kernels(options.device).items():
        for shape in HEADS[-1:] if options.tiny else HEADS:
            errors, failure = {}, ""
            for preset, branches in PRESETS.items():
                if all(kernel.handles(PATTERNS[branch["pattern"]]) for branch in branches):
                    try:
                        method = MethodConfig.model_validate(preset)
                        errors[preset] = worst_error(kernel, method, shape, options.device, options.dtype, has_backward)
                    except Exception as error:
                        failure = f"{preset}: {type(error).__name__} {' '.join(str(error).split())[:80]}"
            worst = max(errors, key=lambda preset: errors[preset], default="")
            verdict = failure or ("right" if errors[worst] < TOLERANCE else f"WRONG: {worst}")
            table.add_row(name, str(shape), str(len(errors)), f"{errors.get(worst, 0):.2e}", verdict)
    return table


def time_slippery(options: argparse.Namespace) -> Table:
    table = Table("tokens", "pass", "gathered ms", "flex ms", "flex / gathered", title="slippery attention alone")
    heads, key_heads, dim = HEADS[-1] if options.tiny else HEADS[0]
    flex = kernels(options.device)["flex"]
    pattern = PATTERNS["slippery"]
    for length in (256,) if options.tiny else (4096, 16384, 32768):
        batch = Batch.pack([[0]], [[0] * length]).to(options.device)
        layout = lay_out(batch, MethodConfig.model_validate("causal"))
        pieces = Pieces([length], options.device)
        plan = SlipperyPlan.of(pattern, [length], options.device, 0)
        for trains in (False, True) if options.device.type == "cuda" else (False,):
            rows = [torch.randn(1, h, length, dim, device=options.device, dtype=options.dtype) for h in
                    (heads, key_heads, key_heads)]  # fmt: skip
            rows = [part.requires_grad_(trains) for part in rows]

            def gathered(rows: list[torch.Tensor] = rows, plan: SlipperyPlan = plan) -> torch.Tensor:
                return plan.attend(*rows, {})

            def blocks(rows: list[torch.Tensor] = rows, layout: Any = layout, pieces: Pieces = pieces) -> torch.Tensor:
                return flex.pieces(layout, pieces, pattern, tuple(rows), {})

            calls = [pass_of(call, rows if trains else [], options) for call in (gathered, blocks)]
            ours, theirs = interleave(calls, options)
            label = "forward and backward" if trains else "forward"
            table.add_row(f"{length:,}", label, f"{ours:.2f}", f"{theirs:.2f}", f"{theirs / ours:.2f}")
    return table


def pass_of(call: Callable[[], torch.Tensor], rows: list[torch.Tensor], options: argparse.Namespace) -> Callable:
    return lambda: torch.autograd.grad(call().sum(), rows) if rows else call()


def interleave(calls: list[Callable], options: argparse.Namespace) -> list[float]:
    """Median milliseconds of each call, run in turn after two rounds of warming up."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(options.rounds + 2):
        for call, found in zip(calls, times, strict=True):
            milliseconds = timed(call, options.device)
            if turn >= 2:
                found.append(milliseconds)
    return [statistics.median(found) for found in times]


def timed(call: Callable, device: torch.device) -> float:
    synchronise(device)
    start = time.perf_counter()
    call()
    synchronise(device)
    return (time.perf_counter() - start) * 1000


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_steps(options: argparse.Namespace) -> Table:
    peak = reached(options)
    table = Table(
        "shape", "method", "tuning", "attention", "ms a step", "tokens/s", "TFLOP/s", "of matrix product", "GiB",
        title=f"steps (a matrix product reached {peak / 1e12:.1f} TFLOP/s); tokens: prompt and answer, counted once",
    )  # fmt: skip
    for shape, method, tuning, name in cases(options):
        if time.monotonic() > options.end:
            table.add_row(shape, method, tuning, name, "no time left")
            continue
        try:
            table.add_row(shape, method, tuning, name, *measure(shape, method, tuning, name, peak, options))
        except torch.OutOfMemoryError:
            table.add_row(shape, method, tuning, name, "out of memory")
        if options.device.type == "cuda":
            torch.cuda.empty_cache()
    return table


def cases(options: argparse.Namespace) -> Iterator[tuple[str, str, str, str]]:
    known = list(kernels(options.device)) if options.device.type == "cuda" else []
    for shape in ("tiny",) if options.tiny else SHAPES:
        for method, tuning in STEPS:
            for name in ["sdpa", *(known if tuning == "lora" else known[-1:])]:
                yield shape, method, tuning, name


def measure(
    shape: str, method: str, tuning: str, name: str, peak: float, options: argparse.Namespace
) -> Iterator[str]:  # fmt: skip
    model = build(TINY if options.tiny else SHAPES[shape], method, tuning, options)
    model.kernel = kernels(options.device).get(name)
    samples = [(20, 10)] * 2 if options.tiny else SAMPLES
    batch = Batch.pack(*zip(*([[5] * prompt, [6] * answer] for prompt, answer in samples), strict=True))
    labels = torch.full((batch.answer_rows,), 7, device=options.device)
    optimizer = make_optimizer(model.trainable().values(), TrainingConfig(), options.device)

    def step() -> None:
        with torch.autocast(options.device.type, torch.bfloat16, enabled=options.dtype == torch.bfloat16):
            loss = model.losses(batch, labels).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.trainable().values(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    if options.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(options.device)
    (milliseconds,) = interleave([step], options)
    speed = operations(model, batch) / milliseconds * 1000
    yield f"{milliseconds:.1f}"
    yield f"{(batch.prompt_tokens + batch.answer_rows) / milliseconds * 1000:,.0f}"
    yield f"{speed / 1e12:.2f}"
    yield f"{speed / peak:.0%}"
    gpu = options.device.type == "cuda"
    yield f"{torch.cuda.max_memory_allocated(options.device) / 2**30:.1f}" if gpu else ""


def build(shape: dict[str, int], method: str, tuning: str, options: argparse.Namespace) -> DualBranch:
    config = AutoConfig.for_model("llama", **shape, max_position_embeddings=4096)
    precision = "bf16" if options.dtype == torch.bfloat16 else "fp32"
    described = ModelConfig(name="random", precision=precision, gradient_checkpointing=tuning == "full")
    with options.device:
        base = AutoModelForCausalLM.from_config(config, dtype=torch.float32 if tuning == "full" else options.dtype)
        settings = TuningConfig(kind=tuning, rank=8)  # type: ignore[arg-type]
        model = assemble(base, described, MethodConfig.model_validate(method), settings, seed=0)
    return model.train()


def operations(model: DualBranch, batch: Batch) -> float:
    """Of one step; what activation checkpointing computes again is not counted."""
    per_weight = 6 if model.tuning.kind == "full" else 4
    layout = model.lay_out(batch)
    weights = sum(p.numel() for name, p in decoder_layers(model.model)[0].named_parameters()
                  if ".prompt." not in name and "lora_" not in name) * len(decoder_layers(model.model))  # fmt: skip
    head = model.model.get_output_embeddings().weight.numel()
    return per_weight * (weights * (layout.causal_rows + layout.branch_rows) + head * batch.answer_rows)


def reached(options: argparse.Namespace) -> float:
    """Operations a second of a square matrix product."""
    size = 256 if options.tiny else 8192
    first, second = (torch.randn(size, size, device=options.device, dtype=options.dtype) for _ in range(2))
    (milliseconds,) = interleave([lambda: first @ second], options)
    return 2 * size**3 / milliseconds * 1000


if __name__ == "__main__":
    main()
