"""Every kernel path against the plain rule in float64: the same answer for every length, pattern and sharing."""

from typing import Any

import pytest
import torch
from tiny import samples, tiny_model, tokens
from transformers.models.llama.modeling_llama import LlamaModel

from pipeline.errors import StageError
from pipeline.model.attention import Exchange, attend
from pipeline.model.batch import Batch
from pipeline.model.config import PRESETS, MethodConfig
from pipeline.model.layout import Layout, branch_patterns, lay_out
from pipeline.model.mixing import Mixing
from pipeline.model.patterns import PATTERNS

HEADS, KEY_HEADS, DIM = 4, 2, 8
BATCHES = {
    "one": ([(5, 3)], None),
    "one of a long answer": ([(3, 7)], None),
    "even": ([(4, 2), (4, 2)], None),
    "even prompts of long answers": ([(2, 6), (2, 3)], None),
    "ragged": ([(7, 1), (2, 4), (1, 2), (6, 6)], None),
    "empty prompts": ([(0, 2), (3, 1), (0, 4)], None),
    "only empty prompts": ([(0, 2), (0, 3)], None),
    "shared prompts": ([(6, 2), (3, 4), (8, 1)], [2, 0, 2, 1, 0, 1]),
}


def make_batch(name: str) -> Batch:
    lengths, owners = BATCHES[name]
    prompts, answers = samples(lengths)
    if owners is not None:
        answers = [tokens(1 + i % 3, i) for i in range(len(owners))]
    return Batch.pack(prompts, answers, owners)


def random_rows(rows: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(1, heads, rows, DIM) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sees: torch.Tensor) -> torch.Tensor:
    """Softmax attention by the book. query [heads, rows, dim], sees [rows, keys] -> [rows, heads, dim]."""
    key, value = (part.repeat_interleave(HEADS // KEY_HEADS, dim=0) for part in (key, value))
    scores = query @ key.transpose(1, 2) / DIM**0.5
    return (scores.masked_fill(~sees, -torch.inf).softmax(dim=-1) @ value).transpose(0, 1)


def spans(lengths: tuple[int, ...], start: int = 0) -> list[slice]:
    found = []
    for length in lengths:
        found.append(slice(start, start + length))
        start += length
    return found


def reference(
    batch: Batch, layout: Layout, method: MethodConfig, causal: list, branch: list | None, mixing: Mixing
) -> torch.Tensor:
    """Sample by sample: prompt rows by the rule, answer rows over [mixed prompt, own answer]."""
    prompts = spans(layout.prompts.lengths and tuple(layout.prompts.lengths))
    answers = spans(batch.answer_lengths, layout.prompt_rows)
    first, _ = branch_patterns(method)
    query, key, value = (part[0] for part in causal)
    outputs = torch.zeros(layout.causal_rows, HEADS, DIM, dtype=torch.float64)
    if first is not None:
        for span in prompts:
            sees = first.mask(span.stop - span.start, tail=1)
            outputs[span] = plain(query[:, span], key[:, span], value[:, span], sees)
    for span, owner in zip(answers, batch.owners, strict=True):
        prompt_key, prompt_value = read_prompt(prompts[owner], first is not None, causal, branch, mixing)
        length, seen = span.stop - span.start, prompt_key.shape[1]
        sees = torch.cat([torch.ones(length, seen, dtype=torch.bool), torch.ones(length, length).tril().bool()], dim=1)
        keys, values = torch.cat([prompt_key, key[:, span]], dim=1), torch.cat([prompt_value, value[:, span]], dim=1)
        outputs[span] = plain(query[:, span], keys, values, sees)
    return outputs


def read_prompt(
    span: slice, has_own: bool, causal: list, branch: list | None, mixing: Mixing
) -> tuple[torch.Tensor, torch.Tensor]:
    own = [part[0][:, span] for part in causal[1:]]
    if branch is None:
        return own[0], own[1]
    other = [part[0][:, span] for part in branch[1:]]
    if not has_own:
        return other[0], other[1]
    alphas = [mixing.alpha(theta).double() for theta in (mixing.theta_key, mixing.theta_value)]
    mixed = [(1 - a) * first + a * second for a, first, second in zip(alphas, own, other, strict=True)]
    return mixed[0], mixed[1]


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("preset", PRESETS)
def test_attention_equals_the_plain_rule(preset: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Mixing is float32 by design; in float64 here, so that everything else is held to float64's precision.
    monkeypatch.setattr("pipeline.model.mixing._mix", lambda a, b, alpha: (1 - alpha.double()) * a + alpha.double() * b)
    batch, method = make_batch(name), MethodConfig.model_validate(preset)
    layout = lay_out(batch, method, join=False)
    causal = random_rows(layout.causal_rows, 1)
    branch = random_rows(layout.branch_rows, 2) if layout.second else None
    mixing = Mixing(0.01).double()
    mixing.theta_key.data.fill_(-0.02)
    mixing.theta_value.data.fill_(0.005)
    module = torch.nn.Module()
    module.layer_idx = 0
    expected = reference(batch, layout, method, causal, branch, mixing)
    exchange = Exchange(mixing if len(method.branches) == 2 else None) if branch else None
    if branch:
        attend(module, *branch, None, layout=layout, exchange=exchange, stream="prompt")
    output, _ = attend(module, *causal, None, layout=layout, exchange=exchange)
    rows = slice(0, layout.causal_rows)
    torch.testing.assert_close(output[0, rows], expected, atol=1e-12, rtol=1e-10)
    inputs = [*causal, *(branch or [])[1:]]
    weights = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    ours = torch.autograd.grad((output[0] * weights).sum(), inputs, allow_unused=True)
    plains = torch.autograd.grad((expected * weights).sum(), inputs, allow_unused=True)
    for mine, theirs in zip(ours, plains, strict=True):
        zero = torch.zeros(1, dtype=torch.float64)
        torch.testing.assert_close(zero if mine is None else mine, zero.expand_as(mine) if theirs is None else theirs)


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_rows_of_the_prompt_branch_follow_their_pattern(pattern: str, name: str) -> None:
    branches = [{"pattern": "causal"}, {"pattern": pattern, "weights": "own"}]
    layout = lay_out(make_batch(name), MethodConfig(name="two", branches=branches))
    query, key, value = random_rows(layout.branch_rows, 4)
    module = torch.nn.Module()
    module.layer_idx = 0
    output, _ = attend(module, query, key, value, None, layout=layout, exchange=Exchange(None), stream="prompt")
    for span in spans(tuple(layout.prompts.lengths)):
        mask = PATTERNS[pattern].mask(span.stop - span.start, tail=1)
        expected = plain(query[0][:, span], key[0][:, span], value[0][:, span], mask)
        torch.testing.assert_close(output[0, span], expected, atol=1e-12, rtol=1e-10)


def test_the_rules_themselves() -> None:
    assert PATTERNS["causal"].mask(3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert PATTERNS["anti_causal"].mask(3).int().tolist() == [[1, 1, 1], [0, 1, 1], [0, 0, 1]]
    assert PATTERNS["bidirectional"].mask(2).int().tolist() == [[1, 1], [1, 1]]


def test_mixing_is_computed_in_float32() -> None:
    mixing = Mixing(0.01)
    first, second = (torch.tensor([value], dtype=torch.bfloat16) for value in (1.0, 1.0078125))
    mixed, _ = mixing(first, second, first, second)
    assert mixed.dtype == torch.bfloat16
    assert mixing.alpha(mixing.theta_key).item() == pytest.approx(0.5)
    mixing.theta_key.data.fill_(-0.03)
    assert mixing.alpha(mixing.theta_key).item() == pytest.approx(0.75)


def test_positions_repeat_for_branch_and_go_on_for_answers() -> None:
    prompts, answers = samples([(3, 2), (1, 3)])
    bitune = lay_out(Batch.pack(prompts, answers), MethodConfig.model_validate("bitune"))
    assert bitune.position_ids.tolist() == [[0, 1, 2, 0, 3, 4, 1, 2, 3, 0, 1, 2, 0]]
    causal = lay_out(Batch.pack(prompts, answers), MethodConfig.model_validate("causal"))
    assert causal.position_ids.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 3]]
    assert causal.input_ids[0].tolist() == [*prompts[0], *answers[0], *prompts[1], *answers[1]]


@pytest.mark.parametrize(
    ("prompts", "answers", "owners"),
    [([[5]], [], None), ([[5]], [[]], None), ([[5]], [[6], [7]], None), ([[5]], [[6]], [1])],
)
def test_impossible_batches_are_refused(prompts: list, answers: list, owners: list | None) -> None:
    with pytest.raises(ValueError, match=r"answer|owners"):
        Batch.pack(prompts, answers, owners)


@pytest.mark.parametrize("method", ["causal", "bitune"])
def test_a_library_that_calls_attention_otherwise_is_refused(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = LlamaModel.forward

    def forgetful(self: LlamaModel, *arguments: Any, layout: Layout, **options: Any) -> Any:
        return decode(self, *arguments, **options)

    model = tiny_model(method)
    monkeypatch.setattr(LlamaModel, "forward", forgetful)
    with pytest.raises(StageError, match="layers called dualtune"):
        model(make_batch("ragged"))
