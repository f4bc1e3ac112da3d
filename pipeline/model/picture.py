"""Pictures of attention patterns: which keys each token of a sample sees, in the terminal and as PNG."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from pipeline.errors import UserError
from pipeline.faults import explain
from pipeline.files import atomic_file
from pipeline.model.batch import Batch
from pipeline.model.config import MethodConfig
from pipeline.model.layout import lay_out
from pipeline.model.patterns import make_pattern

SEEN, UNSEEN, ANSWER = "██", "··", "▒▒"


def sample_mask(
    name: str, parameters: dict[str, Any], prompt: int, answer: int, segments: Sequence[int] = ()
) -> Tensor:
    """What the tokens of one sample see, by the plain rule: boolean [prompt + answer, prompt + answer].

    Args:
        prompt: tokens that the branches read; answer: tokens of the answer's stream, the opening one first.
        segments: where further segments of the prompt start.

    Raises:
        UserError: what `MethodConfig` finds wrong with the pattern.
    """
    try:
        method = MethodConfig.model_validate({"name": "shown", "branches": [{"pattern": name, **parameters}]})
    except ValidationError as error:
        raise UserError(
            "; ".join(explain(error, MethodConfig)).replace("branches.0.", "").replace("branches.0: ", "")
        ) from None
    pattern = make_pattern(name, method.branches[0].parameters)
    if pattern.sparsity is not None and pattern.sparsity.scope == "input":
        return pattern.mask(prompt + answer)
    pieces = lay_out(Batch.pack([[0] * prompt], [[0] * answer], segments=[segments]), method, join=False).prompts
    mask = torch.ones(prompt + answer, prompt + answer, dtype=torch.bool).tril()
    places = None if pieces.segment is None else pieces.segment[0]
    mask[:prompt, :prompt] = pattern.mask(prompt, tail=pieces.tail, segment=places)
    return mask


def drawn(mask: Tensor, prompt: int) -> str:
    """The mask as lines of text: a row for each query, two characters for each key; rows of the answer are shaded."""
    rows = []
    for index, row in enumerate(mask.tolist()):
        seen = SEEN if index < prompt else ANSWER
        rows.append("".join(seen if sees else UNSEEN for sees in row))
    return "\n".join(rows)


def save_png(mask: Tensor, prompt: int, title: str, file: Path) -> None:
    """The same as a picture.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("--png needs matplotlib: pip install -e '.[plots]'") from None
    shades = mask.int()
    shades[prompt:] *= 2
    size = 2 + len(mask) / 6
    figure = Figure(figsize=(size, size), layout="constrained")
    axes = figure.add_subplot(xlabel="key", ylabel="query", title=title)
    axes.pcolormesh(shades.flip(0).numpy(), cmap=ListedColormap(["#f2f2f2", "#2c5f8a", "#e09f3e"]), vmin=0, vmax=2,
                    edgecolors="white", linewidth=0.5)  # fmt: skip
    axes.set(xticks=[], yticks=[], aspect="equal")
    with atomic_file(file) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
