"""What training a run took, from its own result, and its answers: the columns of the paper's table 14."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.report.record import UnusableError, texts
from pipeline.report.statistics import is_number
from pipeline.report.unit import Unit

PREFIX = "cost:"
"""Of the names of costs, where tasks and costs stand in one list."""


@dataclass(frozen=True)
class CostKind:
    """One cost: its heading, the keys of train/result.json or inference.json whose product it is, and what a caption
    says of it."""

    heading: str
    keys: tuple[str, ...]
    unit: Unit
    words: str
    lower_is_better: bool = True
    conditions: tuple[str, ...] = ()
    """Keys of inference.json that must be equal in one column; (): a cost of training."""

    @property
    def is_of_training(self) -> bool:
        return not self.conditions


ONE_PROMPT = ("prompt_tokens", "new_tokens", "device")


COSTS = {
    "hours": CostKind(
        "device h",
        ("wall_seconds", "processes"),
        Unit(1 / 3600, 2, "h"),
        "time of training in hours x devices",
    ),
    "tokens_per_second": CostKind(
        "tokens/s",
        ("tokens_per_second",),
        Unit(1, 0, "tokens/s"),
        "tokens of prompt and answer a second, over the whole training",
        lower_is_better=False,
    ),
    "memory": CostKind(
        "peak GB",
        ("peak_memory_bytes",),
        Unit(1e-9, 2, "GB"),
        "peak memory of training in 10^9 bytes (of the GPU; without one, of the process)",
    ),
    "parameters": CostKind(
        "trained M",
        ("trainable_parameters",),
        Unit(1e-6, 2, "million"),
        "trained parameters in millions",
    ),
    "prefill": CostKind(
        "prefill s",
        ("prefill_seconds",),
        Unit(1, 3, "s"),
        "seconds in which all branches read one prompt",
        conditions=ONE_PROMPT,
    ),
    "generation": CostKind(
        "generation s",
        ("generation_seconds",),
        Unit(1, 2, "s"),
        "seconds of one whole answer, prefill and all new tokens",
        conditions=ONE_PROMPT,
    ),
}


def cost_of(key: str, result: Mapping[str, Any]) -> float:
    """The cost `key` (`cost:hours`) of a training result, as measured.

    Raises:
        UnusableError: the result has no such number.
    """
    kind = COSTS[key.removeprefix(PREFIX)]
    factors = [result.get(name, 1 if name == "processes" else None) for name in kind.keys]
    if not all(is_number(factor) and factor >= 0 for factor in factors):
        where = "training result" if kind.is_of_training else "inference.json"
        raise UnusableError(f"{where} has no number for {kind.heading}")
    return float(math.prod(factors))


def device_of(result: Mapping[str, Any]) -> str:
    """What it ran on, in words."""
    return texts(result).get("device") or "unrecorded device"
