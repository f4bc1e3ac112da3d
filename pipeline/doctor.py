"""What this machine has and lacks for dualtune, as findings with advice."""

import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.versions import LIBRARIES, installed, tested_ranges

HUB = "huggingface.co"
SLURM = ("sbatch", "squeue", "scontrol", "scancel", "sacct")
OPTIONAL = ("deepspeed", "submitit")
COMFORTABLE_GIB = 10


@dataclass(frozen=True)
class Finding:
    """One line of the examination. Only an essential finding that is not good makes the examination fail."""

    what: str
    found: str
    good: bool
    advice: str = ""
    essential: bool = False


def examine() -> list[Finding]:
    """Look at Python, libraries, devices, tools, Slurm, disk, hub and models. Takes a few seconds (imports torch)."""
    return [*_python(), *_libraries(), *_devices(), *_tools(), *_slurm(), *_disk(), _hub(), *_models()]


def _python() -> Iterator[Finding]:
    good = sys.version_info >= (3, 11)
    advice = "" if good else "install Python 3.11 or newer"
    yield Finding("python", f"{platform.python_version()} ({sys.executable})", good, advice, essential=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("processor", f"{cores} cores, {platform.machine()}, {platform.system()}", True)


def _libraries() -> Iterator[Finding]:
    ranges = tested_ranges()
    for name in LIBRARIES:
        version, tested = installed(name), ranges.get(name, "")
        essential = name not in OPTIONAL
        if not version:
            advice = "pip install -e '.[deepspeed]' for sharded training" if name == "deepspeed" else ""
            yield Finding(name, "not installed", False, advice or "pip install dualtune", essential)
        elif tested and not _within(version, tested):
            yield Finding(name, version, False, f"outside the tested range {tested}: results may differ")
        else:
            yield Finding(name, version + (f" (tested: {tested})" if tested else ""), True)


def _within(version: str, tested: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return version in SpecifierSet(tested, prereleases=True)


def _devices() -> Iterator[Finding]:
    try:
        import torch
    except ImportError as error:
        yield Finding("device", f"torch cannot be imported ({error})", False, "reinstall torch", essential=True)
        return
    if not torch.cuda.is_available():
        seen = shutil.which("nvidia-smi") is not None
        advice = "a GPU is there, but this torch build can't use it: install the CUDA build" if seen else ""
        advice = advice or "fine for small models (the demo); larger ones need a GPU"
        yield Finding("device", f"CPU, {torch.get_num_threads()} threads, no GPU", not seen, advice)
        yield Finding("bf16", "computed by the CPU (fast only with AVX512-BF16 or AMX)", True)
        return
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        yield Finding(f"GPU {index}", f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB", True)
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    yield Finding("bf16", "yes" if bf16 else "no", bf16, "" if bf16 else "set model.precision: fp32")


def _tools() -> Iterator[Finding]:
    for tool, need in (("g++", "DeepSpeed's CPU optimizer"), ("ninja", "DeepSpeed's CPU optimizer"), ("git", "")):
        path = shutil.which(tool)
        advice = f"only needed for {need}" if need else "only needed to record the code version of results"
        yield Finding(tool, path or "not found", path is not None, "" if path else advice)


def _slurm() -> Iterator[Finding]:
    found = [command for command in SLURM if shutil.which(command)]
    if "sbatch" not in found:
        yield Finding("Slurm", "not found", True, "not a login node: `dualtune run` uses this machine")
        return
    missing = sorted(set(SLURM) - set(found))
    try:
        answer = subprocess.run(["sinfo", "-h", "-o", "%P %D"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("Slurm", f"sinfo does not answer ({error})", False, "is the controller up? is SLURM_CONF set?")
        return
    if answer.returncode:
        reason = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding("Slurm", f"sinfo fails: {reason}", False, "is the controller up? is SLURM_CONF set?")
        return
    partitions = ", ".join(answer.stdout.split("\n")).strip(", ")
    advice = f"not found: {', '.join(missing)}" if missing else ""
    yield Finding("Slurm", f"partitions and nodes: {partitions}", not missing, advice)


def _disk() -> Iterator[Finding]:
    for what, folder in (("disk here", Path.cwd()), ("disk of the hub cache", _hub_cache())):
        place = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free = shutil.disk_usage(place).free / 2**30
        writable = os.access(place, os.W_OK)
        advice = "" if free >= COMFORTABLE_GIB else "little: a 7B model and its checkpoints need tens of GiB"
        advice = advice if writable else f"{place} is not writable"
        good = writable and free >= COMFORTABLE_GIB
        yield Finding(what, f"{free:.0f} GiB free ({folder})", good, advice, essential=free < 1)


def _hub_cache() -> Path:
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")


def _hub() -> Finding:
    if os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
        return Finding("hub", "switched off (HF_HUB_OFFLINE)", True, "models and data must be local or cached")
    try:
        socket.create_connection((HUB, 443), timeout=3).close()
    except OSError:
        advice = "use local model folders and data files, as the demo does, or set HF_ENDPOINT to a mirror"
        return Finding("hub", f"{HUB} cannot be reached", False, advice)
    token = bool(os.environ.get("HF_TOKEN")) or (_hub_cache().parent / "token").exists()
    advice = "" if token else "for gated models (Gemma, Llama): accept their licence, then `hf auth login`"
    return Finding("hub", f"{HUB} answers, {'logged in' if token else 'not logged in'}", True, advice)


def _models() -> Iterator[Finding]:
    folders = sorted(file.parent for file in Path("models").glob("*/config.json"))
    if not folders:
        yield Finding("models/", "no model folder here", True, "`make demo` puts a small one there")
    for folder in folders:
        whole = any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))
        yield Finding(str(folder), "complete" if whole else "no weights", whole, "" if whole else "download it again")


def show(findings: list[Finding]) -> None:
    """Print the findings as a table and close with one sentence."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("", "what", "found", "advice"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        mark = "[green]ok[/green]" if finding.good else "[red]no[/red]" if finding.essential else "[yellow]--[/yellow]"
        table.add_row(mark, finding.what, finding.found, finding.advice)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(table)
    lacking = [finding.what for finding in findings if finding.essential and not finding.good]
    console.print(
        f"essential things are missing: {', '.join(lacking)}" if lacking else "ready to train on this machine"
    )
