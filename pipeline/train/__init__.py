"""Training: one run, from prepared rows to a saved model. Importing this package imports nothing heavy."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.train.completion import is_complete as is_complete
    from pipeline.train.signals import Interrupted as Interrupted
    from pipeline.train.stage import train as train

_HOMES = {"train": "stage", "is_complete": "completion", "Interrupted": "signals"}


def __getattr__(name: str) -> Any:
    # Late, because pipeline.config imports pipeline.train.config, and the stage imports pipeline.config.
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
