"""Layers that carry the prompt branch beside the causal stream."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from pipeline.model.attention import Exchange
from pipeline.model.config import MethodConfig, TuningConfig
from pipeline.model.layout import Layout
from pipeline.model.linears import CausalRows, branch_linears
from pipeline.model.mixing import Mixing
from pipeline.model.sharding import copy_sharded, is_sharded


class BranchedLayer(GradientCheckpointingLayer):
    """A decoder layer that takes the causal stream of all samples, followed by the rows of the prompt branch.

    Answers read the prompt's mixed keys and values inside the attention of the causal stream.
    Without a layout (decoding) it is the layer of the causal stream alone.
    """

    def __init__(self, causal: nn.Module, mixing: Mixing | None) -> None:
        super().__init__()
        self.causal = causal
        self.mixing = mixing


class JointLayer(BranchedLayer):
    """Both streams pass through one layer at once: what they share (all but the adapters) is computed once.

    `rows` tells the layer's `BranchedLinear`s how many of the rows belong to the causal stream.
    """

    def __init__(self, causal: nn.Module, mixing: Mixing | None, rows: CausalRows) -> None:
        super().__init__(causal, mixing)
        self.rows = rows

    def forward(self, hidden_states: Tensor, layout: Layout | None = None, **kwargs: Any) -> Tensor:
        """[1, causal rows + branch rows, width] -> the same."""
        self.rows.count = None if layout is None else layout.causal_rows
        if layout is not None:
            kwargs |= {"layout": layout, "exchange": Exchange(self.mixing), "stream": "both"}
        output: Tensor = self.causal(hidden_states, **kwargs)
        return output


class SplitLayer(BranchedLayer):
    """Each stream passes through a layer of its own, the prompt branch first.

    Args:
        prompt: the branch's layer; None where it shares the weights of the causal stream.
    """

    def __init__(self, causal: nn.Module, mixing: Mixing | None, prompt: nn.Module | None, is_last: bool) -> None:
        super().__init__(causal, mixing)
        self.prompt = prompt
        self.is_last = is_last

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        layout: Layout | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """[1, causal rows + branch rows, width] -> the same; answer rows only in the last layer."""
        if layout is None:
            output: Tensor = self.causal(hidden_states, position_embeddings=position_embeddings, **kwargs)
            return output
        assert position_embeddings is not None
        rows = [layout.causal_rows, layout.branch_rows]
        causal, prompt = hidden_states.split(rows, dim=1)
        causal_places, prompt_places = zip(*(part.split(rows, dim=1) for part in position_embeddings), strict=True)
        kwargs |= {"layout": layout, "exchange": Exchange(self.mixing, self.is_last)}
        if layout.conversation is not None and not self.is_last:  # the branch reads the answers of earlier turns
            KeyValueLayer.of(self.causal)(causal, position_embeddings=causal_places, stream="own", **kwargs)
        prompt = self._prompt_layer()(prompt, position_embeddings=prompt_places, stream="prompt", **kwargs)
        if self.is_last and not torch.is_grad_enabled():  # ZeRO-3 cannot differentiate through a module called twice
            return self._answers(causal, causal_places, layout.prompt_rows, kwargs)
        causal = self.causal(causal, position_embeddings=causal_places, **kwargs)
        return causal[:, layout.prompt_rows :] if self.is_last else torch.cat([causal, prompt], dim=1)

    def _answers(
        self, causal: Tensor, places: tuple[Tensor, Tensor], prompt_rows: int, kwargs: dict[str, Any]
    ) -> Tensor:
        """The last layer: of the causal stream's prompt rows only keys and values are needed."""
        rows = [prompt_rows, causal.shape[1] - prompt_rows]
        own, answers = causal.split(rows, dim=1)
        own_places, answer_places = zip(*(part.split(rows, dim=1) for part in places), strict=True)
        if prompt_rows:
            KeyValueLayer.of(self.causal)(own, position_embeddings=own_places, stream="own", **kwargs)
        output: Tensor = self.causal(answers, position_embeddings=answer_places, stream="answer", **kwargs)
        return output

    def _prompt_layer(self) -> nn.Module:
        return KeyValueLayer.of(self.causal) if self.prompt is None else self.prompt


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


def add_branches(layers: nn.ModuleList, method: MethodConfig, tuning: TuningConfig) -> None:
    """Replace each decoder layer by a `BranchedLayer`, in place, if the method has a prompt branch of its own rows.

    Full finetuning copies the layers. Otherwise the base weights are shared, and all layers but the last are joint:
    the last layer's branch is needed for its keys and values only.
    """
    if len(method.branches) == 1 and method.branches[0].weights == "answer":
        return
    owns_weights = method.branches[-1].weights == "own"
    copies = owns_weights and tuning.kind == "full"
    for index, layer in enumerate(layers):
        is_last = index == len(layers) - 1
        mixing = Mixing(method.theta_init, next(layer.parameters()).device) if len(method.branches) == 2 else None
        if copies or is_last:
            source = KeyValueLayer.of(layer) if is_last else layer
            prompt = _copy(source, share_base=not copies) if owns_weights else None
            layers[index] = SplitLayer(layer, mixing, prompt, is_last)
        else:
            rows = CausalRows()
            if owns_weights and tuning.kind != "none":
                branch_linears(layer, tuning.target_modules, rows, is_lora=tuning.kind == "lora")
            layers[index] = JointLayer(layer, mixing, rows)


def _copy(layer: nn.Module, share_base: bool) -> nn.Module:
    if share_base:
        return copy.deepcopy(layer, memo={id(parameter): parameter for parameter in layer.parameters()})
    return own_copy(layer)


def own_copy(module: nn.Module) -> nn.Module:
    """A copy with parameters of its own, sharded or not."""
    return copy_sharded(module) if any(map(is_sharded, module.parameters())) else copy.deepcopy(module)
