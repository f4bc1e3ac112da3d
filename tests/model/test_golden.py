"""Parity with numbers made by the implementation of Bitune's authors (tests/model/golden/README.md)."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from pipeline.model import Batch, DualBranch
from pipeline.model.building import assemble
from pipeline.model.config import MethodConfig, ModelConfig, TuningConfig

GOLDEN = Path(__file__).parent / "golden"
CASES = json.loads((GOLDEN / "cases.json").read_text())


def golden_model(name: str) -> tuple[DualBranch, dict[str, torch.Tensor]]:
    case, data = CASES[name], load_file(GOLDEN / f"{name}.safetensors")
    base = AutoModelForCausalLM.from_config(AutoConfig.for_model(case["architecture"], **case["config"]))
    base.load_state_dict(load_file(GOLDEN / f"{case['architecture']}_base.safetensors"))
    tuning = TuningConfig(
        kind=case["tuner"], rank=2, alpha=1,
        target_modules=("q_proj", "k_proj", "v_proj") if case["architecture"] == "phi" else (),
    )  # fmt: skip
    method = MethodConfig.model_validate({"name": case["variant"], "theta_init": case["theta_init"]})
    model = assemble(base, ModelConfig(name=name, precision="fp32"), method, tuning, seed=0)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for key, tensor in data.items():
            if key.startswith("adapter.") and (ours := our_name(parameters, key.removeprefix("adapter."))):
                parameters[ours].copy_(tensor)
        for index, layer in enumerate(base.base_model.layers):
            if "theta_k" in data:
                layer.mixing.theta_key.fill_(data["theta_k"][index])
                layer.mixing.theta_value.fill_(data["theta_v"][index])
    return model, data


def our_name(parameters: dict[str, torch.nn.Parameter], theirs: str) -> str | None:
    """`causal.model.layers.0.mlp.up_proj.lora_A.weight` -> the name of that adapter here, None if dead weight.

    It is `layers.0.causal.mlp.up_proj.causal.lora_A...` in joint layers, `layers.1.causal.mlp.up_proj.lora_A...` in
    the last one, and the plain name in methods without a prompt branch.
    """
    branch, _, rest = theirs.partition(".")
    _, _, layer, block, linear, adapter, *_ = rest.split(".")
    adapter += ".default.weight" if rest.endswith("weight") else ".default"
    plain = f"{block}.{linear}.{adapter}"
    places = [f"causal.{block}.{linear}.{branch}.{adapter}", f"{branch}.{plain}"]
    if branch == "causal":
        places += [f"causal.{plain}", plain]
    names = [f"model.model.layers.{layer}.{place}" for place in places]
    return next((name for name in names if name in parameters), None)


@pytest.mark.parametrize("name", CASES)
def test_loss_logits_gradients_and_greedy_continuation(name: str) -> None:
    model, data = golden_model(name)
    ids, start = data["input_ids"].tolist(), CASES[name]["prompt_length"] - 1
    batch = Batch.pack([ids[:start]], [ids[start:]])
    torch.testing.assert_close(model.logits(model(batch)), data["answer_logits"], atol=1e-5, rtol=0)

    loss = model.losses(Batch.pack([ids[:start]], [ids[start:-1]]), torch.tensor(ids[start + 1 :])).mean()
    assert loss.item() == pytest.approx(CASES[name]["loss"], abs=1e-5)
    loss.backward()
    compared = compare_gradients(model, data)
    assert compared == len(model.trainable())

    expected = CASES[name]["greedy_continuation"]
    model.eval()
    assert model.generate([ids[: start + 1]], len(expected), do_sample=False, eos_token_id=None) == [expected]


@pytest.mark.parametrize("length", [4, 15])
@pytest.mark.parametrize("name", CASES)
def test_beside_a_sample_of_another_length(name: str, length: int) -> None:
    """Padded, through the mask of answers: alone, prompt and answer are of one length, and the causal flag serves."""
    model, data = golden_model(name)
    ids, start = data["input_ids"].tolist(), CASES[name]["prompt_length"] - 1
    batch = Batch.pack([[5] * length, ids[:start]], [[6, 7], ids[start:]])
    torch.testing.assert_close(model.logits(model(batch))[2:], data["answer_logits"], atol=1e-5, rtol=0)
    batch = Batch.pack([[5] * length, ids[:start]], [[6, 7], ids[start:-1]])
    losses = model.losses(batch, torch.tensor([8, 9, *ids[start + 1 :]]))[2:]
    assert losses.mean().item() == pytest.approx(CASES[name]["loss"], abs=1e-5)
    losses.mean().backward()
    assert compare_gradients(model, data) == len(model.trainable())


def compare_gradients(model: DualBranch, data: dict[str, torch.Tensor]) -> int:
    """Check every gradient; returns how many of our parameters were compared."""
    parameters, compared = dict(model.named_parameters()), 0
    for key in (key for key in data if key.startswith("grad.")):
        theirs = key.removeprefix("grad.").removeprefix("adapter.")
        if theirs.startswith("theta"):
            kind = {"theta_k": "theta_key", "theta_v": "theta_value"}[theirs]
            ours = torch.cat([p.grad for name, p in parameters.items() if name.endswith(kind)])
            compared += len(ours)
        elif (name := our_name(parameters, theirs)) is None:
            ours = torch.zeros_like(data[key])  # no such weight here: its gradient must be zero there
        else:
            ours, compared = parameters[name].grad, compared + 1
        scale = data[key].abs().max().item()  # 1e-5 alone would let gradients of IA3 that are 1e-6 be zero
        torch.testing.assert_close(
            ours, data[key], atol=min(1e-5, 1e-7 + 1e-3 * scale), rtol=0, msg=lambda text, key=key: f"{key}: {text}"
        )
    return compared
