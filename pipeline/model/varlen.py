"""Flash attention over pieces of unequal length, one behind another without padding (Dao 2023, arXiv 2307.08691).

PyTorch's own kernel, or that of the package flash-attn. Both align a causal window at the last key, so that the rows of
an answer see the whole prompt in front of them.
"""

import inspect
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from pipeline.model.kernels import Rows, uniform
from pipeline.model.layout import Layout
from pipeline.model.patterns import PATTERNS, Pattern
from pipeline.model.pieces import Pieces

Window = tuple[int, int]
"""Keys to the left and right of a row that it sees, counted from the last row and key; -1: all."""
Flash = Callable[[Tensor, Tensor, Tensor, "Bounds", "Bounds", Window, float | None], Tensor]


class Bounds:
    """Where pieces begin and end: int32 [pieces + 1], as the kernels want it, and the longest one."""

    def __init__(self, lengths: list[int], device: torch.device) -> None:
        self.places = torch.tensor([0, *lengths], device=device).cumsum(0, dtype=torch.int32)
        self.longest = max(lengths)


class VarlenKernel:
    """Patterns that are windows: causal, bidirectional, anti-causal."""

    name = "varlen"

    def __init__(self, flash: Flash) -> None:
        self.flash = flash

    def handles(self, pattern: Pattern) -> bool:
        return window_of(pattern) is not None

    def pieces(self, layout: Layout, pieces: Pieces, pattern: Pattern, rows: Rows, options: dict[str, Any]) -> Tensor:
        """See `pipeline.model.kernels.Kernel`."""
        place, window = (self.name, id(pieces)), window_of(pattern)
        assert window is not None
        if place not in layout.plans:
            layout.plans[place] = Bounds(pieces.lengths, pieces.device)
        bounds = layout.plans[place]
        query, key, value = uniform(*rows)
        return self.flash(_flat(query), _flat(key), _flat(value), bounds, bounds, window, options.get("scale"))[None]

    def answers(self, layout: Layout, prompt: tuple[Tensor, Tensor], rows: Rows, options: dict[str, Any]) -> Tensor:
        """See `pipeline.model.kernels.Kernel`."""
        place = (self.name, id(layout.answers), "answers")
        if place not in layout.plans:
            layout.plans[place] = _answer_plan(layout)
        order, queries, keys = layout.plans[place]
        query, key, value = rows
        joined = torch.cat([prompt[0], key], dim=2), torch.cat([prompt[1], value], dim=2)
        query, key, value = (_flat(part) for part in uniform(query, *joined))
        key, value = key.index_select(0, order), value.index_select(0, order)
        return self.flash(query, key, value, queries, keys, (-1, 0), options.get("scale"))[None]


def window_of(pattern: Pattern) -> Window | None:
    """The pattern as a window over pieces with as many keys as rows, if it is one."""
    if pattern.is_causal:
        return -1, 0
    if pattern.is_full:
        return -1, -1
    return (0, -1) if pattern is PATTERNS["anti_causal"] else None


def _flat(rows: Tensor) -> Tensor:
    """[1, heads, total, dim] -> [total, heads, dim]."""
    return rows[0].transpose(0, 1).contiguous()


def _answer_plan(layout: Layout) -> tuple[Tensor, Bounds, Bounds]:
    """Which of the rows (all prompts', then all answers') are the keys of each answer, in order, and their bounds."""
    prompts, answers = layout.prompts, layout.answers
    owners = range(answers.count) if layout.owners is None else layout.owners.tolist()
    prompt_rows = torch.arange(prompts.total).split(prompts.lengths)
    answer_rows = torch.arange(prompts.total, prompts.total + answers.total).split(answers.lengths)
    pairs = [(prompt_rows[owner], own) for owner, own in zip(owners, answer_rows, strict=True)]
    order = torch.cat([part for pair in pairs for part in pair]).to(answers.device)
    lengths = [len(prompt) + len(own) for prompt, own in pairs]
    return order, Bounds(answers.lengths, answers.device), Bounds(lengths, answers.device)


def find_flash() -> tuple[Flash, str] | None:
    """The kernel of this installation and whose it is: PyTorch's, else that of flash-attn; None: there is none."""
    if find_spec("torch.nn.attention.varlen"):
        from torch.nn.attention import varlen

        if "window_size" in inspect.signature(varlen.varlen_attn).parameters:
            return _torch_flash, "PyTorch"
    return (_package_flash, "flash-attn") if find_spec("flash_attn") else None


def _torch_flash(
    query: Tensor, key: Tensor, value: Tensor, queries: Bounds, keys: Bounds, window: Window, scale: float | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    output: Any = varlen_attn(
        query, key, value, queries.places, keys.places, queries.longest, keys.longest,
        scale=scale, window_size=window, enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return output  # type: ignore[no-any-return]


def _package_flash(
    query: Tensor, key: Tensor, value: Tensor, queries: Bounds, keys: Bounds, window: Window, scale: float | None
) -> Tensor:
    from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]

    output: Any = flash_attn_varlen_func(
        query, key, value, queries.places, keys.places, queries.longest, keys.longest,
        softmax_scale=scale, causal=window == (-1, 0), window_size=window,
    )  # fmt: skip
    return output  # type: ignore[no-any-return]
