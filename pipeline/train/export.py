"""Proof that a saved model is the one in memory, before it is trusted and the checkpoints go."""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from pipeline.errors import StageError
from pipeline.model import DualBranch


def check_export(model: DualBranch, folder: Path) -> None:
    """Compare every trained tensor with what lies in the folder.

    Raises:
        StageError: a saved tensor is empty or not finite, a trained one is missing or differs.
    """
    missing = {_plain(name): parameter for name, parameter in model.trainable().items()}
    for file, name, tensor in _tensors(folder):
        if tensor.numel() == 0 or not torch.isfinite(tensor).all():
            raise StageError(f"{file}: the saved tensor {name} is empty or not finite")
        parameter = missing.pop(_plain(name), None)
        if parameter is not None and not torch.equal(tensor, parameter.detach().cpu()):
            raise StageError(f"{file}: the saved tensor {name} differs from the trained one")
    if missing:
        raise StageError(f"{folder}: {len(missing)} trained tensors were not saved, the first is {min(missing)}")


def _tensors(folder: Path) -> Iterator[tuple[Path, str, Tensor]]:
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as content:  # type: ignore[no-untyped-call]
            for name in content.keys():  # noqa: SIM118  not a dictionary
                yield file, name, content.get_tensor(name)


def _plain(name: str) -> str:
    """One name for a tensor in memory, in a PEFT file and in a Hugging Face file."""
    wrappers = ("base_model", "model", "default", "causal")
    return ".".join(part for part in name.split(".") if part not in wrappers).removesuffix(".weight")
