"""A model that one GPU cannot hold, its layers spread over all GPUs by accelerate."""

from typing import Any

import torch
from accelerate import dispatch_model, infer_auto_device_map
from accelerate.utils import get_max_memory

from pipeline.errors import StageError, UserError
from pipeline.model import DualBranch


def spread(model: DualBranch) -> DualBranch:
    """Put whole layers on one GPU after another; inputs follow them.

    Raises:
        UserError: there is no GPU.
        StageError: all GPUs together are too small.
    """
    if not torch.cuda.is_available():
        raise UserError("evaluation.spread: there is no GPU to spread the model over")
    room = {device: size for device, size in get_max_memory().items() if device != "cpu"}
    dispatch_model(model.model, device_map(model, room))
    return model


def device_map(model: DualBranch, room: dict[int, int]) -> dict[str, Any]:
    """Module name -> GPU.

    Args:
        room: bytes of each GPU.

    Raises:
        StageError: they are too small together. Weights left on the CPU would be read by the branches behind the
            back of accelerate's hooks.
    """
    decoder: Any = model.model.base_model
    layers = {type(layer).__name__ for layer in decoder.layers}
    found: dict[str, Any] = infer_auto_device_map(model.model, max_memory=room, no_split_module_classes=list(layers))
    if set(found.values()) - set(room):
        raise StageError(
            f"the model does not fit the {len(room)} GPUs, of {sum(room.values()) / 2**30:.1f} GiB together"
        )
    return found
