"""Offloading to NVMe: what must hold before a model is read, the files of a run there, and DeepSpeed's keys for it.

DeepSpeed keeps one file for each part of the optimizer's states and of the weights, reads it when it is needed, and
writes it back. It ends the process without a word where a file can't be written or memory can't be locked: so both are
tried here first.
"""

import ctypes
import mmap
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline.config import RunConfig, digest
from pipeline.errors import UserError, one_line
from pipeline.run_folder import RunFolder
from pipeline.train.config import ZeroConfig
from pipeline.train.engine import forget_accelerator
from pipeline.train.estimate import ADAM, FLOAT, Size, measure
from pipeline.train.progress import say
from pipeline.train.ranks import Ranks
from pipeline.train.zero import deepspeed_json, prepare_environment

KEY = "training.zero.nvme_path"
STATES = 4
"""Tensors of one size that are in memory together: weights, gradients, and AdamW's two moments."""
AIO = {"block_size": 2**20, "queue_depth": 32, "single_submit": False, "overlap_events": True}
STALE = 3600.0
"""Seconds after which the lock of a build is taken for that of one that was killed."""
PAGE = 4096


@contextmanager
def nvme_files(config: RunConfig, folder: RunFolder, ranks: Ranks) -> Iterator[dict[str, Any]]:
    """Keys of DeepSpeed's JSON for this rank, {} where nothing is offloaded to NVMe. What lies there is removed at the
    end, and so is what a killed start of the same run has left.

    Raises:
        UserError: on every rank, if the folder, the space on it, the memory that may be locked, or DeepSpeed's module
            for it won't do.
    """
    zero = config.training.zero
    if zero.nvme_path is None:
        yield {}
        return
    own = _place(zero.nvme_path, folder) / f"rank-{ranks.index}"
    try:
        yield _prepared(config, own, ranks)
    finally:
        shutil.rmtree(own, ignore_errors=True)
        with suppress(OSError):  # other ranks have files there still
            own.parent.rmdir()


def _place(path: Path, folder: RunFolder) -> Path:
    """Of one run, whose name may be that of a run elsewhere."""
    return path / f"{folder.root.name}-{digest(str(folder.root.resolve()))[:8]}"


def _prepared(config: RunConfig, own: Path, ranks: Ranks) -> dict[str, Any]:
    zero = config.training.zero
    assert zero.nvme_path is not None
    path = zero.nvme_path
    ranks.together(lambda: _make(path, own))
    forget_accelerator()  # of an earlier run, under which nothing could be counted
    prepare_environment()
    size = ranks.together(lambda: measure(config))
    hosts = ranks.gather(socket.gethostname())
    ranks.together(lambda: _check_space(path, space(size, zero, ranks.count), hosts))
    keys = nvme_json(size, zero, own, ranks.count)
    values = ranks.together(lambda: deepspeed_json(config.training, keys))  # with what the user has set
    ranks.together(lambda: _check_locking(locked(size, values, ranks.count)))
    ranks.together(lambda: _load_module(ranks.is_main))
    return keys


def _make(path: Path, own: Path) -> None:
    if not path.is_dir():
        raise UserError(f"{KEY} = {path}: there is no such folder")
    try:
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir(parents=True)
        _write_directly(own / "probe")
    except OSError as error:
        raise UserError(f"{KEY} = {path}: cannot be written past the page cache ({error.strerror})") from None


def _write_directly(file: Path) -> None:
    """One page, as DeepSpeed writes: not all file systems can."""
    descriptor = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
    try:
        os.write(descriptor, mmap.mmap(-1, PAGE))
    finally:
        os.close(descriptor)
        file.unlink()


def space(size: Size, zero: ZeroConfig, processes: int) -> int:
    """Bytes that one rank's files take at most."""
    states = (FLOAT + FLOAT + ADAM) * size.trained if zero.offload_optimizer == "nvme" else 0
    weights = FLOAT * size.parameters if zero.offload_parameters == "nvme" else 0
    return (states + weights) // processes


def _check_space(path: Path, needed: int, hosts: list[str]) -> None:
    total = needed * hosts.count(socket.gethostname())
    if (free := shutil.disk_usage(path).free) < total:
        raise UserError(f"{KEY} = {path}: {total / 2**30:.2f} GiB are needed, {free / 2**30:.2f} GiB are free")


def nvme_json(size: Size, zero: ZeroConfig, own: Path, processes: int) -> dict[str, Any]:
    """Where DeepSpeed writes, and buffers that fit the model: a layer's part of the states, and of the weights as many
    tensors as are used together."""
    sharding: dict[str, Any] = {"sub_group_size": max(size.largest_layer // processes, 1)}
    if zero.offload_optimizer == "nvme":
        sharding["offload_optimizer"] = {"nvme_path": str(own), "buffer_count": STATES}
    if zero.offload_parameters == "nvme":
        sharding["offload_param"] = {
            "nvme_path": str(own),
            "max_in_cpu": 0,
            "buffer_size": -(-size.largest_tensor // processes),
            "buffer_count": size.layer_tensors + 4,  # and embeddings, head, last norm
        }
        # Tensors that are read ahead hold buffers, and those at work may then find none: DeepSpeed ends the run.
        sharding["stage3_prefetch_bucket_size"] = 0
    return {"aio": AIO, "zero_optimization": sharding}


def locked(size: Size, values: dict[str, Any], processes: int) -> int:
    """Bytes of memory that DeepSpeed locks for its buffers on one rank, by its JSON."""
    sharding = values["zero_optimization"]
    states, weights = (sharding.get(name, {}) for name in ("offload_optimizer", "offload_param"))
    # The last tensor of a group may reach over its size.
    group = min(int(sharding["sub_group_size"]), size.trained // processes) + -(-size.largest_tensor // processes)
    count = group * int(states["buffer_count"]) if "nvme_path" in states else 0
    if "nvme_path" in weights:
        count += group + int(weights["buffer_size"]) * int(weights["buffer_count"])
    return FLOAT * count


def _check_locking(size: int) -> None:
    try:
        _lock(size)
    except OSError as error:
        raise UserError(
            f"{KEY}: {size / 2**30:.2f} GiB of memory must be locked for buffers, which fails ({error.strerror}): "
            "raise the limit (ulimit -l), or lower training.zero.deepspeed.zero_optimization.sub_group_size"
        ) from None


def _lock(size: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(-1, size) as memory:  # its end unlocks it
        start = (ctypes.c_char * size).from_buffer(memory)
        failed = library.mlock(start, ctypes.c_size_t(size))
        del start
        if failed:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _load_module(is_told: bool) -> None:
    """DeepSpeed's module for asynchronous reads and writes; it is compiled at the first use on a machine."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    if not AsyncIOBuilder().is_compatible():
        raise UserError(f"{KEY}: DeepSpeed finds no libaio to compile with: install libaio-dev (or libaio-devel)")
    for name in ("pin_memory", "async_io"):
        _announce_build(name, is_told)
    try:
        AsyncIOBuilder().load()
    except (RuntimeError, ImportError, OSError) as error:
        raise UserError(f"{KEY}: DeepSpeed's module async_io cannot be built ({one_line(error)})") from None


def _announce_build(name: str, is_told: bool) -> None:
    from torch.utils.cpp_extension import _get_build_directory

    place = Path(_get_build_directory(name, verbose=False))
    lock = place / "lock"
    with suppress(FileNotFoundError):
        if time.time() - lock.stat().st_mtime > STALE:
            raise UserError(f"{lock}: left by a build that was killed, which others would wait for: remove it")
    if is_told and not (place / f"{name}.so").exists():
        say(f"DeepSpeed's module {name} is compiled in {place}, once: this takes minutes")
