"""Offloading to NVMe is refused by name where it can't work, before a model is read. Runs with it: test_ranks."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.optim import AdamW
from train_runs import rank_config

from pipeline.errors import StageError, UserError
from pipeline.run_folder import RunFolder
from pipeline.train import nvme
from pipeline.train.estimate import measure
from pipeline.train.nvme import nvme_files, nvme_json, space
from pipeline.train.partitions import ShardedState, _aligned
from pipeline.train.ranks import Ranks


def prepare(runs: Path, **zero: Any) -> dict[str, Any]:
    config = rank_config(runs, 3, "full", "bitune", places=("nvme", "nvme"))
    training = config.training.model_copy(update={"zero": config.training.zero.model_copy(update=zero)})
    config = config.model_copy(update={"training": training})
    with nvme_files(config, RunFolder.of(config), Ranks()) as keys:
        return keys


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("{}/absent", "there is no such folder"),
        ("{}/file", "there is no such folder"),
        ("/proc", r"cannot be written past the page cache \(No such file"),
    ],
)
def test_folder_that_cannot_be_used(tmp_path: Path, path: str, words: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=rf"training\.zero\.nvme_path = {path.format(tmp_path)}: {words}"):
        prepare(tmp_path / "runs", nvme_path=Path(path.format(tmp_path)))


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(UserError, match=r"0\.01 GiB are needed, 0\.00 GiB are free"):
        prepare(tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


def test_memory_that_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvme, "locked", lambda *_: 2**60)
    with pytest.raises(UserError, match=r"GiB of memory must be locked for buffers, which fails \(.*ulimit -l"):
        prepare(tmp_path / "runs")


def test_no_libaio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvme.prepare_environment()
    from deepspeed.ops.op_builder import AsyncIOBuilder

    monkeypatch.setattr(AsyncIOBuilder, "is_compatible", lambda _: False)
    with pytest.raises(UserError, match="finds no libaio"):
        prepare(tmp_path / "runs")


def test_lock_of_a_killed_build_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch waits for the lock without end."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "built"))
    lock = tmp_path / "built" / "async_io" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (0, 0))
    with pytest.raises(UserError, match=rf"{lock}: left by a build that was killed"):
        nvme._announce_build("async_io", is_told=False)


def test_space_and_buffers_come_from_the_model(tmp_path: Path) -> None:
    config = rank_config(tmp_path / "runs", 3, "full", "bitune", places=("nvme", "nvme"))
    size = measure(config)
    assert space(size, config.training.zero, processes=2) == 20 * size.parameters // 2
    sharding = nvme_json(size, config.training.zero, tmp_path, processes=2)["zero_optimization"]
    assert sharding["offload_param"]["buffer_size"] == 512 * 64 // 2
    assert sharding["offload_param"]["buffer_count"] >= 2 * 9
    assert sharding["stage3_prefetch_bucket_size"] == 0


def test_gradients_are_read_to_aligned_addresses() -> None:
    gradients, offsets = [torch.arange(float(count)) for count in (10, 1000, 512, 300)], [0, 10, 1010, 1522]
    pieces, starts = _aligned(256, gradients, offsets)
    assert [(start, len(piece)) for start, piece in zip(starts, pieces, strict=True)] == [
        *[(0, 10), (10, 246), (256, 512), (768, 242)],
        *[(1010, 14), (1024, 256), (1280, 242), (1522, 14), (1536, 256), (1792, 30)],
    ]
    whole, again = torch.cat(gradients), torch.full((1822,), -1.0)
    for piece, start in zip(pieces, starts, strict=True):
        again[start : start + len(piece)] = piece
    assert torch.equal(again, whole)


def test_a_checkpoint_of_other_parts_is_refused(tmp_path: Path) -> None:
    """As sub_group_size makes them, which offloading to NVMe changes."""
    save_file({"weight/0": torch.zeros(4)}, tmp_path / "shard-00000.safetensors")
    zero = SimpleNamespace(fp32_partitioned_groups_flat=[torch.zeros(3)])
    state = ShardedState({}, AdamW([torch.zeros(1)]), None, zero=zero)  # type: ignore[arg-type]
    with pytest.raises(StageError, match=r"shard-00000.safetensors: holds parts of another size: go on with the keys"):
        state._read_tensors(tmp_path)


def test_buffers_that_the_user_makes_smaller_lock_less_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    monkeypatch.setattr(nvme, "_check_locking", found.append)
    monkeypatch.setattr(nvme, "_load_module", lambda _: None)
    for size in (100_000, 1_000):
        prepare(tmp_path / "runs", deepspeed={"zero_optimization": {"sub_group_size": size}})
    assert found[0] - found[1] == 4 * (4 + 1) * 99_000
