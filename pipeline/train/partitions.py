"""What each rank of a ZeRO run holds of weights and optimizer states, and how it is saved and restored.

Not DeepSpeed's own checkpoints: those are pickles, which can run code, with barriers inside that hang all ranks when
one of them can't write.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.train.state import TrainingState, plain, refuse_others

SHARD = "shard-{rank:05d}.safetensors"
WEIGHT = "weight"


@dataclass
class ShardedState(TrainingState):
    """The state of a run under DeepSpeed: each rank saves its part of the trained weights, flat, in float32."""

    zero: Any = None
    """DeepSpeed's ZeRO optimizer, around ours."""

    def _write_tensors(self, folder: Path) -> None:
        save_file(self._tensors(), folder / SHARD.format(rank=self.ranks.index))

    def _tensors(self) -> dict[str, Tensor]:
        """`weight/i` and the optimizer's tensors, `moment/i`, of each flat partition i of this rank."""
        found = {f"{WEIGHT}/{index}": plain(part) for index, part in enumerate(partitions(self.zero))}
        for index, part in enumerate(partitions(self.zero)):
            found |= {f"{key}/{index}": plain(value) for key, value in self.optimizer.state[part].items()}
        return found

    def _read_tensors(self, folder: Path) -> None:
        file = folder / SHARD.format(rank=self.ranks.index)
        tensors = load_file(file)
        parts = partitions(self.zero)
        expected = {f"{WEIGHT}/{index}": part for index, part in enumerate(parts)}
        refuse_others({name: tensors.get(name, torch.empty(0)) for name in expected}, expected, file)
        for index, part in enumerate(parts):
            part.data.copy_(tensors.pop(f"{WEIGHT}/{index}"))
            self.optimizer.state[part].clear()
        for name, value in tensors.items():
            key, _, place = name.partition("/")
            part = parts[int(place)]
            # AdamW counts its steps on the CPU, unless it is fused.
            device = part.device if value.dim() or self.optimizer.defaults.get("fused") else value.device
            self.optimizer.state[part][key] = value.to(device)
        spread(self.zero)


def partitions(zero: Any) -> list[Tensor]:
    """The flat float32 tensors that the optimizer updates on this rank."""
    parts = getattr(zero, "fp32_partitioned_groups_flat", None)
    return list(zero.single_partition_of_fp32_groups if parts is None else parts)


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
        zero._reassign_or_swap_out_partitioned_parameters(index)
    if kept:
        kept[0].all_gather(kept)
