"""What each rank of a ZeRO run holds of weights and optimizer states, and how it is saved and restored.

Not DeepSpeed's own checkpoints: those are pickles, which can run code, with barriers inside that hang all ranks when
one of them can't write.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.errors import StageError
from pipeline.train.state import TrainingState, plain

SHARD = "shard-{rank:05d}.safetensors"
SWAPPED = "shard-{rank:05d}.{index:04d}.safetensors"
"""Of a partition that lives on NVMe: no more than one at a time is in memory."""
WEIGHT = "weight"


@dataclass
class ShardedState(TrainingState):
    """The state of a run under DeepSpeed: each rank saves its part of the trained weights, flat, in float32."""

    zero: Any = None
    """DeepSpeed's ZeRO optimizer, around ours."""

    def _write_tensors(self, folder: Path) -> None:
        kept: dict[str, Tensor] = {}
        for index in range(len(partitions(self.zero))):
            with resident(self.zero, index):
                if is_swapped(self.zero, index):
                    save_file(self._tensors(index), folder / SWAPPED.format(rank=self.ranks.index, index=index))
                else:
                    kept |= self._tensors(index)
        save_file(kept, folder / SHARD.format(rank=self.ranks.index))

    def _tensors(self, index: int) -> dict[str, Tensor]:
        """`weight/i` and the optimizer's tensors, `moment/i`, of the flat partition i of this rank."""
        part = partitions(self.zero)[index]
        states = {f"{key}/{index}": plain(value) for key, value in self.optimizer.state[part].items()}
        return {f"{WEIGHT}/{index}": plain(part), **states}

    def _read_tensors(self, folder: Path) -> None:
        whole = folder / SHARD.format(rank=self.ranks.index)
        kept = load_file(whole)
        if getattr(self.zero, "swap_optimizer", False):
            self.zero.optimizer_swapper.purge_state()
        for index in range(len(partitions(self.zero))):
            file = folder / SWAPPED.format(rank=self.ranks.index, index=index)
            tensors = load_file(file) if file.exists() else kept
            with resident(self.zero, index, is_changed=True):
                self._set(index, tensors, file if file.exists() else whole)
        spread(self.zero)

    def _set(self, index: int, tensors: dict[str, Tensor], file: Path) -> None:
        part, name = partitions(self.zero)[index], f"{WEIGHT}/{index}"
        if tensors.get(name, torch.empty(0)).shape != part.shape:
            raise StageError(f"{file}: holds parts of another size: go on with the keys of training.zero as they were")
        part.data.copy_(tensors[name])
        self.optimizer.state[part].clear()
        for name, value in tensors.items():
            key, _, place = name.partition("/")
            if int(place) == index and key != WEIGHT:
                # AdamW counts its steps on the CPU, unless it is fused.
                device = part.device if value.dim() or self.optimizer.defaults.get("fused") else value.device
                self.optimizer.state[part][key] = value.to(device)


def partitions(zero: Any) -> list[Tensor]:
    """The flat float32 tensors that the optimizer updates on this rank."""
    parts = getattr(zero, "fp32_partitioned_groups_flat", None)
    return list(zero.single_partition_of_fp32_groups if parts is None else parts)


def is_swapped(zero: Any, index: int) -> bool:
    """Does a partition live on NVMe, with its optimizer states?"""
    return bool(getattr(zero, "swap_optimizer", False)) and bool(zero._swappable_optimizer_subgroup(index))


@contextmanager
def resident(zero: Any, index: int, is_changed: bool = False) -> Iterator[None]:
    """A partition and its optimizer states in memory, to look at or to change."""
    if not is_swapped(zero, index):
        yield
        return
    zero._optimizer_states_and_gradient_swap_in(index)
    yield
    if is_changed:
        zero._optimizer_states_and_gradient_swap_out(index)
    else:
        zero._release_swap_buffers(index)


def align_gradients(zero: Any) -> None:
    """Let DeepSpeed read gradients from NVMe to aligned addresses only.

    It reads past the page cache (O_DIRECT), straight into the place of each gradient in its partition. Where that is
    not aligned the read fails, which DeepSpeed 0.19 doesn't look at: the gradient would be whatever was there before.
    """
    swapper = getattr(zero, "optimizer_swapper", None)
    if swapper is not None:
        swapper._adjust_for_misaligned_lengths = partial(_aligned, swapper.numel_alignment)


def _aligned(alignment: int, tensors: list[Tensor], offsets: list[int]) -> tuple[list[Tensor], list[int]]:
    """Each gradient in up to three pieces, of which the middle one begins and ends at multiples of `alignment`; the
    others are too short to be swapped."""
    pieces, starts = [], []
    for tensor, offset in zip(tensors, offsets, strict=True):
        first = min(-offset % alignment, tensor.numel())
        last = first + (tensor.numel() - first) // alignment * alignment
        for start, end in ((0, first), (first, last), (last, tensor.numel())):
            if end > start:
                pieces.append(tensor.narrow(0, start, end - start))
                starts.append(offset + start)
    return pieces, starts


def drop_second_copies(zero: Any) -> None:
    """Let the optimizer update the sharded weights themselves: they are float32 already, and DeepSpeed's "master
    copy" of them would cost 4 bytes more for each. Where they lie on another device (offload), both are needed."""
    weights = getattr(zero, "fp16_partitioned_groups_flat", [])
    for master, part in zip(partitions(zero), weights, strict=False):
        if part is not None and (part.device, part.dtype, part.shape) == (master.device, master.dtype, master.shape):
            master.data = part.data


def spread(zero: Any) -> None:
    """Bring changed partitions to the model's weights, on all ranks together."""
    if not hasattr(zero, "fp32_partitioned_groups_flat"):
        zero.update_lp_params()
        return
    kept = zero.persistent_parameters
    if kept:  # small ones are whole on every rank: they must be read anew
        kept[0].partition(kept)
    for index in range(len(partitions(zero))):
        with resident(zero, index):
            zero._reassign_or_swap_out_partitioned_parameters(index)
    if kept:
        kept[0].all_gather(kept)
