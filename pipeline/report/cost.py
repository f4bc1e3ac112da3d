"""What training a run took, from its own result, and its answers: the columns of the paper's table 14."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.report.record import UnusableError
from pipeline.report.unit import Unit

PREFIX = "cost:"
"""Of the names of costs, where tasks and costs stand in one list."""


@dataclass(frozen=True)
class CostKind:
    """One cost: its heading, how it is read from train/result.json or inference.json, and what a caption says of it."""

    heading: str
    read: Callable[[Mapping[str, Any]], Any]
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
        lambda result: result["wall_seconds"] * result.get("processes", 1),
        Unit(1 / 3600, 2, "h"),
        "time of training in hours x devices",
    ),
    "tokens_per_second": CostKind(
        "tokens/s",
        lambda result: result["tokens_per_second"],
        Unit(1, 0, "tokens/s"),
        "tokens of prompt and answer a second, over the whole training",
        lower_is_better=False,
    ),
    "memory": CostKind(
        "peak GB",
        lambda result: result["peak_memory_bytes"],
        Unit(1e-9, 2, "GB"),
        "peak memory of training in 10^9 bytes (of the GPU; without one, of the process)",
    ),
    "parameters": CostKind(
        "trained M",
        lambda result: result["trainable_parameters"],
        Unit(1e-6, 2, "million"),
        "trained parameters in millions",
    ),
    "prefill": CostKind(
        "prefill s",
        lambda result: result["prefill_seconds"],
        Unit(1, 3, "s"),
        "seconds in which all branches read one prompt",
        conditions=ONE_PROMPT,
    ),
    "generation": CostKind(
        "generation s",
        lambda result: result["generation_seconds"],
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
    try:
        value = kind.read(result)
    except (KeyError, TypeError):
        value = None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        where = "training result" if kind.is_of_training else "inference.json"
        raise UnusableError(f"{where} has no number for {kind.heading}")
    return float(value)


def device_of(result: Mapping[str, Any]) -> str:
    """What it ran on, in words."""
    return str(result.get("device") or "unrecorded device")
