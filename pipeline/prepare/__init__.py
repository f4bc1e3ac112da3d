"""Preparation of training data. Importing this package does not import transformers until a name is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.prepare.cache import PreparedData, Row
    from pipeline.prepare.stage import prepare, prepare_share
    from pipeline.prepare.templates import template_hash

_HOMES = {
    "PreparedData": "cache",
    "Row": "cache",
    "prepare": "stage",
    "prepare_share": "stage",
    "template_hash": "templates",
}

__all__ = ["PreparedData", "Row", "prepare", "prepare_share", "template_hash"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
