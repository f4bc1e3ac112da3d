"""Conversations: one pass over all turns equals reading them turn by turn, and the plain rule."""

import pytest
import torch
from test_attention import plain, random_rows, spans
from tiny import FAMILIES, assert_sums_of, samples, tiny_model, tokens

from pipeline.errors import UserError
from pipeline.model import Batch, DualBranch
from pipeline.model.attention import Exchange, attend
from pipeline.model.config import PRESETS, MethodConfig
from pipeline.model.generation import Dialogue, prefill
from pipeline.model.layout import branch_patterns, lay_out
from pipeline.model.mixing import Mixing

METHODS = [name for name in PRESETS if name != "slippery_input"]
TWO_SLIPPERY = {
    "name": "two", "branches": [{"pattern": "causal"}, {"pattern": "slippery", "weights": "own", "full_rows": 3}]
}  # fmt: skip
CONVERSATIONS = [[(5, 3), (4, 2), (3, 6)], [(2, 4)], [(0, 2), (6, 1), (1, 3)]]
"""(prompt, answer) lengths of the turns of three samples."""

Turns = list[tuple[list[int], list[int]]]


def conversation(lengths: list[tuple[int, int]], seed: int = 0) -> Turns:
    return list(zip(*samples(lengths, seed), strict=True))


def pack(conversations: list[Turns]) -> Batch:
    turns = [(number, *turn) for number, turns in enumerate(conversations) for turn in turns]
    numbers, prompts, answers = zip(*turns, strict=True)
    segments = [(2,) if len(prompt) > 3 else () for prompt in prompts]
    return Batch.pack(prompts, answers, segments=segments, samples=numbers)


def logits(model: DualBranch, conversations: list[Turns]) -> list[torch.Tensor]:
    """Of the answers of each sample."""
    lengths = [sum(len(answer) for _, answer in turns) for turns in conversations]
    return list(model.logits(model(pack(conversations))).split(lengths))


def step_by_step(model: DualBranch, turns: Turns) -> torch.Tensor:
    """Each prompt on top of the cache by all branches, then each answer token by the unmodified model."""
    cache, found = None, []
    with torch.no_grad():
        for prompt, answer in turns:
            cache = prefill(model, [prompt], [(2,) if len(prompt) > 3 else ()], cache)
            for token in answer:
                output = model.model(torch.tensor([[token]]), cache=cache, use_cache=True)
                cache = output.cache
                found.append(output.logits[0])
    return torch.cat(found)


@pytest.mark.parametrize("tuning", ["lora", "full"])
@pytest.mark.parametrize("method", [*METHODS, TWO_SLIPPERY], ids=str)
def test_one_pass_equals_step_by_step(method: str | dict, tuning: str, mixing_in_float64: None) -> None:
    model = tiny_model(method, tuning).double().eval()
    conversations = [conversation(lengths, seed) for seed, lengths in enumerate(CONVERSATIONS)]
    for whole, turns in zip(logits(model, conversations), conversations, strict=True):
        torch.testing.assert_close(whole, step_by_step(model, turns), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["causal", "bitune", "no_mixing"])
def test_one_pass_equals_step_by_step_in_every_family(method: str, family: str) -> None:
    model = tiny_model(method, family=family).eval()
    turns = conversation(CONVERSATIONS[0])
    torch.testing.assert_close(logits(model, [turns])[0], step_by_step(model, turns), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tuning", ["lora", "full"])
@pytest.mark.parametrize("method", METHODS)
def test_packed_conversations_equal_conversations_alone(method: str, tuning: str, mixing_in_float64: None) -> None:
    model = tiny_model(method, tuning).double()
    conversations = [conversation(lengths, seed) for seed, lengths in enumerate(CONVERSATIONS)]
    for packed, turns in zip(logits(model, conversations), conversations, strict=True):
        torch.testing.assert_close(packed, logits(model, [turns])[0], atol=1e-10, rtol=1e-10)
    together = gradients(model, conversations)
    alone = [gradients(model, [turns]) for turns in conversations]
    assert_sums_of(together, alone)


def gradients(model: DualBranch, conversations: list[Turns]) -> dict[str, torch.Tensor]:
    model.zero_grad()
    batch = pack(conversations)
    labels = (batch.tokens[batch.prompt_tokens :] + 1) % 61
    model.losses(batch, labels).sum().backward()
    zero = torch.zeros(())
    return {n: zero.expand_as(p) if p.grad is None else p.grad.clone() for n, p in model.trainable().items()}


@pytest.mark.parametrize("method", METHODS)
def test_later_turns_do_not_change_a_bit(method: str) -> None:
    model = tiny_model(method)
    first, other = conversation(CONVERSATIONS[0]), conversation(CONVERSATIONS[0], seed=7)
    for turns in (1, 2):
        seen = sum(len(answer) for _, answer in first[:turns])
        changed = logits(model, [first[:turns] + other[turns:]])[0][:seen]
        assert torch.equal(logits(model, [first])[0][:seen], changed)


@pytest.mark.parametrize("method", METHODS)
def test_conversations_of_one_turn_are_plain_samples_bit_for_bit(method: str) -> None:
    model = tiny_model(method)
    turns = conversation([(5, 3), (1, 4)])
    prompts, answers = zip(*turns, strict=True)
    segments = [(2,) if len(prompt) > 3 else () for prompt in prompts]
    expected = model(Batch.pack(prompts, answers, segments=segments))
    assert torch.equal(model(pack([[turn] for turn in turns])), expected)


@pytest.mark.parametrize("tuning", ["lora", "full"])
@pytest.mark.parametrize("method", ["causal", "bitune", "no_mixing", "shared_weights"])
def test_gradient_checkpointing_and_a_lean_last_layer_change_nothing(method: str, tuning: str) -> None:
    conversations = [conversation(lengths, seed) for seed, lengths in enumerate(CONVERSATIONS)]
    model = tiny_model(method, tuning)
    found = gradients(tiny_model(method, tuning, gradient_checkpointing=True).train(), conversations)
    for name, gradient in gradients(model.train(), conversations).items():
        assert torch.equal(found[name], gradient)
    with torch.no_grad():
        lean = logits(model, conversations)
    torch.testing.assert_close(lean, logits(model, conversations), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("preset", METHODS)
def test_attention_equals_the_plain_rule(preset: str, mixing_in_float64: None) -> None:
    conversations = [conversation(lengths, seed) for seed, lengths in enumerate(CONVERSATIONS)]
    batch, method = pack(conversations), MethodConfig.model_validate(preset)
    layout = lay_out(batch, method, join=False)
    causal, branch = random_rows(layout.causal_rows, 1), random_rows(layout.branch_rows, 2) if layout.second else None
    mixing = Mixing(0.01).double()
    mixing.theta_key.data.fill_(-0.02)
    module = torch.nn.Module()
    module.layer_idx = 0
    exchange = Exchange(mixing if len(method.branches) == 2 else None) if branch else None
    stream = [torch.cat(pair, dim=2) for pair in zip(causal, branch, strict=True)] if branch else causal
    output, _ = attend(module, *stream, None, layout=layout, exchange=exchange, stream="both" if branch else "causal")
    expected = by_the_book(batch, method, causal, branch, mixing)
    torch.testing.assert_close(output[0], expected, atol=1e-12, rtol=1e-10)
    weights = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    inputs = [*causal, *(branch or [])]
    ours, theirs = (
        torch.autograd.grad((part * weights).sum(), inputs, allow_unused=True) for part in (output[0], expected)
    )
    for mine, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, their)


def by_the_book(batch: Batch, method: MethodConfig, causal: list, branch: list | None, mixing: Mixing) -> torch.Tensor:
    """Turn by turn with a growing list of what is cached: [rows, heads, dim] in the layout's order."""
    first, second = branch_patterns(method)
    outputs: dict[str, list] = {"prompt": [], "answer": [], "branch": []}
    own_rows = spans(batch.prompt_lengths)
    answer_rows = spans(batch.answer_lengths, batch.prompt_tokens if first is not None else 0)
    sample, cache = -1, None
    for index, (span, answer) in enumerate(zip(own_rows, answer_rows, strict=True)):
        if batch.samples[index] != sample:
            sample, cache = batch.samples[index], [causal[1][0][:, :0], causal[2][0][:, :0]]
        streams = {"prompt": (first, causal), "branch": (second, branch)}
        made = {}
        for name, (pattern, rows) in streams.items():
            if pattern is None:
                continue
            assert rows is not None and cache is not None
            query, key, value = (part[0][:, span] for part in rows)
            made[name] = (key, value)
            segment = torch.tensor([sum(place >= s for s in batch.segments[index]) for place in range(key.shape[1])])
            own = pattern.mask(key.shape[1], tail=1, segment=segment.long())
            sees = torch.cat([torch.ones(key.shape[1], cache[0].shape[1], dtype=torch.bool), own], dim=1)
            outputs[name].append(
                plain(query, *(torch.cat(p, dim=1) for p in zip(cache, (key, value), strict=True)), sees)
            )
        read = made.get("branch", made.get("prompt"))
        if len(made) == 2:
            alphas = [mixing.alpha(theta).double() for theta in (mixing.theta_key, mixing.theta_value)]
            pairs = zip(alphas, made["prompt"], made["branch"], strict=True)
            read = [(1 - alpha) * one + alpha * other for alpha, one, other in pairs]
        query, key, value = (part[0][:, answer] for part in causal)
        cache = [torch.cat(parts, dim=1) for parts in zip(cache, read, (key, value), strict=True)]
        length = key.shape[1]
        sees = torch.ones(length, cache[0].shape[1], dtype=torch.bool).tril(cache[0].shape[1] - length)
        outputs["answer"].append(plain(query, *cache, sees))
    return torch.cat([part for name in ("prompt", "answer", "branch") for part in outputs[name]])


def greedy(model: DualBranch, turns: Turns, count: int) -> list[int]:
    """The last answer by the training forward, again for every token."""
    *earlier, (prompt, answer) = turns
    for _ in range(count):
        found = logits(model, [[*earlier, (prompt, answer)]])[0]
        answer = [*answer, found[-1].argmax().item()]
    return answer[-count:]


@pytest.mark.parametrize("tuning", ["lora", "full"])
@pytest.mark.parametrize("method", METHODS)
def test_a_dialogue_equals_the_training_forward(method: str, tuning: str) -> None:
    model = tiny_model(method, tuning).eval()
    dialogue, turns, pending = Dialogue(model), [], []
    for number, length in enumerate((1, 2, 3)):
        instruction = tokens(length, 10 + number)
        answer = dialogue.answer(instruction, 5, do_sample=False, eos_token_id=None)
        prompt = [*pending, *instruction]
        turns.append((prompt[:-1], prompt[-1:]))
        assert answer == greedy(model, turns, 5)
        turns[-1] = (prompt[:-1], [*prompt[-1:], *answer[:-1]])
        pending = answer[-1:]


def test_an_answer_cut_short_is_closed_before_the_next_turn() -> None:
    dialogue = Dialogue(tiny_model().eval(), end=2)
    answer = dialogue.answer([5, 6], 3, do_sample=False, eos_token_id=None)
    assert dialogue.tokens == [5, 6, *answer, 2]
    further = dialogue.answer([7], 2, do_sample=False, eos_token_id=None)
    assert dialogue.tokens == [5, 6, *answer, 2, 7, *further, 2]


def test_one_known_input_has_no_turns() -> None:
    model = tiny_model("slippery_input", tuning="none")
    with pytest.raises(ValueError, match="scope: input"):
        model(pack([conversation(CONVERSATIONS[0])]))
    with pytest.raises(UserError, match="it has no dialogue"):
        Dialogue(model).answer([5], 1)


@pytest.mark.parametrize("numbers", [[0], [1, 0]])
def test_impossible_samples_are_refused(numbers: list[int]) -> None:
    with pytest.raises(ValueError, match="sample"):
        Batch.pack([[1], [2]], [[3], [4]], samples=numbers)
    with pytest.raises(ValueError, match="sample"):
        Batch.pack([[1]], [[3], [4]], owners=[0, 0], samples=[0])
