"""FlexAttention over the packed row: block masks made of the patterns' plain rules, nothing padded, nothing copied."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from pipeline.model.kernels import Rows, uniform
from pipeline.model.layout import Layout
from pipeline.model.patterns import Pattern, Places
from pipeline.model.pieces import Pieces


class FlexKernel:
    """Any pattern, any device that FlexAttention has kernels for.

    Args:
        compiles: to one fused kernel; otherwise scores are made whole, as a reference does.
    """

    name = "flex"

    def __init__(self, compiles: bool = True) -> None:
        self.compiles = compiles
        self.call: Any = torch.compile(flex_attention) if compiles else flex_attention

    def handles(self, pattern: Pattern) -> bool:
        return True

    def pieces(self, layout: Layout, pieces: Pieces, pattern: Pattern, rows: Rows, options: dict[str, Any]) -> Tensor:
        """See `pipeline.model.kernels.Kernel`."""
        place = (self.name, id(pieces), id(pattern))
        if place not in layout.plans:
            layout.plans[place] = self._pieces_mask(pieces, pattern)
        return self._attend(*rows, layout.plans[place], options)

    def answers(self, layout: Layout, prompt: tuple[Tensor, Tensor], rows: Rows, options: dict[str, Any]) -> Tensor:
        """See `pipeline.model.kernels.Kernel`."""
        place = (self.name, id(layout.answers), "answers")
        if place not in layout.plans:
            layout.plans[place] = self._answers_mask(layout)
        query, key, value = rows
        keys, values = torch.cat([prompt[0], key], dim=2), torch.cat([prompt[1], value], dim=2)
        return self._attend(query, keys, values, layout.plans[place], options)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, options: dict[str, Any]) -> Tensor:
        query, key, value = uniform(query, key, value)
        is_grouped = query.shape[1] != key.shape[1]
        output: Tensor = self.call(
            query, key, value, block_mask=mask, scale=options.get("scale"), enable_gqa=is_grouped
        )  # fmt: skip
        return output.transpose(1, 2)

    def _pieces_mask(self, pieces: Pieces, pattern: Pattern) -> BlockMask:
        owner, places = rows_of(pieces)

        def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (owner[query] == owner[key]) & pattern.rule(_at(places, query), _at(places, key))

        return self._mask(sees, pieces.total, pieces.total, pieces.device)

    def _answers_mask(self, layout: Layout) -> BlockMask:
        """Keys are all prompts' rows, then all answers'."""
        prompts, answers = layout.prompts, layout.answers
        prompt, _ = rows_of(prompts)
        answer, places = rows_of(answers)
        read = answer if layout.owners is None else layout.owners[answer]
        first = prompts.total

        def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            own = (key - first).clamp(min=0)
            is_own = (answer[own] == answer[query]) & (places.position[own] <= places.position[query])
            return torch.where(key < first, prompt[key.clamp(max=first - 1)] == read[query], is_own)

        return self._mask(sees, answers.total, first + answers.total, answers.device)

    def _mask(self, sees: Any, queries: int, keys: int, device: torch.device) -> BlockMask:
        return create_block_mask(sees, None, None, queries, keys, device=str(device), _compile=self.compiles)


def rows_of(pieces: Pieces) -> tuple[Tensor, Places]:
    """(piece of each row, its place in it), each [total]."""
    lengths = torch.tensor(pieces.lengths, device=pieces.device)
    owner = torch.arange(pieces.count, device=pieces.device).repeat_interleave(lengths)
    position = torch.arange(pieces.total, device=pieces.device) - (lengths.cumsum(0) - lengths)[owner]
    segment = torch.zeros_like(position) if pieces.segment is None else pieces.segment[owner, position]
    return owner, Places(position, segment, lengths[owner] + pieces.tail - 1 - position)


def _at(places: Places, row: Tensor) -> Places:
    return Places(places.position[row], places.segment[row], places.behind[row])
