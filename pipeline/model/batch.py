"""Packed batches: prompts and answers one behind another in one row of tokens, with lengths and no padding."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, zip_longest

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
    samples: tuple[int, ...] = ()
    """The sample of each prompt, where samples have several turns: prompt i and answer i are one turn, and the turns
    of a sample follow one another. (): each prompt begins a sample."""

    @classmethod
    def pack(
        cls,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Sequence[int]],
        owners: Sequence[int] | None = None,
        segments: Sequence[Sequence[int]] = (),
        samples: Sequence[int] = (),
    ) -> "Batch":
        """Lay prompts and answers one behind another.

        Args:
            prompts: token ids that the branches read; may be empty.
            answers: token ids fed to the answer stream, the opening token first; at least one each.
            owners: index of the prompt of each answer; by default answer i reads prompt i.
            segments: for each prompt the places, counted from its first token, where a further segment starts.
            samples: the sample of each prompt, 0, 0, 1, ...; a sample's prompts and answers are its turns.
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
        samples = tuple(samples)
        if samples and (len(samples) != len(prompts) or owners != tuple(range(len(prompts)))):
            raise ValueError("samples must name the sample of each prompt, which has one answer")
        if list(samples) != sorted(samples):
            raise ValueError("the turns of a sample must follow one another")
        return cls(*lengths, owners, torch.tensor(tokens, dtype=torch.long), tuple(map(tuple, segments)), samples)

    @property
    def prompt_tokens(self) -> int:
        return sum(self.prompt_lengths)

    @property
    def answer_rows(self) -> int:
        return sum(self.answer_lengths)

    @property
    def has_turns(self) -> bool:
        """Does any sample have several turns?"""
        return len(set(self.samples)) < len(self.samples)

    @property
    def turns(self) -> list[list[int]]:
        """For each sample its prompts."""
        numbers = range(len(self.prompt_lengths))
        return [list(group) for _, group in groupby(numbers, lambda i: self.samples[i] if self.samples else i)]

    @property
    def starts(self) -> list[int]:
        """The place of each prompt's first token in its sample."""
        if not self.has_turns:
            return [0] * len(self.prompt_lengths)
        sizes = [sum(pair) for pair in zip_longest(self.prompt_lengths, self.answer_lengths, fillvalue=0)]
        return [start for turns in self.turns for start in accumulate([0, *(sizes[turn] for turn in turns[:-1])])]

    @property
    def longest(self) -> int:
        """Tokens of the longest sample, prompts and answers together."""
        starts, lengths = self.starts, self.prompt_lengths
        return max(starts[o] + lengths[o] + a for o, a in zip(self.owners, self.answer_lengths, strict=True))

    def with_unread_prompt(self) -> "Batch":
        """One prompt of one token more, which no answer reads: a stream of no rows cannot pass through a layer."""
        tokens = torch.cat([self.tokens.new_zeros(1), self.tokens[self.prompt_tokens :]])
        samples = (*self.samples, self.samples[-1] + 1) if self.samples else ()
        return replace(self, prompt_lengths=(*self.prompt_lengths, 1), tokens=tokens, segments=(), samples=samples)

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
