"""Opening a model by name alone: a trained model folder, or a base model under a method that needs no training."""

from pathlib import Path

import torch

from pipeline.errors import UserError
from pipeline.files import read_json
from pipeline.model.building import build_model
from pipeline.model.config import MethodConfig, ModelConfig, TuningConfig
from pipeline.model.dual_branch import DualBranch


def is_trained(name: str) -> bool:
    """Is this a folder that training has left?"""
    return (Path(name) / "dualtune.json").is_file()


def open_model(name: str, method: str = "causal", device: str | None = None, **base: str | bool | None) -> DualBranch:
    """In evaluation mode, on `device`, by default the GPU if there is one.

    Args:
        name: a trained model folder, or a base model (folder or hub id).
        method: of a base model.
        base: further keys of `ModelConfig` for a base model; of a trained one `base` and `precision`.

    Raises:
        UserError: there is no such model.
    """
    given = {key: value for key, value in base.items() if value is not None}
    if is_trained(name):
        model = DualBranch.from_pretrained(Path(name), **given)  # type: ignore[arg-type]
    elif read_json(Path(name) / "train" / "result.json") is not None:
        raise UserError(f"{name}: is a run folder, its model is {Path(name) / 'model'}")
    else:
        config = ModelConfig(name=name, **given)  # type: ignore[arg-type]
        model = build_model(config, MethodConfig.model_validate(method), TuningConfig(kind="none"), seed=0)
    return settle(model, device)


def device_name(device: torch.device) -> str:
    """The kind of GPU, or CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()


def settle(model: DualBranch, device: str | None = None) -> DualBranch:
    """In evaluation mode, on `device`, by default the GPU if there is one."""
    return model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()
