"""What rows of a conversation see: of the turns before their own what is in the cache by then, and of their own what
any sample's rows see of prompt and answer.

The rows of all turns of a sample make one block. The keys of a block of queries are, in this order: tokens cached
before the batch; the prompts as answers read them (mixed); the answers; and for rows of a prompt those of their own
branch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pipeline.model.batch import Batch
from pipeline.model.patterns import Pattern, Places


@dataclass(frozen=True)
class TurnRows:
    """The rows of all prompts, or of all answers, sample by sample, as a padded block."""

    lengths: list[int]
    """Of each sample, all its turns together."""
    turn: Tensor
    """[samples, longest]: number of the turn, from 0; padding has -1."""
    places: Places
    """[samples, longest] within the turn."""

    @classmethod
    def of(cls, turns: Sequence[Sequence[Tensor]], device: torch.device) -> "TurnRows":
        """
        Args:
            turns: of each sample; each is [rows, 4] of turn, position, segment and known tokens behind.
        """
        rows = [torch.cat([torch.zeros(0, 4, dtype=torch.long), *parts]) for parts in turns]
        block = pad_sequence(rows, batch_first=True, padding_value=-1).to(device)
        return cls([len(part) for part in rows], block[..., 0], Places(*block[..., 1:].unbind(-1)))

    @property
    def valid(self) -> Tensor:
        return self.turn >= 0

    def to(self, device: torch.device) -> "TurnRows":
        places = (self.places.position, self.places.segment, self.places.behind)
        return TurnRows(self.lengths, self.turn.to(device), Places(*(part.to(device) for part in places)))

    def before(self, queries: "TurnRows", with_own: bool = False) -> Tensor:
        """Boolean [samples, queries, these rows]: of an earlier turn (or of the same)?"""
        turn, key = queries.turn[:, :, None] + with_own, self.turn[:, None, :]
        return (key < turn) & (key >= 0)

    def own(self, pattern: Pattern) -> Tensor:
        """Boolean [samples, rows, rows]: of the same turn, and seen under the pattern? Padding sees anything: a row of
        a mask must not be empty."""
        same = self.turn[:, :, None] == self.turn[:, None, :]
        return pattern.rule(self.places.queries(), self.places.keys()) & same | ~self.valid[:, :, None]


@dataclass(frozen=True)
class Conversation:
    """Masks of samples of several turns; made once for a batch, used in every layer."""

    prompts: TurnRows
    answers: TurnRows
    cached: int
    """Tokens read before the batch, which all rows see."""
    _masks: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: Batch, cached: int) -> "Conversation":
        segments = batch.segments or [()] * len(batch.prompt_lengths)
        answers = [[i for i in turns if i < len(batch.answer_lengths)] for turns in batch.turns]
        rows = (
            [[_turn(n, batch.prompt_lengths[i], 1, segments[i]) for n, i in enumerate(turns)] for turns in batch.turns],
            [[_turn(n, batch.answer_lengths[i]) for n, i in enumerate(turns)] for turns in answers],
        )
        prompt_rows, answer_rows = (TurnRows.of(part, batch.tokens.device) for part in rows)
        return cls(prompt_rows, answer_rows, cached)

    def to(self, device: torch.device) -> "Conversation":
        return replace(self, prompts=self.prompts.to(device), answers=self.answers.to(device), _masks={})

    def prompt_mask(self, pattern: Pattern) -> Tensor:
        """Boolean [samples, 1, longest prompts, cached + prompts + answers + prompts]: earlier turns as they are
        cached, then the same branch's rows of the same turn."""
        if id(pattern) not in self._masks:
            parts = (self.prompts.before(self.prompts), self.answers.before(self.prompts), self.prompts.own(pattern))
            self._masks[id(pattern)] = self._joined(parts)
        return self._masks[id(pattern)]

    def answer_mask(self, causal: Pattern) -> Tensor:
        """Boolean [samples, 1, longest answers, cached + prompts + answers]: earlier turns, the own turn's prompt, then
        the answer itself causally."""
        if 0 not in self._masks:
            answers = self.answers.before(self.answers) | self.answers.own(causal)
            self._masks[0] = self._joined((self.prompts.before(self.answers, with_own=True), answers))
        return self._masks[0]

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        cached = parts[0].new_ones(*parts[0].shape[:2], self.cached)
        return torch.cat([cached, *parts], dim=2)[:, None]


def _turn(number: int, length: int, tail: int = 0, segments: Sequence[int] = ()) -> Tensor:
    """[length, 4] of turn, position, segment and known tokens behind, `tail` of which are not among the rows."""
    position = torch.arange(length)
    segment = sum((position >= start for start in segments), torch.zeros(length, dtype=torch.long))
    return torch.stack([torch.full_like(position, number), position, segment, length + tail - 1 - position], dim=1)
