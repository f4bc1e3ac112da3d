"""The loss and its gradient against a plain reference in float64."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import log_softmax
from train_runs import Sample, Samples, make_model, run_config, samples, share

from pipeline.model import Batch, DualBranch
from pipeline.train.batches import MicroBatch, answer_tokens
from pipeline.train.engine import Engine
from pipeline.train.loss import Objective, row_weights


def model_of(tmp_path: Path, dtype: torch.dtype = torch.float64, **tuning: Any) -> DualBranch:
    model = make_model(run_config(tmp_path, {"dropout": 0.0, **tuning})).to(dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in model.trainable().values():  # LoRA's B starts at 0 and would hide the gradients of A
            tensor += 0.05 * torch.randn(tensor.shape, generator=generator, dtype=dtype)
    return model


def accumulated(model: DualBranch, rows: Samples, size: int, reduction: str) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients as the engine adds them up, micro-batch by micro-batch."""
    objective = Objective(model)
    model.zero_grad()
    loss = 0.0
    for micro in share(rows, size).micro_batches:
        weights = row_weights(micro.lengths, reduction, len(rows), answer_tokens(rows))
        part, _ = objective(micro.batch, micro.labels, weights)
        part.backward()
        loss += part.item()
    return loss, {name: tensor.grad.clone() for name, tensor in model.trainable().items()}


def reference(model: DualBranch, rows: Samples, reduction: str) -> tuple[float, dict[str, torch.Tensor]]:
    """One sample at a time; the mean written out."""
    model.zero_grad()
    per_sample = []
    for row in rows:
        prompt, answer = row.input_ids[: row.prompt_length - 1], row.input_ids[row.prompt_length - 1 : -1]
        logits = model.logits(model(Batch.pack([prompt], [answer])))
        labels = torch.tensor(row.input_ids[row.prompt_length :])
        per_sample.append(-log_softmax(logits, dim=-1)[torch.arange(len(labels)), labels])
    loss = torch.cat(per_sample).mean() if reduction == "token" else torch.stack([p.mean() for p in per_sample]).mean()
    loss.backward()
    return loss.item(), {name: tensor.grad.clone() for name, tensor in model.trainable().items()}


@pytest.mark.parametrize("reduction", ["token", "sample"])
def test_gradient_does_not_depend_on_micro_batches(tmp_path: Path, reduction: str) -> None:
    model, rows = model_of(tmp_path), samples(8)
    loss, gradients = reference(model, rows, reduction)
    for size in (1, 2, 4, 8, 3):
        found, others = accumulated(model, rows, size, reduction)
        assert found == pytest.approx(loss, rel=1e-6)
        for name, gradient in gradients.items():
            # losses and mixing are float32 inside the model, whatever its dtype
            torch.testing.assert_close(others[name], gradient, rtol=1e-4, atol=1e-6)


def test_reductions_differ_on_unequal_answers(tmp_path: Path) -> None:
    model, rows = model_of(tmp_path), samples(8)
    assert reference(model, rows, "token")[0] != pytest.approx(reference(model, rows, "sample")[0], rel=1e-3)


def test_weights_by_hand() -> None:
    torch.testing.assert_close(row_weights((3, 1), "token", 4, 10), torch.full((4,), 0.1))
    expected = torch.tensor([1 / 12, 1 / 12, 1 / 12, 1 / 4])
    torch.testing.assert_close(row_weights((3, 1), "sample", 4, 10), expected)


def test_three_tokens_by_hand(tmp_path: Path) -> None:
    """Row [BOS, 5, EOS] with prompt [BOS]: BOS predicts 5, and 5 predicts EOS, after BOS."""
    model = make_model(run_config(tmp_path, {"kind": "full"})).double()
    micro = MicroBatch.pack([Sample("a", [1, 5, 2], 1)])
    share, losses = Objective(model)(micro.batch, micro.labels, row_weights((2,), "sample", 1, 2))
    plain = model_plain_logits(tmp_path, [1, 5])
    expected = [
        torch.logsumexp(plain[0], 0) - plain[0, 5],
        torch.logsumexp(plain[1], 0) - plain[1, 2],
    ]
    torch.testing.assert_close(losses.double(), torch.stack(expected), rtol=1e-5, atol=1e-5)
    assert share.item() == pytest.approx(float(sum(expected)) / 2, rel=1e-5)


def model_plain_logits(tmp_path: Path, tokens: list[int]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(run_config(tmp_path).model.name, dtype=torch.float64)
    with torch.no_grad():
        return plain(input_ids=torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_gradient_checkpointing_changes_no_gradient(tmp_path: Path, tuning: str) -> None:
    rows = samples(4)
    found = []
    for checkpointing in (False, True):
        config = run_config(tmp_path, {"kind": tuning})  # dropout is on: recomputation must repeat it
        config = config.model_copy(
            update={"model": config.model.model_copy(update={"gradient_checkpointing": checkpointing})}
        )
        model = make_model(config)
        Engine(config, model, total_steps=1)
        torch.manual_seed(0)
        found.append(accumulated(model, rows, 2, "sample"))
    assert found[0][0] == found[1][0]
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], gradient, rtol=0, atol=1e-7)
    assert any(gradient.abs().max() > 0 for gradient in found[0][1].values())
