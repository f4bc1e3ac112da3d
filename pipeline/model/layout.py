"""Where the rows of a batch lie in the one row of hidden states that passes through the layers.

The causal stream (prompts, then answers) comes first, the rows of the prompt branch follow; positions repeat.
Plain causal finetuning needs no such split: there each sample is one piece.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pipeline.model.batch import Batch
from pipeline.model.config import MethodConfig
from pipeline.model.kernels import Kernel
from pipeline.model.patterns import PATTERNS, Pattern, make_pattern
from pipeline.model.slippery import SlipperyPlan


class Pieces:
    """Consecutive pieces of a row, and their view as a padded block for one attention call.

    Args:
        tail: known tokens that follow each piece and are not part of it: the one that opens the answer, or none.
        segments: for each piece, where a further segment of it starts; (): nowhere.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        device: torch.device,
        tail: int = 0,
        segments: Sequence[Sequence[int]] = (),
    ) -> None:
        self.lengths = list(lengths)
        self.count, self.total, self.longest = len(lengths), sum(lengths), max(lengths, default=0)
        self.device, self.tail, self.segments = device, tail, segments
        self._masks: dict[int, Tensor] = {}
        self._plans: dict[int, SlipperyPlan] = {}
        self.is_even = all(length == self.longest for length in lengths)

    def to(self, device: torch.device) -> "Pieces":
        return Pieces(self.lengths, device, self.tail, self.segments)

    @cached_property
    def valid(self) -> Tensor:
        """[count, longest]: is there a token at this place of the padded block?"""
        lengths = torch.tensor(self.lengths, device=self.device)
        return torch.arange(self.longest, device=self.device)[None, :] < lengths[:, None]

    @cached_property
    def segment(self) -> Tensor | None:
        """[count, longest]: number of the segment of each place of the padded block; None: there is only one."""
        if not any(self.segments):
            return None
        found = torch.zeros(self.count, self.longest, dtype=torch.long)
        for row, starts in zip(found, self.segments, strict=True):
            for start in starts:
                row[start:] += 1
        return found.to(self.device)

    @cached_property
    def _rows(self) -> Tensor:
        """[count * longest]: row of each place of the block; padding repeats some row, never read."""
        lengths = torch.tensor(self.lengths, device=self.device)
        starts = lengths.cumsum(0) - lengths
        places = torch.arange(self.longest, device=self.device)
        return (starts[:, None] + places).clamp(max=self.total - 1).flatten()

    @cached_property
    def _places(self) -> Tensor:
        """[total]: place in the block of each row."""
        return self.valid.flatten().nonzero().squeeze(1)

    def pad(self, rows: Tensor) -> Tensor:
        """[1, heads, total, dim] -> [count, heads, longest, dim]."""
        if self.count == 1:
            return rows
        rows = rows[0].transpose(0, 1)
        block = rows if self.is_even else rows.index_select(0, self._rows)
        return block.reshape(self.count, self.longest, *rows.shape[1:]).transpose(1, 2)

    def mask(self, pattern: Pattern) -> Tensor | None:
        """Boolean [count or 1, 1, longest or 1, longest], or None where the kernel needs no mask; made once."""
        if pattern.is_causal or (pattern.is_full and self.is_even):
            return None
        if id(pattern) not in self._masks:
            valid = self.valid
            # A padded query is never read, but a row of a mask must not be empty: NaN would reach the gradients.
            if pattern.is_full:
                self._masks[id(pattern)] = (valid | ~valid[:, :1])[:, None, None, :]
            else:
                rule = pattern.mask(self.longest, self.device, self.tail, self.segment)
                self._masks[id(pattern)] = (rule & valid[:, None, :] | ~valid[:, :, None])[:, None]
        return self._masks[id(pattern)]

    def plan(self, pattern: Pattern) -> SlipperyPlan:
        """Which rows meet which keys under a sparse pattern; made once."""
        if id(pattern) not in self._plans:
            self._plans[id(pattern)] = SlipperyPlan.of(pattern, self.lengths, self.device, self.tail)
        return self._plans[id(pattern)]

    def unpad(self, block: Tensor) -> Tensor:
        """[count, heads, longest, dim] -> [1, total, heads, dim]."""
        rows = block.transpose(1, 2)
        if self.count > 1:
            rows = rows.reshape(1, self.count * self.longest, *rows.shape[2:])
            rows = rows if self.is_even else rows.index_select(1, self._places)
        return rows


@dataclass
class Layout:
    """Rows of one batch under one method, with everything the attention function needs to know.

    Masks are made once and serve all layers. `recorder`, if given, receives the keys and values that answers
    read, by layer: (keys, values), each [1, key/value heads, prompt tokens, head dim].
    """

    prompts: Pieces
    answers: Pieces
    owners: Tensor | None
    """[answers]: prompt of each answer; None where answer i reads prompt i."""
    first: Pattern | None
    """Pattern of the prompt rows in the causal stream; None if it holds none. Without prompts: of all rows."""
    second: Pattern | None
    """Pattern of the prompt branch's own rows; None if there is no such branch."""
    input_ids: Tensor
    position_ids: Tensor
    answer_rows: Tensor | slice
    """Rows of the last layer's output that are the answers' hidden states."""
    recorder: dict[int, tuple[Tensor, Tensor]] | None = None
    kernel: Kernel | None = None
    """Attention over the packed row, where one was chosen (`pipeline.model.kernel_choice`); None: SDPA with masks."""
    plans: dict[Any, Any] = field(default_factory=dict)
    """What the kernel made once for this batch."""
    _answer_mask: Tensor | None = None
    _copies: dict[torch.device, "Layout"] = field(default_factory=dict)

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> "Layout":
        """The same layout on another device, made once: accelerate moves every argument to the device of a layer."""
        device = torch.device(device)
        if device == self.input_ids.device:
            return self
        if device not in self._copies:
            moved: dict[str, Any] = {n: part.to(device) for n, part in vars(self).items() if isinstance(part, Tensor)}
            moved |= {name: getattr(self, name).to(device) for name in ("prompts", "answers")}
            self._copies[device] = replace(self, **moved | {"_answer_mask": None, "plans": {}})
        return self._copies[device]

    @property
    def prompt_rows(self) -> int:
        """Prompt rows in the causal stream."""
        return self.prompts.total if self.first is not None else 0

    @property
    def branch_rows(self) -> int:
        """Rows of the prompt branch."""
        return self.prompts.total if self.second is not None else 0

    @property
    def causal_rows(self) -> int:
        return self.prompt_rows + self.answers.total

    @property
    def answers_dominate(self) -> bool:
        """Is half of (prompt + answer)^2, which a kernel with a causal flag computes, less than what the mask costs?"""
        return self.prompts.is_even and self.prompts.longest <= self.answers.longest

    def answer_mask(self) -> Tensor:
        """Boolean [answers, 1, longest answer, longest prompt + longest answer]: its prompt, then itself causally."""
        if self._answer_mask is None:
            length, device = self.answers.longest, self.answers.device
            own = PATTERNS["causal"].mask(length, device).expand(self.answers.count, 1, length, length)
            prompt = self.prompts.valid if self.owners is None else self.prompts.valid[self.owners]
            prompt = prompt[:, None, None, :].expand(-1, 1, length, -1)
            self._answer_mask = torch.cat([prompt, own], dim=3)
        return self._answer_mask


def lay_out(batch: Batch, method: MethodConfig, join: bool = True) -> Layout:
    """The rows of a batch under a method (see the table of methods in docs/methods.md).

    Args:
        join: samples may be laid out as one piece each, without a boundary at the answer, where one rule says what
            their rows see: plain causal samples, and slippery ones that are known as a whole (scope: input).
    """
    first, second = branch_patterns(method)
    if join and second is None and first is not None:
        if first.sparsity and first.sparsity.scope == "input":
            return _joined(batch.unshared(), first)
        if first.is_causal and _is_paired(batch):
            return _joined(batch, first)
    if batch.prompt_tokens == 0:
        batch = batch.with_unread_prompt()
    device = batch.tokens.device
    prompt_positions = _positions(batch.prompt_lengths, device)
    starts = [batch.prompt_lengths[owner] for owner in batch.owners]
    answer_positions = _positions(batch.answer_lengths, device, starts)
    prompt_ids, answer_ids = batch.tokens.split([batch.prompt_tokens, batch.answer_rows])
    present = [first is not None, True, second is not None]
    ids = [part for part, here in zip((prompt_ids, answer_ids, prompt_ids), present, strict=True) if here]
    positions = (prompt_positions, answer_positions, prompt_positions)
    start = batch.prompt_tokens if first is not None else 0
    return Layout(
        prompts=Pieces(batch.prompt_lengths, device, tail=1, segments=batch.segments),
        answers=Pieces(batch.answer_lengths, device),
        owners=None if _is_paired(batch) else torch.tensor(batch.owners, device=device),
        first=first,
        second=second,
        input_ids=torch.cat(ids)[None],
        position_ids=torch.cat([part for part, here in zip(positions, present, strict=True) if here])[None],
        answer_rows=slice(start, start + batch.answer_rows) if second is None else slice(None),
    )


def branch_patterns(method: MethodConfig) -> tuple[Pattern | None, Pattern | None]:
    """Patterns of (the prompt rows in the causal stream, the prompt branch's own rows)."""
    patterns = [make_pattern(branch.pattern, branch.parameters) for branch in method.branches]
    if len(patterns) == 2:
        return patterns[0], patterns[1]
    return (patterns[0], None) if method.branches[0].weights == "answer" else (None, patterns[0])


def _is_paired(batch: Batch) -> bool:
    return batch.owners == tuple(range(len(batch.prompt_lengths)))


def _joined(batch: Batch, pattern: Pattern) -> Layout:
    """Each sample is one piece of the causal stream, whose rows follow the pattern, and there is nothing else."""
    device = batch.tokens.device
    lengths = [p + a for p, a in zip(batch.prompt_lengths, batch.answer_lengths, strict=True)]
    prompts, answers = batch.tokens.split([batch.prompt_tokens, batch.answer_rows])
    pieces = zip(prompts.split(list(batch.prompt_lengths)), answers.split(list(batch.answer_lengths)), strict=True)
    positions = _positions(lengths, device)
    is_answer = positions >= torch.tensor(batch.prompt_lengths, device=device).repeat_interleave(
        torch.tensor(lengths, device=device)
    )
    return Layout(
        prompts=Pieces([], device),
        answers=Pieces(lengths, device),
        owners=None,
        first=pattern,
        second=None,
        input_ids=torch.cat([part for piece in pieces for part in piece])[None],
        position_ids=positions[None],
        answer_rows=is_answer.nonzero().squeeze(1),
    )


def _positions(lengths: Sequence[int], device: torch.device, starts: Sequence[int] | None = None) -> Tensor:
    """[sum of lengths]: 0, 1, ... in each segment, counted from its start."""
    counts = torch.tensor(lengths, dtype=torch.long, device=device)
    offsets = counts.cumsum(0) - counts
    if starts is not None:
        offsets = offsets - torch.tensor(starts, dtype=torch.long, device=device)
    return torch.arange(int(sum(lengths)), device=device) - offsets.repeat_interleave(counts)
