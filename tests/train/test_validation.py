"""Rows held out, and the loss on them."""

import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_stage_train import config_of, run
from train_runs import Sample, Samples, make_loop, numbers, run_config, same, samples, weights

from pipeline.config import parse_config, signature
from pipeline.errors import StageError, UserError
from pipeline.model import DualBranch
from pipeline.run_folder import RunFolder
from pipeline.train import Interrupted, train
from pipeline.train.batches import MicroBatch
from pipeline.train.checkpoint import Checkpoints
from pipeline.train.loop import TrainingLoop
from pipeline.train.metrics import read_metrics
from pipeline.train.split import split
from pipeline.train.validation import Validation


def contents(rows: Any) -> list[tuple[int, ...]]:
    return sorted(tuple(row.input_ids) for row in rows)


def test_split_depends_on_content_alone() -> None:
    rows = samples(400)
    kept, held_out = split(rows, 0.2)
    assert contents([*kept, *held_out]) == contents(rows)
    assert 40 <= len(held_out) <= 120
    shuffled = Samples(random.Random(1).sample(rows, len(rows)) + samples(50, seed=2))
    assert set(contents(held_out)) <= set(contents(split(shuffled, 0.2)[1]))
    assert set(contents(held_out)) <= set(contents(split(rows, 0.5)[1]))  # a larger fraction holds out more, not others


def test_equal_prompts_are_on_one_side() -> None:
    rows = Samples(Sample(f"row-{i}", [1, i % 20 + 3, 7, i + 30, 2], prompt_length=3) for i in range(200))
    sides = [{row.input_ids[1] for row in side} for side in split(rows, 0.3)]
    assert all(sides) and not sides[0] & sides[1]


def test_rows_without_prompts_go_by_their_answers() -> None:
    rows = Samples(Sample(f"row-{i}", [1, i + 3, 2], prompt_length=1) for i in range(200))
    assert all(map(len, split(rows, 0.3)))


@pytest.mark.parametrize("fraction, message", [(1e-9, "none is held out"), (1 - 1e-9, "none is left to train on")])
def test_a_side_without_rows_is_refused(fraction: float, message: str) -> None:
    with pytest.raises(UserError, match=f"data.validation_fraction = .* of 9 rows: {message}"):
        split(samples(9), fraction)


def make_validated(config: Any, held_out: Samples) -> TrainingLoop:
    loop = make_loop(config, samples(9))
    loop.validation = Validation(loop.engine, held_out, loop.packing, config.training.batch_size)
    return loop


def plain_mean(model: DualBranch, rows: Samples, reduction: str) -> float:
    """One row at a time, in float64 from the logits on."""
    means, tokens = [], []
    for row in rows:
        micro = MicroBatch.pack([row])
        with torch.no_grad():
            logits = model.model.get_output_embeddings()(model(micro.batch)).double()
        losses = -logits.log_softmax(-1)[range(len(micro.labels)), micro.labels]
        means.append(losses.mean())
        tokens += losses.tolist()
    return float(torch.tensor(tokens).double().mean() if reduction == "token" else torch.stack(means).mean())


@pytest.mark.parametrize("reduction", ["token", "sample"])
@pytest.mark.parametrize(
    "options", [{"micro_batch_size": 1}, {"micro_batch_size": 4}, {"micro_batch_tokens": 30}], ids=str
)
def test_loss_is_the_mean_over_all_rows(tmp_path: Path, reduction: str, options: dict[str, Any]) -> None:
    config, rows = run_config(tmp_path, loss_reduction=reduction, **options), samples(9, seed=3)
    loop = make_validated(config, rows)
    loss = loop.validation.loss()
    loop.model.eval()
    assert loss == pytest.approx(plain_mean(loop.model, rows, reduction), rel=1e-6)


def test_validation_leaves_no_trace(tmp_path: Path) -> None:
    """With dropout: neither random states nor gradients nor the mode change."""
    straight = make_loop(run_config(tmp_path / "straight"), samples(9))
    straight.run()
    validated = make_validated(run_config(tmp_path / "validated"), samples(9, seed=3))
    validated.training = validated.training.model_copy(update={"validate_every": 1})
    validated.run()
    assert same(weights(validated), weights(straight))
    rows = read_metrics(validated.folder.metrics)
    assert [{k: v for k, v in row.items() if k != "validation_loss"} for row in numbers(rows)] == numbers(
        read_metrics(straight.folder.metrics)
    )
    assert len({row["validation_loss"] for row in rows}) == len(rows)


def test_stopped_during_validation_goes_on_exactly(tmp_path: Path) -> None:
    options = {"validate_every": 2}
    straight = make_validated(run_config(tmp_path / "straight").model_copy(), samples(9, seed=3))
    straight.training = straight.training.model_copy(update=options)
    straight.run()

    stopped = make_validated(run_config(tmp_path / "stopped"), samples(9, seed=3))
    stopped.training = stopped.training.model_copy(update=options)
    part = stopped.validation._part

    def signalled(micro: MicroBatch) -> float:
        if stopped.position.step == 4:
            stopped.validation._part = part  # type: ignore[method-assign]  # a second signal would end the process
            signal.raise_signal(signal.SIGTERM)
        return part(micro)

    stopped.validation._part = signalled  # type: ignore[method-assign]
    with pytest.raises(Interrupted, match="stopped after step 4"):
        stopped.run()
    assert [row["step"] for row in read_metrics(stopped.folder.metrics)] == [1, 2, 3]
    assert Checkpoints(stopped.folder.checkpoints, {}, 1).latest()[0].step == 4

    resumed = make_validated(run_config(tmp_path / "stopped"), samples(9, seed=3))
    resumed.training = resumed.training.model_copy(update=options)
    resumed.resume()
    resumed.run()
    assert same(weights(resumed), weights(straight))
    assert numbers(read_metrics(resumed.folder.metrics)) == numbers(read_metrics(straight.folder.metrics))


def test_not_finite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = make_validated(run_config(tmp_path, max_steps=1), samples(9, seed=3))
    monkeypatch.setattr(Validation, "_part", lambda *_: float("nan"))
    with pytest.raises(StageError, match="step 1: the validation loss is nan"):
        loop.run()


def test_run_reports_its_validation_loss(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    plain = config_of(tmp_path / "plain", max_steps=2)
    values = plain.model_dump(mode="json")
    values["data"]["validation_fraction"] = 0.4
    values["training"] |= {"validate_every": 1, "log_every": 5}
    config = parse_config(values, "test")
    assert signature(config) != signature(plain)
    folder, result = run(config)
    rows = read_metrics(folder.metrics)
    assert [row["step"] for row in rows] == [1, 2]  # a validated update is logged
    assert result["validation_loss"] == rows[-1]["validation_loss"] != rows[0]["validation_loss"]
    assert result["validation_samples"] + result["samples"] == 9
    assert f"{result['samples']} samples, {result['validation_samples']} held out" in capsys.readouterr().err
    assert train(config, RunFolder.of(config)) == result
    assert run(plain)[1]["validation_loss"] is None


def test_the_best_weights_are_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation losses 0.5, 0.25, 0.75, ...: those of step 2 are the model, though one checkpoint is kept."""
    losses, kept = iter([0.5, 0.25, 0.75, 1.0, 1.0, 1.0]), []
    monkeypatch.setattr(Validation, "loss", lambda *_, **__: next(losses))
    monkeypatch.setattr(Checkpoints, "remove_all", lambda self: kept.extend(self.folder.iterdir()))
    values = config_of(tmp_path / "runs", keep_checkpoints=1).model_dump(mode="json")
    values["data"]["validation_fraction"] = 0.4
    values["training"] |= {"validate_every": 1, "export": "best", "checkpoint_every": 4}
    folder, result = run(parse_config(values, "test"))
    assert (result["exported_step"], result["validation_loss"], result["steps"] > 2) == (2, 0.25, True)
    best = next(path for path in kept if path.name == "step-000002")
    saved = {
        name.removeprefix("model."): tensor
        for name, tensor in load_file(best / "weights.safetensors").items()
        if "theta" in name
    }
    exported = load_file(folder.model / "prompt_branch.safetensors")
    assert saved and all(torch.equal(exported[name], tensor) for name, tensor in saved.items())


def test_choosing_needs_validations(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'training.export = "best" needs validations'):
        config_of(tmp_path, export="best")


def test_validating_on_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"training\.validate_every needs rows to validate on"):
        config_of(tmp_path, validate_every=1)
