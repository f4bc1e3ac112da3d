"""Saving and loading trained models in Hugging Face form.

A folder holds `dualtune.json` (method, tuning, base model, facts), and
  tuning full: config.json and model.safetensors, the causal stream, which stock transformers can load;
  adapters: adapter_config.json and adapter_model.safetensors, in PEFT form;
  methods with a prompt branch: prompt_branch.safetensors, its own weights (tuning full) and mixing parameters.
"""

from pathlib import Path
from typing import Any

import torch
from peft import load_peft_weights, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pipeline import __version__
from pipeline.errors import StageError, UserError
from pipeline.files import read_json, write_json
from pipeline.model.building import assemble, load_base
from pipeline.model.config import MethodConfig, ModelConfig, TuningConfig
from pipeline.model.dual_branch import DualBranch
from pipeline.model.sharding import whole_state

CARD = "dualtune.json"
BRANCH = "prompt_branch.safetensors"
ADAPTERS = "adapter_model.safetensors"
SHARD_SIZE = "5GB"
PEFT_PREFIX = "base_model.model."
"""What PEFT's wrapper puts before the model's own names."""


def consolidate(model: DualBranch) -> dict[str, Tensor]:
    """What `save` writes, under the names of the model (or of PEFT's wrapper around it).

    Under ZeRO-3 all ranks must call it together; the tensors are gathered one by one, into the memory of rank 0's
    CPU, and the other ranks get none.
    """
    adapters = model.__dict__["adapters"]
    root: nn.Module = model.model if adapters is None else adapters
    return whole_state(root, with_frozen=adapters is None)


def save(
    model: DualBranch,
    folder: Path,
    facts: dict[str, Any],
    state: dict[str, Tensor] | None = None,
    shard_size: str = SHARD_SIZE,
) -> None:
    """Write what training changed, and how it was made. `facts` come back as `model.facts`.

    The card is written last: a folder without it is not a model.

    Args:
        state: what `consolidate` returned, where several processes made it together.
        shard_size: of the largest file of a full model's causal stream, as in 5GB.

    Raises:
        StageError: a tensor is empty or not finite.
    """
    state = consolidate(model) if state is None else state
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensor in state.items():
        if tensor.numel() == 0 or not torch.isfinite(tensor).all():
            raise StageError(f"the weight {name} is {'not finite' if tensor.numel() else 'empty'}: not saved")
    if model.__dict__["adapters"] is not None:
        model.__dict__["adapters"].save_pretrained(folder, state_dict=state)
    else:
        model.model.save_pretrained(folder, state_dict=_causal_weights(state), max_shard_size=shard_size)
    branch = _branch_weights(model, state)
    if branch:
        save_file(branch, folder / BRANCH, metadata={"format": "pt"})
    write_json(folder / CARD, {
        "format": 1,
        "dualtune": __version__,
        "model": model.base.model_dump(mode="json", exclude={"kernels"}),
        "method": model.method.model_dump(mode="json"),
        "tuning": model.tuning.model_dump(mode="json"),
        "facts": facts,
    })  # fmt: skip


def _causal_weights(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The causal stream under the names of the unmodified model."""
    return {name.replace(".causal.", "."): tensor for name, tensor in state.items() if not _is_branch(name)}


def _branch_weights(model: DualBranch, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Mixing parameters, and under full tuning the branch's own weights."""
    kept = ("mixing",) if model.tuning.kind != "full" else ("mixing", "prompt")
    return {
        name.removeprefix(PEFT_PREFIX): tensor.detach().cpu().clone()
        for name, tensor in state.items()
        if any(f".{part}." in name for part in kept) and _is_branch(name)
    }


def _is_branch(name: str) -> bool:
    return ".prompt." in name or ".mixing." in name


def load(folder: Path, base: str | None = None, precision: str | None = None) -> DualBranch:
    """Load a folder written by `save`.

    Args:
        base: where the base model of an adapter lies, if it has moved.
        precision: "bf16" or "fp32" instead of the one trained with.

    Raises:
        UserError: the folder is not a model of ours, or its weights don't fit the base.
    """
    card = read_json(folder / CARD)
    if not isinstance(card, dict) or card.get("format") != 1:
        raise UserError(f"{folder}: not a model saved by dualtune (no valid {CARD})")
    method, tuning = MethodConfig(**card["method"]), TuningConfig(**card["tuning"])
    origin = ModelConfig(**card["model"])
    changes = {"name": base, "precision": precision}
    origin = ModelConfig(**origin.model_dump() | {key: value for key, value in changes.items() if value})
    source = origin.model_copy(update={"name": str(folder), "revision": None}) if tuning.kind == "full" else origin
    model = assemble(load_base(source, tuning), origin, method, tuning, seed=0)
    try:
        _load_weights(model, folder)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UserError(f"{folder}: its weights cannot be loaded ({str(error).splitlines()[0]})") from error
    model.facts = card["facts"]
    return model.eval()


def _load_weights(model: DualBranch, folder: Path) -> None:
    """Put the saved weights in place; a missing or left-over name is an error, never a warning."""
    expected = set(_branch_weights(model, model.model.state_dict()))
    branch = load_file(folder / BRANCH) if expected else {}
    _check_names(folder / BRANCH, expected, set(branch))
    model.model.load_state_dict(branch, strict=False)
    adapters = model.__dict__["adapters"]
    if adapters is not None:
        if not (folder / ADAPTERS).is_file():  # PEFT would look for it on the hub
            raise UserError(f"{folder}: {ADAPTERS} is missing")
        weights = load_peft_weights(str(folder), device="cpu")
        result: Any = set_peft_model_state_dict(adapters, weights)
        trained = {f"base_model.{name}" for name in model.trainable() if ".mixing." not in name}
        _check_names(folder / ADAPTERS, trained & set(result.missing_keys), set(result.unexpected_keys))


def _check_names(file: Path, expected: set[str], found: set[str]) -> None:
    odd = sorted(expected ^ found)
    if odd:
        raise UserError(f"{file}: {len(odd)} weights are missing or left over, the first is {odd[0]}")
