"""From the model in memory, on however many ranks, to a folder that is proven equal before it is trusted."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from pipeline.errors import StageError
from pipeline.files import atomic_folder
from pipeline.model import DualBranch
from pipeline.model.sharding import gathered
from pipeline.model.storage import consolidate
from pipeline.train.ranks import Ranks


def export(
    model: DualBranch,
    folder: Path,
    facts: dict[str, Any],
    add: Callable[[Path], None],
    ranks: Ranks = Ranks(),  # noqa: B008
) -> None:
    """Write the model's folder whole or not at all; all ranks call it together, rank 0 writes.

    Args:
        add: puts further files into the folder, such as the tokenizer's.

    Raises:
        StageError: on every rank, if the folder cannot be written or is not what is in memory.
    """
    state = ranks.together(lambda: consolidate(model))
    with ExitStack() as stack:

        def write() -> Path:
            temporary = stack.enter_context(atomic_folder(folder))
            model.save_pretrained(temporary, state=state, **facts)
            add(temporary)
            return temporary

        temporary = ranks.first(write)
        check_export(model, temporary, ranks)
        ranks.first(stack.close)  # renames


def check_export(model: DualBranch, folder: Path, ranks: Ranks = Ranks()) -> None:  # noqa: B008  frozen
    """Compare every trained tensor with what lies in the folder.

    Raises:
        StageError: on every rank, if a saved tensor is empty or not finite, a trained one is missing or differs.
    """
    saved = ranks.first(lambda: _index(folder))
    fault = None
    for name, parameter in model.trainable().items():
        with gathered([parameter]):
            if ranks.is_main and fault is None:
                fault = _difference(parameter.detach().cpu(), saved.get(_plain(name)))
    missing = sorted(_plain(name) for name in model.trainable() if _plain(name) not in saved)
    if missing:
        fault = f"{folder}: {len(missing)} trained tensors were not saved, the first is {missing[0]}"

    def tell() -> None:
        if fault:
            raise StageError(fault)

    ranks.first(tell)


def _index(folder: Path) -> dict[str, tuple[Path, str]]:
    """Plain name -> (file, name in it) of all saved tensors, none of them empty or not finite."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as content:  # type: ignore[no-untyped-call]
            for name in content.keys():  # noqa: SIM118  not a dictionary
                tensor = content.get_tensor(name)
                if tensor.numel() == 0 or not torch.isfinite(tensor).all():
                    raise StageError(f"{file}: the saved tensor {name} is empty or not finite")
                found[_plain(name)] = (file, name)
    return found


def _difference(tensor: Tensor, saved: tuple[Path, str] | None) -> str | None:
    if saved is None:
        return None  # told for all of them together
    file, name = saved
    with safe_open(file, framework="pt") as content:  # type: ignore[no-untyped-call]
        equal = torch.equal(content.get_tensor(name), tensor)
    return None if equal else f"{file}: the saved tensor {name} differs from the trained one"


def _plain(name: str) -> str:
    """One name for a tensor in memory, in a PEFT file and in a Hugging Face file."""
    wrappers = ("base_model", "model", "default", "causal")
    return ".".join(part for part in name.split(".") if part not in wrappers).removesuffix(".weight")
