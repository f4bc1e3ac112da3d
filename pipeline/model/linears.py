"""Linear layers whose base weights both streams share, each stream with an adapter of its own."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

ADAPTER = "default"
"""The name that PEFT gives to the only adapter of a module."""


@dataclass
class CausalRows:
    """How many of the rows that come through a layer belong to the causal stream; None: all (decoding)."""

    count: int | None = None


class BranchedLinear(nn.Module):
    """One linear layer with two adapters: the first rows get the causal stream's, the others the branch's.

    PEFT puts its adapters around `causal` and `prompt`, which share their parameters.

    Args:
        is_lora: the adapters are plain LoRA, whose two low-rank products are computed as one.
    """

    def __init__(self, module: nn.Linear, rows: CausalRows, is_lora: bool) -> None:
        super().__init__()
        self.causal: Any = module
        self.prompt: Any = copy.deepcopy(module, memo={id(part): part for part in module.parameters()})
        self.rows = rows
        self.is_lora = is_lora

    def forward(self, inputs: Tensor) -> Tensor:
        """[1, rows, in features] -> [1, rows, out features]."""
        if self.rows.count is None:
            output: Tensor = self.causal(inputs)
            return output
        if self.is_lora:
            return self._lora(inputs, self.rows.count)
        causal, prompt = inputs.split([self.rows.count, inputs.shape[1] - self.rows.count], dim=1)
        return torch.cat([self.causal(causal), self.prompt(prompt)], dim=1)

    def _lora(self, inputs: Tensor, count: int) -> Tensor:
        """base(x) + scaling B A x: the base once over all rows, and one LoRA of twice the rank in which each row
        reaches its own half. Cheaper than two, which would have to be cut apart and joined at full width."""
        adapters = (self.causal, self.prompt)
        down = torch.cat([adapter.lora_A[ADAPTER].weight for adapter in adapters])
        up = torch.cat([adapter.lora_B[ADAPTER].weight for adapter in adapters], dim=1)
        is_cast = torch.is_autocast_enabled(inputs.device.type)
        narrow = linear(self.causal.lora_dropout[ADAPTER](inputs if is_cast else inputs.to(down.dtype)), down)
        mask = narrow.new_full(narrow.shape, self.causal.scaling[ADAPTER])
        rank = narrow.shape[-1] // 2
        mask[:, :count, rank:] = 0
        mask[:, count:, :rank] = 0
        result: Tensor = self.causal.base_layer(inputs)
        return result + linear(narrow * mask, up).to(result.dtype)


def branch_linears(layer: nn.Module, leaves: tuple[str, ...], rows: CausalRows, is_lora: bool) -> None:
    """Replace the linear modules with the given leaf names (none: all) by `BranchedLinear`s, in place."""
    for module in list(layer.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and (not leaves or name in leaves):
                setattr(module, name, BranchedLinear(child, rows, is_lora))
