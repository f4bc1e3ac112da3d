"""Which tensors a run trains: what method and tuning ask for, against what the model and the optimizer have.

A second adapter that is frozen, or that the optimizer doesn't know, trains on without a word and spoils the result.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from torch.nn import Parameter
from torch.optim import Optimizer

from pipeline.errors import StageError
from pipeline.model import DualBranch
from pipeline.model.sharding import size

GROUPS = {".mixing.": "mixing", ".prompt.": "prompt branch", ".layers.": "answer stream"}
"""Part of a tensor's name -> where it belongs, the first that fits; otherwise embeddings and last norm."""


@dataclass(frozen=True)
class Group:
    """Trained tensors that belong together."""

    name: str
    tensors: int
    parameters: int
    kinds: tuple[str, ...]
    """Their names, without layers and what is common to all."""

    def __str__(self) -> str:
        return f"{self.name}: {self.tensors} tensors, {self.parameters:,} parameters ({', '.join(self.kinds)})"


def trained_tensors(model: DualBranch) -> dict[str, Parameter]:
    """The tensors to train, by name.

    Raises:
        StageError: those that require gradients are not exactly those that method and tuning ask for.
    """
    found = model.trainable()
    expected = set(_expected(model))
    _refuse(expected - found.keys(), "should be trained, but require no gradient")
    _refuse(found.keys() - expected, f"require gradients, but tuning {model.tuning.kind} does not train them")
    if not found:
        raise StageError("0 tensors require gradients: there is nothing to train")
    return found


def check_optimizer(parameters: dict[str, Parameter], optimizer: Optimizer) -> None:
    """Make sure that the optimizer updates every trained tensor, and nothing else.

    Raises:
        StageError: naming the first that is missing or left over.
    """
    held = [id(tensor) for group in optimizer.param_groups for tensor in group["params"]]
    _refuse({name for name, tensor in parameters.items() if id(tensor) not in held}, "are unknown to the optimizer")
    if len(held) != len(parameters):
        raise StageError(f"the optimizer holds {len(held)} tensors, trained are {len(parameters)}")


def check_zero(parameters: dict[str, Parameter], zero: Any) -> None:
    """The same of DeepSpeed's ZeRO optimizer, which holds flat copies instead of the tensors.

    Raises:
        StageError: naming the first that is missing.
    """
    groups = zero.fp16_groups if hasattr(zero, "fp16_groups") else zero.bit16_groups
    held = {id(tensor) for tensor in _flat(groups)}
    _refuse({name for name, tensor in parameters.items() if id(tensor) not in held}, "are unknown to DeepSpeed")


def _flat(groups: Any) -> Iterator[Any]:
    for item in groups:
        yield from _flat(item) if isinstance(item, list | tuple) else (item,)


def _refuse(names: set[str], why: str) -> None:
    if names:
        raise StageError(f"{len(names)} tensors {why}, the first is {min(names)}")


def _expected(model: DualBranch) -> Iterator[str]:
    """Names of what method and tuning ask for, found without looking at `requires_grad`."""
    kind = model.tuning.kind
    for name, _ in model.named_parameters() if kind != "none" else ():
        if kind == "full" or ".mixing." in name:
            yield name
    if kind in ("none", "full"):
        return
    for place, module in model.named_modules():
        if _is_target(model, place, module):
            if not isinstance(module, BaseTunerLayer):
                raise StageError(f"{place} should have an adapter, but has none")
            base = {id(tensor) for tensor in module.get_base_layer().parameters()}
            own: nn.Module = module  # type: ignore[assignment]
            yield from (f"{place}.{name}" for name, tensor in own.named_parameters() if id(tensor) not in base)


def _is_target(model: DualBranch, place: str, module: nn.Module) -> bool:
    """Is this a linear module of a decoder layer that the tuning names, or what PEFT put in its place?"""
    if isinstance(module, BaseTunerLayer):
        return True
    if not isinstance(module, nn.Linear) or ".layers." not in place or _is_part(place):
        return False
    leaf = place.removesuffix(".causal").removesuffix(".prompt").rpartition(".")[2]
    return not model.tuning.target_modules or leaf in model.tuning.target_modules


def _is_part(place: str) -> bool:
    """Inside PEFT's module: the base, or the adapter's own matrices."""
    return any(part == "base_layer" or part.startswith(("lora_", "vera_", "ia3_")) for part in place.split("."))


def groups(parameters: dict[str, Parameter]) -> list[Group]:
    """The trained tensors as a person wants to read them."""
    found: dict[str, list[tuple[str, Parameter]]] = {}
    for name, tensor in parameters.items():
        found.setdefault(_group(name), []).append((name, tensor))
    return [_summary(name, tensors) for name, tensors in found.items()]


def _group(name: str) -> str:
    return next((group for part, group in GROUPS.items() if part in name), "embeddings and last norm")


def _summary(name: str, tensors: list[tuple[str, Parameter]]) -> Group:
    return Group(name, len(tensors), sum(size(tensor) for _, tensor in tensors), _kinds(n for n, _ in tensors))


def _kinds(names: Iterable[str]) -> tuple[str, ...]:
    """`model.layers.3.causal.self_attn.q_proj.lora_A.default.weight` -> q_proj.lora_A"""
    dull = {"weight", "default", "base_layer", "causal", "prompt", "mixing"}
    parts = ([part for part in name.split(".") if part not in dull] for name in names)
    return tuple(dict.fromkeys(_leaf(part) for part in parts))


def _leaf(parts: list[str]) -> str:
    is_adapter = parts[-1].startswith(("lora_", "vera_", "ia3_"))
    return ".".join(parts[-2:] if is_adapter or parts[-1] == "bias" else parts[-1:])
