"""Slippery attention against its definition written out row by row, in float64: outputs and gradients."""

from typing import Any

import pytest
import torch
from tiny import answer_logits, samples, tiny_model, tokens
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.model import Batch, slippery
from pipeline.model.config import MethodConfig
from pipeline.model.layout import lay_out
from pipeline.model.patterns import make_pattern

HEADS, DIM = 4, 8


def seen_by_hand(length: int, sinks: int, window: int, full_rows: int) -> torch.Tensor:
    """[length, length]: row by row, which keys are seen."""
    seen = torch.zeros(length, length, dtype=torch.bool)
    for row in range(length):
        keys = {*range(min(sinks, row + 1)), *range(max(0, row - window), row + 1)}
        for key in range(row + 1) if row >= length - full_rows else keys:
            seen[row, key] = True
    return seen


def plain(rows: tuple[torch.Tensor, ...], seen: torch.Tensor) -> torch.Tensor:
    """[1, heads, n, dim] each -> [n, heads, dim]."""
    query, key, value = (part[0] for part in rows)
    key, value = (part.repeat_interleave(query.shape[0] // part.shape[0], dim=0) for part in (key, value))
    scores = (query @ key.transpose(1, 2) / DIM**0.5).masked_fill(~seen, -torch.inf)
    return (scores.softmax(dim=-1) @ value).transpose(0, 1)


def random_rows(total: int, key_heads: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(total)
    shapes = [(1, heads, total, DIM) for heads in (HEADS, key_heads, key_heads)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def compare(lengths: list[int], key_heads: int, sinks: int, window: int, full_rows: int) -> None:
    pattern = make_pattern("slippery", {"sinks": sinks, "window": window, "full_rows": full_rows})
    rows = random_rows(sum(lengths), key_heads)
    plan = slippery.SlipperyPlan.of(pattern, lengths, torch.device("cpu"), tail=0)
    output = plan.attend(*rows, {})[0]
    samples = zip(*(part.split(lengths, dim=2) for part in rows), strict=True)
    masks = [seen_by_hand(length, sinks, window, full_rows) for length in lengths]
    expected = torch.cat([plain(sample, mask) for sample, mask in zip(samples, masks, strict=True)])
    torch.testing.assert_close(output, expected, atol=1e-10, rtol=0)
    weights = torch.randn(output.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours, theirs = (torch.autograd.grad((out * weights).sum(), rows) for out in (output, expected))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-10, rtol=0)


@pytest.mark.parametrize("sinks", range(5))
@pytest.mark.parametrize("window", range(9))
def test_every_length_packed_with_grouped_heads(sinks: int, window: int) -> None:
    compare(list(range(1, 71)), key_heads=2, sinks=sinks, window=window, full_rows=1)


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 64, 70])
@pytest.mark.parametrize(("sinks", "window", "full_rows"), [(1, 1, 1), (0, 0, 1), (4, 8, 3), (3, 40, 100)])
def test_one_sample_alone(length: int, sinks: int, window: int, full_rows: int) -> None:
    compare([length], 4, sinks, window, full_rows)


def test_samples_cut_into_chunks_and_empty_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slippery, "CHUNK", 64)
    compare([70, 0, 33, 1, 64], 1, 2, 3, 2)


def test_a_window_over_everything_is_causal_attention() -> None:
    pattern = make_pattern("slippery", {"sinks": 0, "window": 70})
    rows = random_rows(70, 2)
    output = slippery.SlipperyPlan.of(pattern, [70], torch.device("cpu"), 0).attend(*rows, {})[0]
    torch.testing.assert_close(output, plain(tuple(rows), torch.ones(70, 70).tril().bool()), atol=1e-10, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions_keep_their_type(dtype: torch.dtype) -> None:
    rows = random_rows(40, 2)
    plan = slippery.SlipperyPlan.of(make_pattern("slippery", {}), [40], torch.device("cpu"), 0)
    output = plan.attend(*(part.to(dtype) for part in rows), {})
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), plan.attend(*rows, {}), atol=0.05, rtol=0.05)


def test_with_dropout_gradients_are_those_of_the_forward_pass() -> None:
    rows = random_rows(50, 2)
    plan = slippery.SlipperyPlan.of(make_pattern("slippery", {}), [50], torch.device("cpu"), 0)
    torch.manual_seed(0)
    output = plan.attend(*rows, {"dropout_p": 0.3})
    values = rows[2]
    (gradient,) = torch.autograd.grad(output.sum(), values, retain_graph=True)
    # The output is linear in the values, whatever was dropped.
    torch.testing.assert_close((gradient * values).sum(), output.sum())


def test_nothing_of_the_square_of_the_length_is_made() -> None:
    sizes: list[int] = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            parts = made if isinstance(made, tuple) else (made,)
            sizes.extend(part.numel() for part in parts if isinstance(part, torch.Tensor))
            return made

    rows = random_rows(3000, 2)
    with Sizes():
        plan = slippery.SlipperyPlan.of(make_pattern("slippery", {}), [3000], torch.device("cpu"), 0)
        plan.attend(*rows, {}).sum().backward()
    assert max(sizes) <= 4 * 3000 * HEADS * DIM < 3000**2


@pytest.mark.parametrize("full_rows", [1, 3])
def test_scopes_differ_in_the_rows_of_the_answer_only(full_rows: int) -> None:
    """scope prompt: answers see everything. scope input: all rows are sparse but the last ones of prompt + answer."""
    model = tiny_model("causal", tuning="none")
    (prompt,), (answer,) = samples([(9, 4)])
    whole = [*prompt, *answer]
    for scope, full in (("prompt", 4 + full_rows - 1), ("input", full_rows)):
        branch = {"pattern": "slippery", "scope": scope, "full_rows": full_rows}
        model.method = MethodConfig(name="scoped", branches=[branch])
        mask = seen_by_hand(13, 1, 1, full)
        stock = model.model
        stock.set_attn_implementation("eager")
        bias = torch.zeros(1, 1, 13, 13).masked_fill(~mask, torch.finfo(torch.float32).min)
        expected = stock(torch.tensor([whole]), attention_mask=bias).logits[0, 9:]
        stock.set_attn_implementation("dualtune")
        torch.testing.assert_close(answer_logits(model, [prompt], [answer])[0], expected, atol=2e-6, rtol=1e-5)


def test_inputs_of_one_prompt_are_read_one_by_one() -> None:
    method = MethodConfig.model_validate("slippery_input")
    batch = Batch.pack([tokens(3, 1), tokens(5, 2)], [[7, 8], [9], [6]], owners=[1, 0, 1])
    layout = lay_out(batch, method)
    expected = [*tokens(5, 2), 7, 8, *tokens(3, 1), 9, *tokens(5, 2), 6]
    assert layout.input_ids[0].tolist() == expected
    assert layout.input_ids[0, layout.answer_rows].tolist() == [7, 8, 9, 6]


def test_the_token_that_opens_the_answer_is_the_first_new_one_of_generation() -> None:
    """Both scopes read a prompt alike when something is generated, and the next token is that of a single input."""
    prompt = tokens(12, 5)
    models = [tiny_model(name, tuning="none").eval() for name in ("slippery", "slippery_input")]
    first, second = (model.generate([prompt], 6, do_sample=False, eos_token_id=None)[0] for model in models)
    assert first == second
    assert first[0] == models[1].logits(models[1](Batch.pack([prompt[:-1]], [prompt[-1:]])))[-1].argmax().item()


def test_slippery_beside_a_causal_branch_is_mixed() -> None:
    branches = [{"pattern": "causal"}, {"pattern": "slippery", "weights": "own"}]
    model = tiny_model({"name": "causal and slippery", "branches": branches})
    prompts, answers = samples([(20, 3), (5, 2)])
    for packed, prompt, answer in zip(answer_logits(model, prompts, answers), prompts, answers, strict=True):
        torch.testing.assert_close(packed, answer_logits(model, [prompt], [answer])[0], atol=2e-6, rtol=1e-5)
    labels = torch.tensor([3] * 5)
    model.losses(Batch.pack(prompts, answers), labels).sum().backward()
    assert all(parameter.grad is not None for parameter in model.trainable().values())
