"""Generation: the prompt is read once by all branches, then the unmodified model decodes from the mixed cache."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache

from pipeline.errors import UserError
from pipeline.model.batch import Batch
from pipeline.model.dual_branch import DualBranch
from pipeline.model.layout import Layout


@torch.no_grad()
def generate(
    model: DualBranch,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    segments: Sequence[Sequence[int]] = (),
    **options: Any,
) -> list[list[int]]:
    """Continue several prompts at once.

    Args:
        prompts: token ids; the last one opens the answer, the branches read the ones before it.
        segments: for each prompt, the tokens with which a further segment starts; (): each prompt is one.
        options: of transformers' `generate` (do_sample, temperature, stop_strings, eos_token_id, ...).

    Returns:
        The new tokens of each prompt, up to and including its first end-of-sequence token.
    """
    ends = _end_tokens(model, options)
    filler = ends[0] if ends else 0
    width = max(map(len, prompts))
    ids = torch.tensor([[filler] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=model.device)
    cache = prefill(model, [prompt[:-1] for prompt in prompts], segments)
    return _decode(model, ids, mask, cache, max_new_tokens, options)


def _decode(
    model: DualBranch,
    ids: Tensor,
    mask: Tensor,
    cache: DynamicCache | None,
    max_new_tokens: int,
    options: dict[str, Any],
) -> list[list[int]]:
    """Continue [rows, width] ids of which all but the last are in the cache."""
    ends = _end_tokens(model, options)
    language_model: Any = model.model
    output = language_model.generate(
        input_ids=ids,
        attention_mask=mask,
        cache=cache,
        max_new_tokens=max_new_tokens,
        pad_token_id=ends[0] if ends else 0,
        **options,
    )
    return [_until_end(row, ends) for row in output[:, ids.shape[1] :].tolist()]


class Dialogue:
    """A conversation in tokens: each new instruction is read by all branches on top of what is cached of the turns
    before it, and answered (Bitune, appendix, multi-turn proposal B). As in training on all turns.

    Args:
        end: the token that closes every answer in training; added where an answer was cut short.
    """

    def __init__(self, model: DualBranch, end: int | None = None) -> None:
        self.model, self.end = model, end
        self.tokens: list[int] = []
        """All turns so far."""
        self._cache: DynamicCache | None = None

    @torch.no_grad()
    def answer(
        self, instruction: Sequence[int], max_new_tokens: int, segments: Sequence[int] = (), **options: Any
    ) -> list[int]:
        """The new tokens, up to and including the first end-of-sequence token.

        Args:
            instruction: the tokens between the last answer's end and the next answer; the last one opens it.
            segments: its tokens with which a further segment starts.
            options: of transformers' `generate`.

        Raises:
            UserError: the method reads prompts and answers as one known input (scope: input).
        """
        if not self.model.method.shares_prompts:
            raise UserError(
                f"the method {self.model.method.name!r} reads prompt and answer at once: it has no dialogue"
            )
        if not instruction:
            raise ValueError("an instruction needs at least the token that opens its answer")
        cached = 0 if self._cache is None else int(self._cache.get_seq_length())
        pending = self.tokens[cached:]  # the last token of an answer is made, but not read
        self.tokens += instruction
        starts = [len(pending) + start for start in segments]
        self._cache = prefill(self.model, [self.tokens[cached:-1]], [starts], self._cache) or DynamicCache(
            config=self.model.model.config
        )
        ids = torch.tensor([self.tokens], device=self.model.device)
        (found,) = _decode(self.model, ids, torch.ones_like(ids), self._cache, max_new_tokens, options)
        self.tokens += found
        if self.end is not None and found[-1] not in {self.end, *_end_tokens(self.model, options)}:
            self.tokens.append(self.end)
        return found


def prefill(
    model: DualBranch,
    prompts: Sequence[Sequence[int]],
    segments: Sequence[Sequence[int]] = (),
    past: DynamicCache | None = None,
) -> DynamicCache | None:
    """Keys and values that an answer reads, of all prompts, padded on the left; None if all prompts are empty.

    Args:
        past: what was read before; the only prompt is read on top of it, and its keys and values are added to it.
    """
    if not any(prompts):
        return past
    some_answer = [[0]]  # its rows are not recorded, but a stream of no rows cannot pass through a layer
    cached = 0 if past is None else int(past.get_seq_length())
    layout = model.lay_out(Batch.pack(prompts, some_answer, [0], segments), join=False, cached=cached)
    if past is not None and cached:
        parts: Any = past.layers
        layout.cached = {index: (part.keys, part.values) for index, part in enumerate(parts)}
    layout.recorder = {}
    model.run(layout)
    cache = DynamicCache(config=model.model.config) if past is None else past
    for index in sorted(layout.recorder):
        key, value = layout.recorder[index]
        cache.update(_pad_left(layout, key), _pad_left(layout, value), index)
    return cache


def _pad_left(layout: Layout, rows: Tensor) -> Tensor:
    """[1, heads, prompt tokens, dim] -> [prompts, heads, longest, dim]."""
    pieces = rows.split(layout.prompts.lengths, dim=2)
    return torch.cat([pad(piece, (0, 0, layout.prompts.longest - piece.shape[2], 0)) for piece in pieces])


def _end_tokens(model: DualBranch, options: dict[str, Any]) -> list[int]:
    ends = options.get("eos_token_id", getattr(model.model.generation_config, "eos_token_id", None))
    return [ends] if isinstance(ends, int) else list(ends or [])


def _until_end(tokens: list[int], ends: list[int]) -> list[int]:
    stop = next((place for place, token in enumerate(tokens) if token in ends), len(tokens) - 1)
    return tokens[: stop + 1]
