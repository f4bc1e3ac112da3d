"""Conversations whose every answer is trained: losses, gradients, and runs from a file to a model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import log_softmax
from train_runs import STORIES, Sample, Samples, make_loop, make_model, run_config, run_loop, share, weights

from pipeline.cli import main
from pipeline.errors import StageError
from pipeline.files import read_json
from pipeline.model import DualBranch
from pipeline.model.generation import prefill
from pipeline.train.batches import MicroBatch, answer_tokens
from pipeline.train.loss import Objective, row_weights
from pipeline.train.share import Packing

TALK = [11, 12, 13, 21, 22, 2, 14, 15, 23, 2, 16, 24, 25, 26, 2]
ROWS = Samples([
    Sample("talk", [1, *TALK], 4, segments=(2, 8), turns=(7, 9, 11, 12)),
    Sample("plain", [1, 31, 32, 41, 2], 3),
    Sample("brief", [1, 51, 2, 33, 34, 52, 53, 2], 1, turns=(3, 5)),
])  # fmt: skip
METHODS = ["causal", "bitune", "no_mixing", "shared_weights", "naive_bidirectional"]


def stirred(config: Any) -> DualBranch:
    """In float64, with adapters that do something."""
    model = make_model(config).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in model.trainable().values():
            tensor += 0.05 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    return model


def step_by_step(model: DualBranch, row: Sample) -> torch.Tensor:
    """The loss of each label: a prompt is read by all branches on top of the cache, then the answer token by token."""
    ids, bounds = row.input_ids, [row.prompt_length, *row.turns, len(row.input_ids)]
    cache, read, losses = None, 0, []
    with torch.no_grad():
        for start, end in zip(bounds[::2], bounds[1::2], strict=True):
            segments = [place - read for place in row.segments if read <= place < start]
            cache = prefill(model, [ids[read : start - 1]], [segments], cache)
            for place in range(start - 1, end - 1):
                output = model.model(torch.tensor([[ids[place]]]), cache=cache, use_cache=True)
                cache = output.cache
                losses.append(-log_softmax(output.logits[0, 0], dim=-1)[ids[place + 1]])
            read = end - 1
    return torch.stack(losses)


@pytest.fixture
def mixing_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.model.mixing._mix", lambda a, b, alpha: (1 - alpha.double()) * a + alpha.double() * b)


@pytest.mark.parametrize("reduction", ["token", "sample"])
@pytest.mark.parametrize("method", METHODS)
def test_the_loss_is_that_of_reading_step_by_step(
    method: str, reduction: str, tmp_path: Path, mixing_in_float64: None
) -> None:
    config = run_config(tmp_path)
    model = stirred(config.model_copy(update={"method": config.method.model_validate(method)}))
    expected = [step_by_step(model, row) for row in ROWS]
    mean = torch.cat(expected).mean() if reduction == "token" else torch.stack([p.mean() for p in expected]).mean()
    micro = MicroBatch.pack(ROWS)
    own = row_weights(micro.lengths, reduction, len(ROWS), answer_tokens(ROWS)).double()
    loss, losses = Objective(model)(micro.batch, micro.labels, own)
    torch.testing.assert_close(losses.double(), torch.cat(expected), atol=1e-6, rtol=1e-6)
    assert loss.item() == pytest.approx(mean.item(), rel=1e-6)


def gradients(model: DualBranch, size: int, reduction: str) -> dict[str, torch.Tensor]:
    model.zero_grad()
    for micro in share(ROWS, size).micro_batches:
        own = row_weights(micro.lengths, reduction, len(ROWS), answer_tokens(ROWS))
        Objective(model)(micro.batch, micro.labels, own)[0].backward()
    return {name: tensor.grad.clone() for name, tensor in model.trainable().items()}


@pytest.mark.parametrize("reduction", ["token", "sample"])
def test_packed_conversations_have_the_gradients_of_each_alone(reduction: str, tmp_path: Path) -> None:
    model = stirred(run_config(tmp_path))
    alone = gradients(model, 1, reduction)
    for name, gradient in gradients(model, 3, reduction).items():
        torch.testing.assert_close(gradient, alone[name], atol=1e-7, rtol=1e-5)


def test_rows_are_split_at_every_turn() -> None:
    micro = MicroBatch.pack(ROWS)
    prompts, answers = micro.batch.tokens.split([micro.batch.prompt_tokens, micro.batch.answer_rows])
    assert [part.tolist() for part in prompts.split(list(micro.batch.prompt_lengths))] == [
        [1, 11, 12], [2, 14], [2], [1, 31], [], [2, 33]
    ]  # fmt: skip
    assert [part.tolist() for part in answers.split(list(micro.batch.answer_lengths))] == [
        [13, 21, 22], [15, 23], [16, 24, 25, 26], [32, 41], [1, 51], [34, 52, 53]
    ]  # fmt: skip
    assert micro.labels.tolist() == [21, 22, 2, 23, 2, 24, 25, 26, 2, 41, 2, 51, 2, 52, 53, 2]
    assert (micro.lengths, answer_tokens(ROWS), micro.tokens) == ((9, 2, 5), 16, 29)
    assert micro.batch.samples == (0, 0, 0, 1, 2, 2)
    assert micro.batch.segments == ((2,), (2,), (), (), (), ())
    assert Packing(1, None, branches=2).cost(ROWS[0]) == 2 * 7 + 9


@pytest.mark.parametrize("turns", [(7, 7), (3, 9), (7, 16), (9, 8)])
def test_turns_out_of_order_are_named(turns: tuple[int, ...]) -> None:
    with pytest.raises(StageError, match=r"sample talk: .* turns .* must rise"):
        MicroBatch.pack([Sample("talk", [1, *TALK], 4, turns=turns)])


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Dropout included."""
    rows = Samples([*ROWS, *ROWS])
    straight = run_loop(run_config(tmp_path / "straight"), rows)
    stopped = run_config(tmp_path / "stopped")
    first = make_loop(stopped, rows)
    first.total_steps = 3
    first.run()
    resumed = run_loop(stopped, rows)
    assert "resumed after step 3 of 6" in capsys.readouterr().err
    assert straight.position.step == resumed.position.step == 6
    for name, tensor in weights(straight).items():
        assert torch.equal(tensor, weights(resumed)[name])


@pytest.mark.slow
@pytest.mark.parametrize(("method", "kind"), [("bitune", "lora"), ("bitune", "full"), ("causal", "lora")])
def test_a_file_of_conversations_is_trained_by_the_command(method: str, kind: str, tmp_path: Path) -> None:
    said = [("user", "Who barks?"), ("assistant", "A dog."), ("user", "And moos?"), ("assistant", "A cow.")]
    rows = [{"messages": [{"role": role, "content": text} for role, text in said[:end]]} for end in (4, 2)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {
        "model": {"name": str(STORIES), "precision": "fp32"}, "method": method, "tuning": {"kind": kind},
        "data": {"sources": [{"path": str(tmp_path / "rows.jsonl")}], "turns": "all"},
        "training": {"batch_size": 2, "micro_batch_size": 2, "epochs": 60, "learning_rate": 0.01, "trackers": []},
        "paths": {"runs": str(tmp_path / "runs"), "cache": str(tmp_path / "cache")},
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(json.dumps(values))
    assert main(["train", str(tmp_path / "run.yaml")]) == 0
    (result,) = [read_json(path) for path in (tmp_path / "runs").glob("*/train/result.json")]
    assert (result["samples"], result["steps"]) == (2, 60)
    assert result["final_loss"] < 2  # from 6.5
