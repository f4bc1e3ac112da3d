"""A trained model as a folder of its own, in another precision or in files of another size."""

import re
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import StageError, UserError
from pipeline.files import atomic_folder
from pipeline.model import DualBranch
from pipeline.model.merging import merged
from pipeline.model.storage import ADAPTERS, BRANCH, CARD, consolidate, save
from pipeline.quiet import hush_deepspeed

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
WRITTEN = (CARD, ADAPTERS, BRANCH, "config.json", "generation_config.json", "adapter_config.json", "README.md")
"""Files that are written anew; all others of the folder, the tokenizer's, are copied."""


def export_model(source: Path, target: Path, precision: str, shard_size: str, merge: bool = False) -> None:
    """Write the model of `source` to `target`, whole or not at all, and prove it equal by reading it back.

    A full model's causal stream is an ordinary Hugging Face folder, an adapter one in PEFT's form. Mixing parameters
    stay float32.

    Args:
        merge: write adapters as part of the weights, two full branches.

    Raises:
        UserError: `source` is no trained model, `target` exists, or an option is none.
        StageError: what was written is not what was to be written.
    """
    if precision not in PRECISIONS:
        raise UserError(f"--precision {precision}: must be one of {', '.join(PRECISIONS)}")
    if not re.fullmatch(r"\d+(\.\d+)?[KMG]i?B", shard_size):
        raise UserError(f"--shard-size {shard_size}: must be a number with a unit, as in 5GB")
    if target.exists():
        raise UserError(f"{target}: is there already: choose another folder")
    hush_deepspeed()
    model = (
        merged(DualBranch.from_pretrained(source, precision="fp32")) if merge else DualBranch.from_pretrained(source)
    )
    for name, parameter in model.named_parameters():
        if ".mixing." not in name:
            parameter.data = parameter.data.to(PRECISIONS[precision])
    state = consolidate(model)
    with atomic_folder(target) as temporary:
        save(model, temporary, model.facts, state, shard_size)
        for file in source.iterdir():
            if file.is_file() and file.name not in WRITTEN and ".safetensors" not in file.name:
                shutil.copy2(file, temporary / file.name)
        _check(temporary, state)


def _check(folder: Path, state: dict[str, Tensor]) -> None:
    """Load the folder as a user will, and compare every tensor."""
    found: dict[str, Any] = consolidate(DualBranch.from_pretrained(folder))
    for name, tensor in state.items():
        if name not in found or not torch.equal(found[name].to(tensor.dtype), tensor):
            raise StageError(f"{folder}: the weight {name} is not what was written")
