import math
from pathlib import Path
from typing import Any

import pytest
import torch
from train_runs import make_model, run_config, samples, share

from pipeline.errors import StageError, UserError
from pipeline.model import Batch, DualBranch
from pipeline.model.config import MethodConfig
from pipeline.train.engine import Engine, make_accelerator

TUNINGS = ("full", "lora", "dora", "ia3", "vera")


def engine_of(tmp_path: Path, tuning: str = "lora", **training: Any) -> Engine:
    config = run_config(tmp_path, {"kind": tuning, "dropout": 0.0}, **({"warmup_ratio": 0.0} | training))
    return Engine(config, make_model(config), total_steps=10)


@pytest.mark.parametrize("tuning", TUNINGS)
def test_every_trainable_tensor_changes(tmp_path: Path, tuning: str) -> None:
    """Two updates: LoRA's A gets a gradient of zero as long as its B is zero."""
    engine, rows = engine_of(tmp_path, tuning), samples(8)
    before = {name: tensor.detach().clone() for name, tensor in engine.parameters.items()}
    frozen = {n: t.clone() for n, t in engine.objective.model.named_parameters() if not t.requires_grad}
    for _ in range(2):
        engine.update(share(rows, 4))
    assert [name for name, tensor in engine.parameters.items() if torch.equal(tensor, before[name])] == []
    now = dict(engine.objective.model.named_parameters())
    assert all(torch.equal(now[name], tensor) for name, tensor in frozen.items())


@pytest.mark.parametrize("reduction", ["token", "sample"])
def test_accumulation_in_the_engine_is_exact(tmp_path: Path, reduction: str) -> None:
    rows, found = samples(8), []
    for size in (8, 4, 2, 1):
        engine = engine_of(tmp_path, loss_reduction=reduction, max_grad_norm=None)
        update = engine.update(share(rows, size))
        found.append((update.loss, update.gradient_norm))
    assert found == [pytest.approx(found[0], rel=1e-5)] * 4


def test_clipping_scales_the_gradient_to_the_limit(tmp_path: Path) -> None:
    engine, whole = engine_of(tmp_path, max_grad_norm=0.01), share(samples(4), 4)
    engine._accumulate(whole)
    norm = engine._clip()
    clipped = math.sqrt(sum(float(tensor.grad.square().sum()) for tensor in engine.parameters.values()))
    assert norm > 0.01
    assert clipped == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_loss_that_is_no_number_names_the_sample_and_leaves_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    engine = engine_of(tmp_path)
    before = {name: tensor.detach().clone() for name, tensor in engine.parameters.items()}
    honest = DualBranch.losses

    def spoilt(self: DualBranch, batch: Batch, labels: torch.Tensor) -> torch.Tensor:
        losses = honest(self, batch, labels)
        return torch.where(torch.arange(len(losses)) == len(losses) - 1, value, losses)

    monkeypatch.setattr(DualBranch, "losses", spoilt)
    with pytest.raises(StageError, match=rf"the loss is {value}, from the samples row-1, row-2$"):
        engine.update(share(samples(3), 2))
    assert all(torch.equal(tensor, before[name]) for name, tensor in engine.parameters.items())


def test_infinite_gradient_norm_names_the_samples(tmp_path: Path) -> None:
    engine = engine_of(tmp_path)
    next(iter(engine.parameters.values())).register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(StageError, match=r"the gradient norm is .*row-0, row-1"):
        engine.update(share(samples(2), 2))


def test_tensor_without_gradient_is_named(tmp_path: Path) -> None:
    config = run_config(tmp_path, {"kind": "full", "dropout": 0.0})
    model = make_model(config)
    model.idle = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(StageError, match=r"1 of the trained tensors get no gradient, the first is idle"):
        Engine(config, model, total_steps=1).update(share(samples(4), 4))


def test_model_with_nothing_to_train_is_refused(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    model = make_model(config).requires_grad_(False)
    with pytest.raises(StageError, match=r"\d+ tensors should be trained, but require no gradient, the first is model"):
        Engine(config, model, total_steps=1)


def test_bf16_trains_float32_adapters_on_a_bfloat16_base(tmp_path: Path) -> None:
    config = run_config(tmp_path, warmup_ratio=0.0)
    config = config.model_copy(update={"model": config.model.model_copy(update={"precision": "bf16"})})
    engine = Engine(config, make_model(config), total_steps=10)
    update = engine.update(share(samples(4), 2))
    exact = engine_of(tmp_path).update(share(samples(4), 2))
    assert {tensor.dtype for tensor in engine.parameters.values()} == {torch.float32}
    assert {t.dtype for t in engine.objective.model.parameters() if not t.requires_grad} == {torch.bfloat16}
    assert update.loss != exact.loss
    assert update.loss == pytest.approx(exact.loss, rel=0.02)


def test_processes_that_accelerate_does_not_see_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.train.engine.Accelerator.num_processes", 2)
    with pytest.raises(StageError, match="accelerate sees rank 0 of 2 processes, not 0 of 1"):
        make_accelerator("fp32")


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("method", ["causal", "bitune", "shared_weights", "no_mixing"])
def test_exactly_the_expected_tensors_are_trained(tmp_path: Path, tuning: str, method: str) -> None:
    """Counted by hand: 5 layers of 7 linear modules; the last prompt branch has keys and values only."""
    config = run_config(tmp_path, {"kind": tuning, "dropout": 0.0}).model_copy(
        update={"method": MethodConfig.model_validate(method)}
    )
    model = make_model(config)
    names = set(Engine(config, model, total_steps=1).parameters)
    mixing = 5 * 2 if method in ("bitune", "shared_weights") else 0
    own = method in ("bitune", "no_mixing")
    modules = 5 * 7 + own * (4 * 7 + 2)
    if tuning == "full":
        assert names == {name for name, _ in model.named_parameters()}
        assert len(names) == 47 + mixing + own * (4 * 9 + 3)  # the branch has 9 tensors a layer, at last 3
    else:
        assert len(names) == modules * {"lora": 2, "dora": 3, "ia3": 1, "vera": 2}[tuning] + mixing
        assert {name for name in names if ".theta_" in name} == {n for n in names if ".mixing." in n}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "tuning"), [("causal", "full"), ("causal", "lora"), ("bitune", "full")])
def test_compiled_layers_give_equal_losses(tmp_path: Path, method: str, tuning: str) -> None:
    """Micro-batches of every length; with activation checkpointing."""
    losses = []
    for backend in ("none", "aot_eager"):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        config = run_config(tmp_path, {"kind": tuning, "dropout": 0.0}, compile=backend)
        model = config.model.model_copy(update={"gradient_checkpointing": True})
        config = config.model_copy(update={"method": MethodConfig.model_validate(method), "model": model})
        engine = Engine(config, make_model(config), total_steps=10)
        losses.append([engine.update(share(samples(6, seed), 2)).loss for seed in range(3)])
        frames = dict(torch._dynamo.utils.counters["frames"])
        assert (frames.get("ok", 0) > 0) == (backend != "none")
        assert frames.get("ok") == frames.get("total")
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_layers_with_adapters_of_two_streams_are_not_compiled(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"training.compile = aot_eager: .* \(bitune, lora\) cannot be compiled"):
        engine_of(tmp_path, compile="aot_eager")
