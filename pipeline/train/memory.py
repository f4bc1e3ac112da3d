"""What one rank holds between updates, counted from tensors."""

from collections.abc import Iterable

from torch import Tensor

from pipeline.train.engine import Engine
from pipeline.train.partitions import partitions
from pipeline.train.sharded import ShardedEngine


def held_bytes(engine: Engine) -> dict[str, int]:
    """Bytes of parameters, gradients and optimizer states on this rank, after at least one update.

    Each piece of memory is counted once, in the first group that it belongs to. Gradients are those of the largest
    moment: under ZeRO 0 and 1 whole, under 2 and 3 this rank's part.
    """
    seen: set[int] = set()
    groups = {
        "parameters": _parameters(engine),
        "optimizer": [value for state in engine.optimizer.state.values() for value in state.values()],
    }
    if isinstance(engine, ShardedEngine):
        groups["optimizer"] += partitions(engine.objective.optimizer)
    found = {name: sum(_bytes(tensor, seen) for tensor in tensors) for name, tensors in groups.items()}
    return {**found, "gradients": _gradient_bytes(engine)}


def _parameters(engine: Engine) -> list[Tensor]:
    """Whole ones (`data`, empty while sharded) and this rank's parts."""
    parameters = list(engine.objective.parameters())
    parts = [part for parameter in parameters if (part := getattr(parameter, "ds_tensor", None)) is not None]
    return [*(parameter.data for parameter in parameters), *parts]


def _gradient_bytes(engine: Engine) -> int:
    stage, seen = engine.training.zero.stage, set[int]()
    if stage == 3:  # where they are added up, and what the optimizer keeps of them, which is so where it is offloaded
        zero = engine.objective.optimizer
        kept = [part.grad for part in partitions(zero) if part.grad is not None]
        return sum(_bytes(tensor, seen) for tensor in (zero.grad_partitions_flat_buffer, *kept))
    tensors: Iterable[Tensor] = partitions(engine.objective.optimizer) if stage == 2 else engine.parameters.values()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _bytes(tensor: Tensor, seen: set[int]) -> int:
    """Of the memory behind a tensor, or 0 if it was counted before."""
    storage = tensor.untyped_storage()
    if storage.data_ptr() in seen or storage.nbytes() == 0:
        return 0
    seen.add(storage.data_ptr())
    return int(storage.nbytes())
