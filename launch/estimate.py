"""What a run needs, as a table for the terminal."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.config import RunConfig
from pipeline.files import read_json
from pipeline.hardware import gpu_named
from pipeline.run_folder import RunFolder
from pipeline.train.config import Place, ZeroConfig
from pipeline.train.estimate import Memory, Size, measure, memory
from pipeline.train.nvme import locked, nvme_json
from pipeline.train.utilisation import flops_of_row

GIB = 2**30
ROOM = 0.9
"""Share of a device's memory that a plan may use: kernels and fragmentation take the rest."""
SHARE_OF_PEAK = 0.4
"""What well-tuned training of large models reaches (PaLM: 46 %, arXiv 2204.02311, table 3); small ones reach less."""
GIBIBYTES, TFLOPS = 80.0, 300.0
"""Of a device of which nothing is said."""
MOST = 1024
"""Processes that a search for a plan that fits ends at."""
NOTHING = "plan: nothing fits on these; model.gradient_checkpointing or a smaller micro-batch help"


def device(gpu: str | None, gib: float | None, tflops: float | None) -> tuple[float, float]:
    """Memory in GiB, and 10^12 operations a second that may be expected, of one device: what is given goes before what
    the data sheet of `gpu` says, and that before an 80 GiB device of 300.

    Raises:
        UserError: `gpu` is unknown.
    """
    found = gpu_named(gpu) if gpu else None
    expected = found.tflops * SHARE_OF_PEAK if found and found.tflops else TFLOPS
    return gib or (found.gib if found else GIBIBYTES), tflops or expected


def show_estimate(config: RunConfig, processes: int, gib: float, tflops: float, console: Console) -> None:
    """Print parameters, memory per process under each ZeRO stage, and the expected time.

    Args:
        gib: memory of one device.
        tflops: what one device really does, in 10^12 operations a second.
    """
    size = measure(config)
    prompt, answer, rows = _lengths(config)
    copies = len(config.method.branches)
    per_row = copies * prompt + answer
    training = config.training
    micro = training.micro_batch_tokens or int(per_row * min(training.micro_batch_size, training.batch_size))
    console.print(f"parameters: {size.parameters:,}, of which {size.trained:,} trained ({config.tuning.kind})")
    console.print(
        f"tokens: {prompt + answer:.0f} a row, {per_row:.0f} with the prompt in {copies} branches; "
        f"{per_row * training.batch_size:.0f} a step, {micro} a micro-batch"
    )
    plans = _plans(config, size, processes, micro)
    console.print(_table(plans, gib, processes))
    console.print(_advice(plans, gib) or NOTHING)
    if not _advice(_on_device(plans), gib) and (more := _larger(config, size, processes, micro, gib)):
        console.print(more)
    flops = flops_of_row(size.row_weights, config.tuning.kind == "full")
    console.print(f"arithmetic: {flops / 1e9:.2f} GFLOP a token, forward and backward")
    if rows:
        hours = flops * per_row * rows * training.epochs / (tflops * 1e12 * processes) / 3600
        console.print(f"time: {hours:.2f} h for {training.epochs:g} epochs at {tflops:g} TFLOP/s a device")


def _lengths(config: RunConfig) -> tuple[float, float, int]:
    """Mean prompt and answer, and number of rows; without prepared data the longest row allowed, half prompt."""
    manifest = read_json(RunFolder.of(config).prepare_manifest)
    if isinstance(manifest, dict):
        rows = manifest["rows"]["kept"]
        return manifest["tokens"]["prompt"] / rows, manifest["tokens"]["answer"] / rows, rows
    longest = config.data.max_tokens if config.data else 512
    return longest / 2, longest / 2, 0


def _zero(optimizer: Place, parameters: Place) -> ZeroConfig:
    path = Path() if "nvme" in (optimizer, parameters) else None
    return ZeroConfig(stage=3, offload_optimizer=optimizer, offload_parameters=parameters, nvme_path=path)


PLANS = {
    "stage 0 (DDP)": ZeroConfig(),
    **{f"stage {stage}": ZeroConfig(stage=stage) for stage in (1, 2, 3)},
    "stage 3, optimizer on CPU": _zero("cpu", "none"),
    "stage 3, all on CPU": _zero("cpu", "cpu"),
    "stage 3, optimizer on NVMe": _zero("nvme", "none"),
    "stage 3, all on NVMe": _zero("nvme", "nvme"),
}
"""The fastest first."""


def _plans(config: RunConfig, size: Size, processes: int, tokens: int) -> dict[str, Memory]:
    mixes = config.model.precision == "bf16" and config.tuning.kind != "full"
    return {
        name: _with_buffers(
            memory(size, zero, processes, tokens, config.model.gradient_checkpointing), size, zero, processes
        )
        for name, zero in PLANS.items()
        if not (mixes and zero.offload_parameters == "nvme")
    }


def _with_buffers(plan: Memory, size: Size, zero: ZeroConfig, processes: int) -> Memory:
    if zero.nvme_path is None:
        return plan
    return replace(plan, host=plan.host + locked(size, nvme_json(size, zero, zero.nvme_path, processes), processes))


def _table(plans: dict[str, Memory], gib: float, processes: int) -> Table:
    parts = ("parameters", "gradients", "optimizer", "working", "activations", "total", "host", "nvme")
    table = Table(title=f"GiB per process, {processes} of them", box=None, title_justify="left")
    for column in ("zero", *parts, f"fits {gib:g} GiB"):
        table.add_column(column, justify="left" if column == "zero" else "right")
    for name, plan in plans.items():
        table.add_row(name, *(f"{getattr(plan, part) / GIB:.2f}" for part in parts), _fits(plan, gib))
    return table


def _fits(plan: Memory, gib: float) -> str:
    return "yes" if plan.total <= ROOM * gib * GIB else "no"


def _advice(plans: dict[str, Memory], gib: float) -> str:
    """The fastest plan that fits; "" if none does."""
    fitting = [name for name, plan in plans.items() if _fits(plan, gib) == "yes"]
    return f"plan: {fitting[0]} is the fastest that fits" if fitting else ""


def _larger(config: RunConfig, size: Size, processes: int, tokens: int, gib: float) -> str:
    """On how many devices it would fit without offloading: twice as many, and again."""
    while (processes := 2 * processes) <= MOST:
        if found := _advice(_on_device(_plans(config, size, processes, tokens)), gib):
            return f"{found} if there are {processes} processes; it fits no fewer among those tried by doubling"
    return ""


def _on_device(plans: dict[str, Memory]) -> dict[str, Memory]:
    return {name: plan for name, plan in plans.items() if plan.host + plan.nvme == 0}
