"""What the branches must and must not see, checked through logits and gradients of whole models."""

import pytest
import torch
from tiny import FAMILIES, answer_logits, assert_sums_of, samples, set_theta, tiny_base, tiny_model, tokens

from pipeline.model import Batch, DualBranch
from pipeline.model.building import assemble
from pipeline.model.config import PRESETS, MethodConfig, ModelConfig, TuningConfig

METHODS = tuple(PRESETS)
LENGTHS = {
    "single": [(7, 4)],
    "even": [(5, 3), (5, 3), (5, 3)],
    "ragged": [(9, 2), (1, 5), (4, 1), (12, 7)],
    "with an empty prompt": [(0, 3), (6, 2), (0, 1)],
    "all prompts empty": [(0, 3), (0, 2)],
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", METHODS)
def test_packed_equals_alone(method: str, family: str) -> None:
    model = tiny_model(method, family=family)
    for lengths in LENGTHS.values():
        prompts, answers = samples(lengths)
        for packed, prompt, answer in zip(answer_logits(model, prompts, answers), prompts, answers, strict=True):
            torch.testing.assert_close(packed, answer_logits(model, [prompt], [answer])[0], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_packed_equal_the_sum_alone(method: str, mixing_in_float64: None) -> None:
    for lengths in LENGTHS.values():
        prompts, answers = samples(lengths)
        together = gradients(tiny_model(method).double(), prompts, answers)
        assert all(torch.isfinite(gradient).all() for gradient in together.values())
        alone = [gradients(tiny_model(method).double(), [p], [a]) for p, a in zip(prompts, answers, strict=True)]
        assert_sums_of(together, alone)


def gradients(model: DualBranch, prompts: list[list[int]], answers: list[list[int]]) -> dict[str, torch.Tensor]:
    labels = torch.tensor([(token + 1) % 61 for answer in answers for token in answer])
    model.losses(Batch.pack(prompts, answers), labels).sum().backward()
    return {name: parameter.grad for name, parameter in model.trainable().items()}


@pytest.mark.parametrize("method", METHODS)
def test_other_samples_do_not_change_a_bit(method: str) -> None:
    model = tiny_model(method)
    for lengths in LENGTHS.values():
        prompts, answers = samples(lengths)
        other_prompts, other_answers = samples(lengths, seed=9)
        changed = answer_logits(model, [*other_prompts[:-1], prompts[-1]], [*other_answers[:-1], answers[-1]])[-1]
        assert torch.equal(answer_logits(model, prompts, answers)[-1], changed)


@pytest.mark.parametrize("method", METHODS)
def test_answers_that_share_a_prompt_equal_answers_alone(method: str) -> None:
    model = tiny_model(method)
    prompts, _ = samples([(6, 2), (3, 4), (8, 1)])
    owners = [2, 0, 2, 1, 0]
    choices = [tokens(length, 50 + length) for length in (3, 1, 4, 2, 5)]
    hidden = model(Batch.pack(prompts, choices, owners)).split([len(choice) for choice in choices])
    for one, choice, owner in zip(hidden, choices, owners, strict=True):
        torch.testing.assert_close(one, model(Batch.pack([prompts[owner]], [choice])), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_theta_zero_is_plain_causal(tuning: str) -> None:
    bitune, causal = tiny_model("bitune", tuning), tiny_model("causal", tuning)
    set_theta(bitune, 0.0)
    copy_causal_stream(bitune, causal)
    for lengths in LENGTHS.values():
        for ours, plain in zip(*(answer_logits(m, *samples(lengths)) for m in (bitune, causal)), strict=True):
            torch.testing.assert_close(ours, plain, atol=1e-6, rtol=1e-5)


def copy_causal_stream(source: DualBranch, target: DualBranch) -> None:
    stream = {name.replace(".causal.", "."): tensor for name, tensor in source.state_dict().items()}
    result = target.load_state_dict(stream, strict=False)
    assert not set(result.missing_keys) & target.trainable().keys()  # the base weights are equal already


@pytest.mark.parametrize("theta", [0.0, 0.003, -0.5, 100.0])
def test_shared_weights_with_a_causal_second_pass_is_plain_causal(theta: float) -> None:
    branches = [{"pattern": "causal"}, {"pattern": "causal"}]
    twice, causal = tiny_model({"name": "causal twice", "branches": branches}), tiny_model("causal")
    set_theta(twice, theta)
    copy_causal_stream(twice, causal)
    for ours, plain in zip(*(answer_logits(m, *samples([(7, 3), (2, 5)])) for m in (twice, causal)), strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_the_plain_causal_model_is_the_unmodified_one(method: str) -> None:
    """An untrained method with causal branches only must equal stock transformers."""
    if any(branch["pattern"] != "causal" for branch in PRESETS[method]):
        pytest.skip("not a causal method")
    base = tiny_base()
    prompt, answer = tokens(6, 1), tokens(4, 2)
    expected = base(torch.tensor([prompt + answer])).logits[0, 6:]
    none = TuningConfig(kind="none")
    model = assemble(base, ModelConfig(name="x"), MethodConfig.model_validate(method), none, seed=0)
    torch.testing.assert_close(answer_logits(model, [prompt], [answer])[0], expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("method", METHODS)
def test_what_prompt_features_depend_on(method: str, lengths: list[tuple[int, int]]) -> None:
    """An answer token changes no prompt feature; the last prompt token changes the first one's feature
    exactly if the pattern lets it be seen."""
    model = tiny_model(method)
    prompts, answers = samples(lengths)
    if not any(prompts):
        pytest.skip("no prompt tokens")
    index = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    first = sum(len(prompt) for prompt in prompts[:index])
    before = features(model, prompts, answers)
    changed_answers = [[(token + 7) % 61 for token in answer] for answer in answers]
    assert torch.equal(before, features(model, prompts, changed_answers))
    changed = [list(prompt) for prompt in prompts]
    changed[index][-1] = (changed[index][-1] + 7) % 61
    sees_ahead = any(branch["pattern"] not in ("causal", "slippery") for branch in PRESETS[method])
    moved = (features(model, changed, answers)[first] - before[first]).abs().max().item()
    assert (moved > 1e-6) == sees_ahead


def features(model: DualBranch, prompts: list[list[int]], answers: list[list[int]]) -> torch.Tensor:
    """[prompt tokens, heads, dim]: keys of the last layer that answers read."""
    layout = model.lay_out(Batch.pack(prompts, answers), join=False)
    layout.recorder = {}
    with torch.no_grad():
        model.run(layout)
    return layout.recorder[2][0][0].transpose(0, 1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_gradient_checkpointing_changes_no_gradient(method: str, tuning: str) -> None:
    prompts, answers = samples(LENGTHS["ragged"])
    plain = gradients(tiny_model(method, tuning).train(), prompts, answers)
    model = tiny_model(method, tuning, gradient_checkpointing=True).train()
    for name, gradient in gradients(model, prompts, answers).items():
        torch.testing.assert_close(gradient, plain[name], atol=0, rtol=0)


def test_no_tensor_holds_logits_of_prompt_tokens() -> None:
    model = tiny_model()
    prompts, answers = samples([(40, 2)])
    shapes = []
    model.model.lm_head.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape)))
    model.losses(Batch.pack(prompts, answers), torch.tensor([3, 4]))
    assert shapes == [(2, 61)]


def test_the_last_prompt_branch_holds_keys_and_values_only() -> None:
    names = {name for name, _ in tiny_model("bitune", "full").named_parameters() if ".2.prompt." in name}
    kept = {name.split(".prompt.")[1] for name in names}
    assert kept == {"input_layernorm.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tuning", ["full", "lora", "dora", "ia3", "vera"])
def test_every_trainable_parameter_moves(tuning: str, method: str, family: str) -> None:
    model = tiny_model(method, tuning, family)
    moved = gradients(model, *samples(LENGTHS["ragged"]))
    still = [name for name, gradient in moved.items() if gradient is None or gradient.abs().max() == 0]
    # Shared weights: both streams start from the same embeddings, so the first layer has nothing to mix.
    assert not [name for name in still if not (method == "shared_weights" and ".0.mixing." in name)]
    branched = sum(branch["weights"] == "own" for branch in map({"weights": "answer"}.__or__, PRESETS[method]))
    assert any(".prompt." in name for name in moved) == bool(branched)
    assert any("theta" in name for name in moved) == (len(PRESETS[method]) == 2)


@pytest.mark.parametrize("preset", ["bitune", "no_mixing", "shared_weights"])
def test_the_last_layer_is_the_same_with_and_without_gradients(preset: str) -> None:
    """Without gradients it leaves out what answers don't need of the prompt."""
    model = tiny_model(preset, "lora", "llama")
    batch = Batch.pack([[1, 2, 3, 4], [5, 6]], [[7, 8, 9], [10]])
    with torch.no_grad():
        lean = model(batch)
    assert torch.allclose(model(batch), lean, atol=1e-6, rtol=1e-5)
