"""Where the rows of a batch lie in the one row of hidden states that passes through the layers.

The causal stream (prompts, then answers) comes first, the rows of the prompt branch follow; positions repeat.
Plain causal finetuning needs no such split: there each sample is one piece.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pipeline.model.batch import Batch
from pipeline.model.config import MethodConfig
from pipeline.model.conversation import Conversation
from pipeline.model.kernels import Kernel
from pipeline.model.patterns import PATTERNS, Pattern, make_pattern
from pipeline.model.pieces import Pieces


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
    conversation: Conversation | None = None
    """Where samples have several turns, or go on from a cache: what their rows see. `prompts` and `answers` then hold
    one piece for each sample, all its turns."""
    cached: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """By layer the (keys, values) of what was read before the batch, each [1, key/value heads, tokens, head dim]."""
    recorder: dict[int, tuple[Tensor, Tensor]] | None = None
    kernel: Kernel | None = None
    """Attention over the packed row, where one was chosen (`pipeline.model.kernel_choice`); None: SDPA with masks."""
    attended: set[int] = field(default_factory=set)
    """Layers whose attention was ours: `DualBranch.run` refuses a pass in which one was not."""
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
            if self.conversation is not None:
                moved["conversation"] = self.conversation.to(device)
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


def lay_out(batch: Batch, method: MethodConfig, join: bool = True, cached: int = 0) -> Layout:
    """The rows of a batch under a method (see the table of methods in docs/methods.md).

    Args:
        join: samples may be laid out as one piece each, without a boundary at the answer, where one rule says what
            their rows see: plain causal samples, and slippery ones that are known as a whole (scope: input).
        cached: tokens that were read before the batch, which goes on from them; only with `join` False.

    Raises:
        ValueError: samples of several turns under scope: input, whose rows depend on what is read at once.
    """
    first, second = branch_patterns(method)
    if batch.has_turns and not method.shares_prompts:
        raise ValueError("samples of several turns can't be read as one known input (scope: input)")
    if join and second is None and first is not None:
        if first.sparsity and first.sparsity.scope == "input":
            return _joined(batch.unshared(), first)
        if first.is_causal and _is_paired(batch):
            return _joined(batch, first)
    if batch.prompt_tokens == 0:
        batch = batch.with_unread_prompt()
    prompts, answers, conversation = _pieces(batch, cached)
    device, starts = batch.tokens.device, [cached + start for start in batch.starts]
    prompt_positions = _positions(batch.prompt_lengths, device, starts)
    answer_starts = [starts[owner] + batch.prompt_lengths[owner] for owner in batch.owners]
    answer_positions = _positions(batch.answer_lengths, device, answer_starts)
    prompt_ids, answer_ids = batch.tokens.split([batch.prompt_tokens, batch.answer_rows])
    present = [first is not None, True, second is not None]
    ids = [part for part, here in zip((prompt_ids, answer_ids, prompt_ids), present, strict=True) if here]
    positions = (prompt_positions, answer_positions, prompt_positions)
    start = batch.prompt_tokens if first is not None else 0
    return Layout(
        prompts=prompts,
        answers=answers,
        owners=None if _is_paired(batch) else torch.tensor(batch.owners, device=device),
        first=first,
        second=second,
        input_ids=torch.cat(ids)[None],
        position_ids=torch.cat([part for part, here in zip(positions, present, strict=True) if here])[None],
        answer_rows=slice(start, start + batch.answer_rows) if second is None else slice(None),
        conversation=conversation,
    )


def _pieces(batch: Batch, cached: int) -> tuple[Pieces, Pieces, Conversation | None]:
    """Prompts and answers as pieces: each its own, or those of a whole conversation together."""
    device = batch.tokens.device
    if not cached and not batch.has_turns:
        prompts = Pieces(batch.prompt_lengths, device, tail=1, segments=batch.segments)
        return prompts, Pieces(batch.answer_lengths, device), None
    conversation = Conversation.of(batch, cached)
    return Pieces(conversation.prompts.lengths, device), Pieces(conversation.answers.lengths, device), conversation


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
    pairs = list(zip(batch.prompt_lengths, batch.answer_lengths, strict=True))
    lengths = [sum(sum(pairs[turn]) for turn in turns) for turns in batch.turns]
    prompts, answers = batch.tokens.split([batch.prompt_tokens, batch.answer_rows])
    pieces = zip(prompts.split(list(batch.prompt_lengths)), answers.split(list(batch.answer_lengths)), strict=True)
    is_answer = torch.tensor([False, True] * len(pairs)).repeat_interleave(torch.tensor(pairs).flatten()).to(device)
    return Layout(
        prompts=Pieces([], device),
        answers=Pieces(lengths, device),
        owners=None,
        first=pattern,
        second=None,
        input_ids=torch.cat([part for piece in pieces for part in piece])[None],
        position_ids=_positions(lengths, device)[None],
        answer_rows=is_answer.nonzero().squeeze(1),
    )


def _positions(lengths: Sequence[int], device: torch.device, starts: Sequence[int] | None = None) -> Tensor:
    """[sum of lengths]: 0, 1, ... in each segment, counted from its start."""
    counts = torch.tensor(lengths, dtype=torch.long, device=device)
    offsets = counts.cumsum(0) - counts
    if starts is not None:
        offsets = offsets - torch.tensor(starts, dtype=torch.long, device=device)
    return torch.arange(int(sum(lengths)), device=device) - offsets.repeat_interleave(counts)
