"""`dualtune export`: what is written is what was trained."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from pipeline.errors import UserError
from pipeline.export import export_model
from pipeline.model import Batch, DualBranch, build_model
from pipeline.model.config import MethodConfig, ModelConfig, TuningConfig

STORIES = Path(__file__).parents[1] / "fixtures" / "stories260K"


@pytest.fixture(params=["full", "lora"])
def trained(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    config = ModelConfig(name=str(STORIES), precision="fp32")
    tuning = TuningConfig(kind=request.param)
    model = build_model(config, MethodConfig.model_validate("bitune"), tuning, seed=1)
    with torch.no_grad():
        for tensor in model.trainable().values():
            tensor += 0.01 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0))
    model.save_pretrained(tmp_path / "model", template_hash="abc")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    return tmp_path / "model"


def hidden(folder: Path) -> torch.Tensor:
    model, batch = DualBranch.from_pretrained(folder), Batch.pack([[1, 40, 50], []], [[60, 70], [1, 80, 90]])
    with torch.no_grad():
        return model.float()(batch)


def test_the_same_model_in_small_files(trained: Path, tmp_path: Path) -> None:
    export_model(trained, tmp_path / "new", "fp32", "300KB")
    assert torch.equal(hidden(tmp_path / "new"), hidden(trained))
    assert (tmp_path / "new" / "tokenizer.json").is_file()
    assert DualBranch.from_pretrained(tmp_path / "new").facts == {"template_hash": "abc"}
    if (trained / "model.safetensors").is_file():
        assert len(list((tmp_path / "new").glob("model-*.safetensors"))) == 4


def test_bf16_halves_the_weights_but_not_the_mixing(trained: Path, tmp_path: Path) -> None:
    export_model(trained, tmp_path / "new", "bf16", "5GB")
    assert torch.allclose(hidden(tmp_path / "new"), hidden(trained), atol=0.1)
    dtypes: dict[str, set[torch.dtype]] = {"mixing": set(), "weights": set()}
    for file in (tmp_path / "new").glob("*.safetensors"):
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118
                dtypes["mixing" if ".mixing." in name else "weights"].add(content.get_tensor(name).dtype)
    assert dtypes == {"mixing": {torch.float32}, "weights": {torch.bfloat16}}
    if (tmp_path / "new" / "config.json").is_file():
        assert AutoModelForCausalLM.from_pretrained(tmp_path / "new").dtype == torch.bfloat16
        assert "lm_head.weight" not in (tmp_path / "new" / "model.safetensors").read_bytes()[:9000].decode("latin1")


@pytest.mark.parametrize(
    "precision, shard_size, target, words",
    [
        ("fp16", "5GB", "new", "must be one of fp32, bf16"),
        ("fp32", "five", "new", "as in 5GB"),
        ("fp32", "5GB", "model", "is there already"),
    ],
)
def test_wrong_options(trained: Path, precision: str, shard_size: str, target: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        export_model(trained, trained.parent / target, precision, shard_size)
