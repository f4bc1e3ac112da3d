"""The branched model. Importing this package does not import torch until a name is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.model.batch import Batch
    from pipeline.model.building import build_model, check_length, load_tokenizer, longest_input
    from pipeline.model.dual_branch import DualBranch

_HOMES = {
    "Batch": "batch",
    "DualBranch": "dual_branch",
    "build_model": "building",
    "check_length": "building",
    "load_tokenizer": "building",
    "longest_input": "building",
}

__all__ = ["Batch", "DualBranch", "build_model", "check_length", "load_tokenizer", "longest_input"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
