"""Layers that carry the prompt branch beside the causal stream."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from pipeline.model.attention import Exchange
from pipeline.model.config import MethodConfig
from pipeline.model.layout import Layout
from pipeline.model.mixing import Mixing


class BranchedLayer(GradientCheckpointingLayer):
    """One decoder layer for the causal stream and one for the prompt branch.

    Its input is the causal stream of all samples followed by the rows of the prompt branch. The branch runs
    first; inside the attention of the causal stream, answers read the prompt's mixed keys and values.
    Without a layout (decoding) it is the layer of the causal stream alone.
    """

    def __init__(self, causal: nn.Module, prompt: nn.Module | None, mixing: Mixing | None, is_last: bool) -> None:
        super().__init__()
        self.causal = causal
        self.prompt = prompt
        """None where the branch shares the weights of the causal stream."""
        self.mixing = mixing
        self.is_last = is_last

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        layout: Layout | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """[1, causal rows + branch rows, width] -> the same; causal rows only in the last layer."""
        if layout is None:
            return self.causal(hidden_states, position_embeddings=position_embeddings, **kwargs)
        assert position_embeddings is not None
        rows = [layout.causal_rows, layout.branch_rows]
        causal, prompt = hidden_states.split(rows, dim=1)
        causal_places, prompt_places = zip(*(part.split(rows, dim=1) for part in position_embeddings), strict=True)
        exchange = Exchange(self.mixing, self.is_last)
        kwargs |= {"layout": layout, "exchange": exchange}
        prompt = self._prompt_layer()(prompt, position_embeddings=prompt_places, in_branch=True, **kwargs)
        causal = self.causal(causal, position_embeddings=causal_places, **kwargs)
        return causal if self.is_last else torch.cat([causal, prompt], dim=1)

    def _prompt_layer(self) -> nn.Module:
        if self.prompt is not None:
            return self.prompt
        return KeyValueLayer.of(self.causal) if self.is_last else self.causal


class NoQuery(nn.Module):
    """Stands in for a query projection whose result is never used: the right shape at no cost."""

    def __init__(self, out_features: int) -> None:
        super().__init__()
        self.out_features = out_features

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states.new_zeros(1).expand(*hidden_states.shape[:-1], self.out_features)


class KeyValueLayer(nn.Module):
    """The part of a decoder layer that makes keys and values: its input norm and two projections.

    All that the last layer's prompt branch is needed for; other weights would be dead, and so would their
    optimizer states.
    """

    def __init__(self, input_layernorm: nn.Module, self_attn: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = input_layernorm
        self.self_attn = self_attn

    @classmethod
    def of(cls, layer: nn.Module) -> "KeyValueLayer":
        """A view of `layer`: the modules it keeps are the layer's own."""
        attention = copy.copy(layer.get_submodule("self_attn"))
        attention._modules = {name: _keep(name, module) for name, module in attention._modules.items()}
        return cls(layer.get_submodule("input_layernorm"), attention).train(layer.training)

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        return hidden_states


def _keep(name: str, module: nn.Module | None) -> nn.Module | None:
    if name == "q_proj":
        base: Any = module
        return NoQuery(getattr(base, "base_layer", base).out_features)
    return module if name.startswith(("k_", "v_")) else nn.Identity()


def add_branches(layers: nn.ModuleList, method: MethodConfig, share_base: bool) -> None:
    """Replace each decoder layer by a `BranchedLayer`, in place, if the method has a prompt branch of its own rows.

    Args:
        share_base: the branch's layers share the base parameters (PEFT adds what differs); else they are copies.
    """
    if len(method.branches) == 1 and method.branches[0].weights == "answer":
        return
    owns_weights = method.branches[-1].weights == "own"
    for index, layer in enumerate(layers):
        is_last = index == len(layers) - 1
        mixing = Mixing(method.theta_init, next(layer.parameters()).device) if len(method.branches) == 2 else None
        prompt = _copy(KeyValueLayer.of(layer) if is_last else layer, share_base) if owns_weights else None
        layers[index] = BranchedLayer(layer, prompt, mixing, is_last)


def _copy(layer: nn.Module, share_base: bool) -> nn.Module:
    shared = {id(parameter): parameter for parameter in layer.parameters()} if share_base else {}
    return copy.deepcopy(layer, memo=shared)
