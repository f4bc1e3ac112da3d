"""Input embeddings of the prompt branch, shared with the causal stream or separate."""

from pathlib import Path

import pytest
import torch
from tiny import answer_logits, samples, shake, tiny_base, tiny_model

from pipeline.config import RunConfig, signature
from pipeline.model import Batch, DualBranch, build_model
from pipeline.model.building import assemble
from pipeline.model.config import PRESETS, MethodConfig, ModelConfig, TuningConfig

OWN = "model.model.prompt.embed_tokens.weight"
SAMPLES = samples([(7, 3), (0, 2), (2, 5)])


def separate(name: str) -> dict:
    return {"name": name, "embeddings": "separate"}


@pytest.mark.parametrize("family", ["llama", "gemma"])
@pytest.mark.parametrize("method", ["bitune", "no_mixing"])
def test_a_fresh_copy_changes_nothing(method: str, family: str) -> None:
    settings = (ModelConfig(name="x", precision="fp32"), TuningConfig(kind="full"))
    models = [
        assemble(tiny_base(family), settings[0], MethodConfig.model_validate(kind), settings[1], 0)
        for kind in (method, separate(method))
    ]
    for shared, own in zip(*(answer_logits(model, *SAMPLES) for model in models), strict=True):
        assert torch.equal(shared, own)


def test_each_stream_has_its_own() -> None:
    """The branch's table gets the gradient of the prompts' tokens, and only the branch reads it."""
    model = tiny_model(separate("bitune"), "full")
    prompts, answers = [[5, 6, 7]], [[8, 9]]
    model.losses(Batch.pack(prompts, answers), torch.tensor([10, 11])).sum().backward()
    gradient = model.trainable()[OWN].grad
    assert gradient.abs().sum(dim=1).nonzero().flatten().tolist() == [5, 6, 7]
    with torch.no_grad():
        before = answer_logits(model, prompts, answers)[0]
        model.trainable()[OWN][8:] += 1.0  # the answer's tokens
        assert torch.equal(answer_logits(model, prompts, answers)[0], before)
        model.trainable()[OWN][5] += 1.0
        assert not torch.allclose(answer_logits(model, prompts, answers)[0], before)


def test_saved_and_loaded(tmp_path: Path) -> None:
    tiny_base().save_pretrained(tmp_path / "base")
    base = ModelConfig(name=str(tmp_path / "base"), precision="fp32")
    model = build_model(base, MethodConfig.model_validate(separate("bitune")), TuningConfig(kind="full"), 0).eval()
    shake(model)
    model.save_pretrained(tmp_path / "saved")
    loaded = DualBranch.from_pretrained(tmp_path / "saved")
    for ours, theirs in zip(answer_logits(loaded, *SAMPLES), answer_logits(model, *SAMPLES), strict=True):
        assert torch.equal(ours, theirs)
    assert loaded.generate(SAMPLES[0][::2], 5) == model.generate(SAMPLES[0][::2], 5)


def run(method: object, kind: str) -> RunConfig:
    return RunConfig.model_validate(
        {"model": {"name": "m"}, "method": method, "tuning": {"kind": kind}, "data": {"sources": [{"path": "x.jsonl"}]}}
    )


def test_where_it_can_be() -> None:
    with pytest.raises(ValueError, match="full: lora trains none"):
        run(separate("bitune"), "lora")
    for method in PRESETS:
        if all(branch.get("weights") != "own" for branch in PRESETS[method]):
            with pytest.raises(ValueError, match="separate is for a branch with weights: own"):
                run(separate(method), "full")
    assert signature(run("bitune", "full")) == signature(run({"name": "bitune", "embeddings": "shared"}, "full"))
    assert signature(run("bitune", "full")) != signature(run(separate("bitune"), "full"))
