"""Evaluation: the lm-eval model over branched models, the tasks, and the stage that writes scores.

What is named here is loaded when first used: importing the configuration must not import torch or lm-eval.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.evaluate.fingerprint import missing_tasks as missing_tasks
    from pipeline.evaluate.harness import BranchedLM as BranchedLM
    from pipeline.evaluate.stage import evaluate as evaluate
    from pipeline.evaluate.stage import evaluate_share as evaluate_share

_HOMES = {"evaluate": "stage", "evaluate_share": "stage", "missing_tasks": "fingerprint", "BranchedLM": "harness"}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
