"""Layers on several devices: what can be seen without GPUs."""

from pathlib import Path

import pytest
import torch
from accelerate import dispatch_model
from evaluate_inputs import run_config, trained_like

from pipeline.errors import StageError, UserError
from pipeline.evaluate import evaluate
from pipeline.evaluate.spreading import device_map
from pipeline.model import Batch
from pipeline.run_folder import RunFolder

BATCH = Batch.pack([[1, 2, 3, 4, 5], [7, 8, 9]], [[6, 7, 8], [10, 11], [3]], owners=[0, 1, 1])
LABELS = torch.tensor([7, 8, 9, 11, 12, 4])


@pytest.mark.parametrize("method", ["causal", "bitune"])
def test_layers_stay_whole_and_all_weights_have_a_place(method: str) -> None:
    model = trained_like(method)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.model.parameters())
    found = device_map(model, {0: int(0.7 * size), 1: size})
    assert set(found.values()) == {0, 1}
    for name, _ in model.model.named_parameters():
        assert sum(name.startswith(f"{place}.") for place in found) == 1
    assert not any(place.count(".") > 2 for place in found)
    with pytest.raises(StageError, match="does not fit the 2 GPUs"):
        device_map(model, {0: size // 3, 1: size // 3})


@pytest.mark.parametrize("method", ["causal", "bitune", "no_mixing"])
def test_moving_hooks_leave_scores_and_answers_as_they_are(method: str) -> None:
    model = trained_like(method)
    expected, answers = model.score(BATCH, LABELS)[0], model.generate([[1, 2, 3, 4], [5, 6]], 5)
    dispatch_model(model.model, dict.fromkeys(device_map(model, {0: 10**9}), "cpu"), "cpu", force_hooks=True)
    assert torch.equal(model.score(BATCH, LABELS)[0], expected)
    assert model.generate([[1, 2, 3, 4], [5, 6]], 5) == answers


def test_a_layout_moves_as_a_whole_and_once() -> None:
    layout = trained_like("bitune").lay_out(BATCH)
    mask = layout.answer_mask()
    moved = layout.to("meta")
    assert layout.to("meta") is moved and layout.to("cpu") is layout
    tensors = [moved.input_ids, moved.position_ids, moved.owners, moved.answer_mask(), moved.prompts.valid]
    assert all(tensor is not None and tensor.device.type == "meta" for tensor in tensors)
    assert moved.answer_mask().shape == mask.shape
    assert (moved.causal_rows, moved.branch_rows) == (layout.causal_rows, layout.branch_rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_spreading_over_no_gpu_is_refused(tmp_path: Path) -> None:
    config = run_config(tmp_path, ["piqa_full"], evaluation={"spread": True})
    with pytest.raises(UserError, match=r"evaluation\.spread: there is no GPU"):
        evaluate(config, RunFolder.of(config))
