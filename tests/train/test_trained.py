"""Which tensors are trained: told by group, and refused where model or optimizer disagree with method and tuning."""

from pathlib import Path
from typing import Any

import pytest
import torch
from train_runs import make_model, run_config, samples, share

from pipeline.errors import StageError
from pipeline.model import DualBranch
from pipeline.train import engine as engines
from pipeline.train.engine import Engine
from pipeline.train.trained import check_optimizer, groups, trained_tensors

TUNINGS: dict[str, dict[str, Any]] = {
    "full": {"kind": "full", "dropout": 0.0},
    "lora": {"kind": "lora"},
    "lora16": {"kind": "lora", "rank": 16},
    "dora": {"kind": "dora"},
    "ia3": {"kind": "ia3"},
    "vera": {"kind": "vera"},
}


def model_of(tmp_path: Path, name: str, **tuning: Any) -> DualBranch:
    return make_model(run_config(tmp_path, TUNINGS[name] | tuning))


@pytest.mark.parametrize("name", TUNINGS)
def test_a_frozen_tensor_of_either_stream_is_refused(tmp_path: Path, name: str) -> None:
    model = model_of(tmp_path, name)
    trained = trained_tensors(model)
    for stream in ("causal", "prompt"):
        victim = next(key for key in trained if f".{stream}." in key)
        trained[victim].requires_grad_(False)
        with pytest.raises(StageError, match=f"1 tensors should be trained, .* the first is {victim}"):
            trained_tensors(model)
        trained[victim].requires_grad_(True)


@pytest.mark.parametrize("name", [name for name in TUNINGS if name != "full"])
def test_an_unfrozen_base_weight_is_refused(tmp_path: Path, name: str) -> None:
    model = model_of(tmp_path, name)
    model.model.get_input_embeddings().requires_grad_(True)
    with pytest.raises(StageError, match=r"1 tensors require gradients, but tuning .* first is .*embed_tokens"):
        trained_tensors(model)


def test_a_linear_module_without_its_adapter_is_refused(tmp_path: Path) -> None:
    model = model_of(tmp_path, "lora", target_modules=["q_proj", "v_proj"])
    layer = model.model.base_model.layers[0].causal.self_attn
    layer.q_proj.prompt = layer.q_proj.prompt.base_layer
    with pytest.raises(StageError, match=r"q_proj\.prompt should have an adapter, but has none"):
        trained_tensors(model)


def test_a_tensor_that_the_optimizer_does_not_know_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, honest = run_config(tmp_path), engines.make_optimizer
    monkeypatch.setattr(engines, "make_optimizer", lambda found, *rest: honest(list(found)[1:], *rest))
    with pytest.raises(StageError, match="1 tensors are unknown to the optimizer, the first is model"):
        Engine(config, make_model(config), total_steps=1)


def test_a_tensor_that_the_optimizer_should_not_have_is_refused(tmp_path: Path) -> None:
    trained = trained_tensors(model_of(tmp_path, "lora"))
    with pytest.raises(StageError, match="the optimizer holds 141 tensors, trained are 140"):
        check_optimizer(trained, torch.optim.SGD([*trained.values(), torch.nn.Parameter(torch.ones(1))]))


@pytest.mark.parametrize("name", TUNINGS)
def test_each_trained_tensor_changes_and_no_other(tmp_path: Path, name: str) -> None:
    """Two updates: LoRA's A has no gradient as long as its B is zero."""
    config = run_config(tmp_path, TUNINGS[name], warmup_ratio=0.0)
    engine = Engine(config, make_model(config), total_steps=2)
    before = {key: tensor.detach().clone() for key, tensor in engine.objective.model.named_parameters()}
    for _ in range(2):
        engine.update(share(samples(9), 4))
    now = dict(engine.objective.model.named_parameters())
    assert {key for key, tensor in now.items() if not torch.equal(tensor, before[key])} == set(engine.parameters)


def test_groups_as_printed(tmp_path: Path) -> None:
    lora = [str(group) for group in groups(trained_tensors(model_of(tmp_path, "lora", target_modules=["k_proj"])))]
    assert lora == [
        "answer stream: 10 tensors, 1,920 parameters (k_proj.lora_A, k_proj.lora_B)",
        "prompt branch: 10 tensors, 1,920 parameters (k_proj.lora_A, k_proj.lora_B)",
        "mixing: 10 tensors, 10 parameters (theta_key, theta_value)",
    ]
    full = groups(trained_tensors(model_of(tmp_path, "full")))
    assert {group.name: group.tensors for group in full} == {
        "embeddings and last norm": 2, "answer stream": 45, "mixing": 10, "prompt branch": 4 * 9 + 3
    }  # fmt: skip
