"""The attention function that the layers of the unmodified model call.

`transformers` hands it queries, keys and values after rotary embedding together with every keyword argument
of the model's forward: so the layout of the batch and the features of the prompt branch arrive as arguments.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from pipeline.model.kernels import sdpa
from pipeline.model.layout import Layout
from pipeline.model.mixing import Mixing
from pipeline.model.patterns import PATTERNS, Pattern
from pipeline.model.pieces import Pieces

NAME = "dualtune"


@dataclass
class Exchange:
    """What the prompt branch of one layer hands to its causal stream: keys and values of the prompt."""

    mixing: Mixing | None
    is_last: bool = False
    """In the last layer the branch is needed for its keys and values only."""
    features: list[Tensor] = field(default_factory=list)
    own: tuple[Tensor | None, Tensor | None] = (None, None)
    """Keys and values of the causal stream that were made before its turn: in the last layer those of its prompt rows,
    if it has any; in other layers of conversations those of all rows, which the branch reads."""


@torch.compiler.disable  # layouts and exchanges are Python objects; compiled layers call it as it is
def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    layout: Layout | None = None,
    exchange: Exchange | None = None,
    stream: Literal["causal", "prompt", "both", "own", "answer"] = "causal",
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one stream of one layer.

    Args:
        query: [1, heads, rows, head dim]; key, value: the same with the key/value heads.
        layout: of the batch; None in decoding steps, which are those of the unmodified model.
        exchange: keys and values of the prompt branch; None where the method has no such branch.
        stream: whose rows these are; both: the causal stream's, then the prompt branch's. own: rows of the causal
            stream of which only keys and values are kept for later. In the last layer the causal stream comes in two
            parts: its prompt rows (own), and the answers.

    Returns:
        [1, rows, heads, head dim], and None in place of attention weights.
    """
    if layout is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    layout.attended.add(cast(int, module.layer_idx))
    call = Call(layout, exchange, {"dropout_p": dropout, "scale": scaling}, cast(int, module.layer_idx))
    if exchange is not None and stream == "own":
        exchange.own = (key, value)
        return query.transpose(1, 2), None
    if stream == "prompt":
        return _attend_branch(call, (query, key, value)), None
    if exchange is not None and stream == "answer":
        return _attend_read(call, *exchange.own, query, key, value), None
    rows = [layout.prompt_rows, layout.answers.total, layout.branch_rows if stream == "both" else 0]
    prompt, answer, branch = zip(*(part.split(rows, dim=2) for part in (query, key, value)), strict=True)
    # The branch comes first: the causal stream reads its features.
    outputs = [_attend_branch(call, branch, (*prompt[1:], *answer[1:]))] if stream == "both" else []
    outputs = [*_attend_causal(call, prompt, answer), *outputs]
    return torch.cat(outputs, dim=1) if len(outputs) > 1 else outputs[0], None


@dataclass
class Call:
    """What one attention call needs beside queries, keys and values."""

    layout: Layout
    exchange: Exchange | None
    options: dict[str, Any]
    layer: int


def _attend_branch(call: Call, branch: tuple[Tensor, ...], causal: tuple[Tensor, ...] | None = None) -> Tensor:
    """Rows of the prompt branch: queries, keys and values.

    Args:
        causal: keys and values of the causal stream's prompt rows, then of its answers; default: `exchange.own`.
    """
    layout, (query, key, value) = call.layout, branch
    assert call.exchange is not None and layout.second is not None
    call.exchange.features = [key, value]
    if call.exchange.is_last:
        return query.transpose(1, 2)
    if layout.conversation is None:
        return _attend_pieces(call, layout.prompts, layout.second, query, key, value)
    if causal is None:
        parts = [part.split([layout.prompt_rows, layout.answers.total], dim=2) for part in _both(call.exchange.own)]
        causal = tuple(part for pair in zip(*parts, strict=True) for part in pair)
    earlier = _earlier(call, _read(call, *causal[:2]), causal[2:])
    return _attend_turns(call, layout.second, earlier, query, key, value)


def _both(own: tuple[Tensor | None, Tensor | None]) -> tuple[Tensor, Tensor]:
    key, value = own
    assert key is not None and value is not None
    return key, value


def _attend_causal(call: Call, prompt: tuple[Tensor, ...], answer: tuple[Tensor, ...]) -> list[Tensor]:
    """Prompt rows (if the method has any here) by the first pattern, and answer rows."""
    layout = call.layout
    outputs = []
    if layout.first is not None and layout.prompt_rows > 0:
        if layout.conversation is None:
            outputs.append(_attend_pieces(call, layout.prompts, layout.first, *prompt))
        else:
            earlier = _earlier(call, _read(call, *prompt[1:]), answer[1:])
            outputs.append(_attend_turns(call, layout.first, earlier, *prompt))
    return [*outputs, _attend_read(call, *prompt[1:], *answer)]


def _attend_read(
    call: Call, own_key: Tensor | None, own_value: Tensor | None, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """Answer rows, after the causal stream's keys and values of the prompt were mixed with those of the branch."""
    prompt = _read(call, own_key, own_value)
    if call.layout.recorder is not None:
        call.layout.recorder[call.layer] = prompt
    if call.layout.conversation is None:
        return _attend_answers(call, *prompt, query, key, value)
    pieces = call.layout.answers
    keys, values = _earlier(call, prompt, (key, value))
    mask = call.layout.conversation.answer_mask(PATTERNS["causal"])
    return pieces.unpad(sdpa(pieces.pad(query), keys, values, mask, False, call.options))


def _read(call: Call, own_key: Tensor | None, own_value: Tensor | None) -> tuple[Tensor, Tensor]:
    """Keys and values of the prompts as answers read them."""
    if call.exchange is not None:
        return _read_features(call.exchange, own_key, own_value)
    assert own_key is not None and own_value is not None
    return own_key, own_value


def _earlier(call: Call, prompt: Sequence[Tensor], answer: Sequence[Tensor]) -> list[Tensor]:
    """(keys, values) of whole conversations as they are cached, [samples, heads, cached + prompts + answers, dim]:
    what was read before the batch, the prompts as answers read them, the answers."""
    layout = call.layout
    blocks = [[layout.prompts.pad(p), layout.answers.pad(a)] for p, a in zip(prompt, answer, strict=True)]
    cached = layout.cached.get(call.layer, ())
    return [torch.cat([*cached[index : index + 1], *block], dim=2) for index, block in enumerate(blocks)]


def _attend_turns(
    call: Call, pattern: Pattern, earlier: Sequence[Tensor], query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """Prompt rows of a conversation: what is cached of earlier turns, then the rows of their own turn and branch."""
    pieces, conversation = call.layout.prompts, call.layout.conversation
    assert conversation is not None
    keys, values = (torch.cat([e, pieces.pad(own)], dim=2) for e, own in zip(earlier, (key, value), strict=True))
    block = sdpa(pieces.pad(query), keys, values, conversation.prompt_mask(pattern), False, call.options)
    return pieces.unpad(block)


def _read_features(exchange: Exchange, key: Tensor | None, value: Tensor | None) -> tuple[Tensor, Tensor]:
    """Keys and values of the prompt that answers read: those of the branch, mixed with the stream's own."""
    branch_key, branch_value = exchange.features
    if exchange.mixing is None:
        return branch_key, branch_value
    mixed: tuple[Tensor, Tensor] = exchange.mixing(key, branch_key, value, branch_value)
    return mixed


def _attend_pieces(call: Call, pieces: Pieces, pattern: Pattern, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Rows of which each sees those of its own piece, as the pattern says."""
    kernel = call.layout.kernel
    if kernel is not None and kernel.handles(pattern):
        return kernel.pieces(call.layout, pieces, pattern, (query, key, value), call.options)
    if pattern.sparsity is not None:
        return pieces.plan(pattern).attend(query, key, value, call.options)
    # Padding lies behind the tokens, where a causal row never looks: no mask is needed.
    block = sdpa(
        pieces.pad(query), pieces.pad(key), pieces.pad(value),
        pieces.mask(pattern), pattern.is_causal, call.options,
    )  # fmt: skip
    return pieces.unpad(block)


def _attend_answers(
    call: Call, prompt_key: Tensor, prompt_value: Tensor, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """Each answer sees its whole prompt, then itself causally."""
    layout, pieces = call.layout, call.layout.answers
    if layout.prompts.total == 0:  # whole samples
        assert layout.first is not None
        return _attend_pieces(call, pieces, layout.first, query, key, value)
    if layout.kernel is not None:
        return layout.kernel.answers(layout, (prompt_key, prompt_value), (query, key, value), call.options)
    queries, keys, values = pieces.pad(query), pieces.pad(key), pieces.pad(value)
    keys = torch.cat([_of_owner(layout, prompt_key), keys], dim=2)
    values = torch.cat([_of_owner(layout, prompt_value), values], dim=2)
    if not layout.answers_dominate:
        return pieces.unpad(sdpa(queries, keys, values, layout.answer_mask(), False, call.options))
    idle = layout.prompts.longest  # queries in the prompt's place make the causal flag's square
    block = sdpa(pad(queries, (0, 0, idle, 0)), keys, values, None, True, call.options)
    return pieces.unpad(block[:, :, idle:])


def _of_owner(layout: Layout, rows: Tensor) -> Tensor:
    """[answers, heads, longest prompt, head dim]: for each answer its prompt's rows."""
    block = layout.prompts.pad(rows)
    return block if layout.owners is None else block.index_select(0, layout.owners)


def register() -> None:
    """Make the function known to `transformers` under `NAME`. Decoding uses the masks of its SDPA attention."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
