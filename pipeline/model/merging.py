"""Adapters merged into the weights: the same model as one with two full branches, which needs no PEFT."""

import copy

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from pipeline.errors import UserError
from pipeline.model.branches import JointLayer, SplitLayer
from pipeline.model.building import assemble, decoder_layers, load_base
from pipeline.model.config import TuningConfig
from pipeline.model.dual_branch import DualBranch
from pipeline.model.linears import BranchedLinear


def merged(model: DualBranch) -> DualBranch:
    """A model of `tuning: full`, in float32, that computes what `model` does with its adapters.

    Raises:
        UserError: the model has no adapters.
    """
    if model.__dict__["adapters"] is None:
        raise UserError(f"the model was trained with tuning {model.tuning.kind}: it has no adapters to merge")
    tuning = TuningConfig(kind="full")
    whole = assemble(load_base(model.base, tuning), model.base, model.method, tuning, seed=0)
    for source, target in zip(decoder_layers(model.model), decoder_layers(whole.model), strict=True):
        for stream, part in _streams(target).items():
            for name, linear in part.named_modules():
                if isinstance(linear, nn.Linear):
                    _fill(linear, _counterpart(source, stream, name))
            if stream == "mixing":
                part.load_state_dict(_mixing(source).state_dict())
    whole.facts = {**model.facts, "merged_from": model.tuning.model_dump(mode="json")}
    return whole.eval()


def _streams(layer: nn.Module) -> dict[str, nn.Module]:
    """Of a full model's layer: the parts that have weights of their own."""
    if not isinstance(layer, JointLayer | SplitLayer):
        return {"causal": layer}
    return {name: part for name, part in layer.named_children() if name in ("causal", "prompt", "mixing")}


def _mixing(layer: nn.Module) -> nn.Module:
    return layer.get_submodule("mixing")


def _counterpart(layer: nn.Module, stream: str, name: str) -> nn.Module:
    """What does the work of a linear module in a layer with adapters."""
    if isinstance(layer, SplitLayer):
        return layer.get_submodule(stream).get_submodule(name)
    module = (layer.get_submodule("causal") if isinstance(layer, JointLayer) else layer).get_submodule(name)
    return module.get_submodule(stream) if isinstance(module, BranchedLinear) else module


@torch.no_grad()
def _fill(linear: nn.Linear, source: nn.Module) -> None:
    if isinstance(source, BaseTunerLayer):
        # A copy, since both streams share the base. In float32: bfloat16 would round the adapter's part away.
        source = copy.deepcopy(source).float()
        source.merge(safe_merge=True)
        source = source.get_base_layer()
    linear.load_state_dict(source.state_dict())
