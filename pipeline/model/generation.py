"""Generation: the prompt is read once by all branches, then the unmodified model decodes from the mixed cache."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache

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
    language_model: Any = model.model
    output = language_model.generate(
        input_ids=ids,
        attention_mask=mask,
        cache=prefill(model, [prompt[:-1] for prompt in prompts], segments),
        max_new_tokens=max_new_tokens,
        pad_token_id=filler,
        **options,
    )
    return [_until_end(row, ends) for row in output[:, width:].tolist()]


def prefill(
    model: DualBranch, prompts: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] = ()
) -> DynamicCache | None:
    """Keys and values that an answer reads, of all prompts, padded on the left; None if all prompts are empty."""
    if not any(prompts):
        return None
    some_answer = [[0]]  # its rows are not recorded, but a stream of no rows cannot pass through a layer
    layout = model.lay_out(Batch.pack(prompts, some_answer, [0], segments), join=False)
    layout.recorder = {}
    model.run(layout)
    cache = DynamicCache(config=model.model.config)
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
