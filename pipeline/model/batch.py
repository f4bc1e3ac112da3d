"""Packed batches: prompts and answers one behind another in one row of tokens, with lengths and no padding."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Prompts, and answers of which each reads one prompt.

    A prompt holds the tokens that the branches read; the last token of the prompt template is not among
    them: it opens the answer (Bitune, section 2). An answer holds the tokens fed to the answer stream.
    """

    prompt_lengths: tuple[int, ...]
    answer_lengths: tuple[int, ...]
    owners: tuple[int, ...]
    """The prompt that each answer reads."""
    tokens: Tensor
    """[prompt tokens + answer rows]: all prompts, then all answers."""
    segments: tuple[tuple[int, ...], ...] = ()
    """For each prompt, where a further segment (the user's turn after the system's, ...) starts; (): nowhere."""

    @classmethod
    def pack(
        cls,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Sequence[int]],
        owners: Sequence[int] | None = None,
        segments: Sequence[Sequence[int]] = (),
    ) -> "Batch":
        """Lay prompts and answers one behind another.

        Args:
            prompts: token ids that the branches read; may be empty.
            answers: token ids fed to the answer stream, the opening token first; at least one each.
            owners: index of the prompt of each answer; by default answer i reads prompt i.
            segments: for each prompt the places, counted from its first token, where a further segment starts.
        """
        owners = tuple(range(len(answers)) if owners is None else owners)
        if not answers or any(len(answer) == 0 for answer in answers):
            raise ValueError("every answer needs at least the token that opens it")
        if len(owners) != len(answers) or not all(0 <= owner < len(prompts) for owner in owners):
            raise ValueError(f"owners must name one of {len(prompts)} prompts for each of {len(answers)} answers")
        tokens = [token for part in (*prompts, *answers) for token in part]
        lengths = tuple(map(len, prompts)), tuple(map(len, answers))
        if len(segments) not in (0, len(prompts)):
            raise ValueError(f"segments of {len(segments)} prompts, but there are {len(prompts)}")
        return cls(*lengths, owners, torch.tensor(tokens, dtype=torch.long), tuple(map(tuple, segments)))

    @property
    def prompt_tokens(self) -> int:
        return sum(self.prompt_lengths)

    @property
    def answer_rows(self) -> int:
        return sum(self.answer_lengths)

    @property
    def longest(self) -> int:
        """Tokens of the longest sample, prompt and answer together."""
        return max(self.prompt_lengths[o] + a for o, a in zip(self.owners, self.answer_lengths, strict=True))

    def with_unread_prompt(self) -> "Batch":
        """One prompt of one token more, which no answer reads: a stream of no rows cannot pass through a layer."""
        tokens = torch.cat([self.tokens.new_zeros(1), self.tokens[self.prompt_tokens :]])
        return replace(self, prompt_lengths=(*self.prompt_lengths, 1), tokens=tokens, segments=())

    def unshared(self) -> "Batch":
        """The same with a prompt of its own for each answer."""
        if self.owners == tuple(range(len(self.prompt_lengths))):
            return self
        prompts = self.tokens[: self.prompt_tokens].split(list(self.prompt_lengths))
        tokens = torch.cat([*(prompts[owner] for owner in self.owners), self.tokens[self.prompt_tokens :]])
        lengths = tuple(self.prompt_lengths[owner] for owner in self.owners)
        return Batch(lengths, self.answer_lengths, tuple(range(len(lengths))), tokens)

    def to(self, device: torch.device | str) -> "Batch":
        return replace(self, tokens=self.tokens.to(device))
