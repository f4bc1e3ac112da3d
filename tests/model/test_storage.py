"""A saved model equals the one in memory, and a folder that doesn't fit is refused."""

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tiny import FAMILIES, answer_logits, samples, shake, tiny_base
from transformers import AutoModelForCausalLM

from pipeline.errors import StageError, UserError
from pipeline.export import export_model
from pipeline.model import DualBranch, build_model, check_length, sharding
from pipeline.model.building import load_base
from pipeline.model.config import PRESETS, MethodConfig, ModelConfig, TuningConfig

SAMPLES = samples([(7, 3), (2, 5)])


@pytest.fixture
def base(tmp_path: Path) -> ModelConfig:
    tiny_base().save_pretrained(tmp_path / "base")
    return ModelConfig(name=str(tmp_path / "base"), precision="fp32")


def trained(base: ModelConfig, method: str, tuning: str) -> DualBranch:
    settings = TuningConfig(kind=tuning, rank=4, alpha=8)
    model = build_model(base, MethodConfig.model_validate(method), settings, seed=3)
    shake(model)
    return model.eval()


@pytest.mark.parametrize("method", PRESETS)
@pytest.mark.parametrize("tuning", ["full", "lora", "dora", "ia3", "vera"])
def test_reload_equals_memory(method: str, tuning: str, base: ModelConfig, tmp_path: Path) -> None:
    model = trained(base, method, tuning)
    model.save_pretrained(tmp_path / "saved", template_hash="abc")
    loaded = DualBranch.from_pretrained(tmp_path / "saved")
    assert loaded.method == model.method
    assert loaded.tuning == model.tuning
    assert loaded.facts == {"template_hash": "abc"}
    assert loaded.trainable().keys() == model.trainable().keys()
    for ours, theirs in zip(answer_logits(loaded, *SAMPLES), answer_logits(model, *SAMPLES), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("method", ["causal", "bitune", "no_mixing", "shared_weights"])
@pytest.mark.parametrize("tuning", ["lora", "dora", "ia3", "vera"])
def test_merged_adapters_are_two_full_branches(method: str, tuning: str, base: ModelConfig, tmp_path: Path) -> None:
    model = trained(base, method, tuning)
    model.save_pretrained(tmp_path / "saved", template_hash="abc")
    export_model(tmp_path / "saved", tmp_path / "merged", "fp32", "5GB", merge=True)
    whole = DualBranch.from_pretrained(tmp_path / "merged")
    assert whole.tuning.kind == "full"
    assert whole.facts["template_hash"] == "abc" and whole.facts["merged_from"]["kind"] == tuning
    for ours, theirs in zip(answer_logits(whole, *SAMPLES), answer_logits(model, *SAMPLES), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    prompts = SAMPLES[0]
    assert whole.generate(prompts, 6) == model.generate(prompts, 6)
    if method == "causal":
        stock = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
        expected = stock(torch.tensor([prompts[0] + SAMPLES[1][0]])).logits[0, len(prompts[0]) :]
        torch.testing.assert_close(answer_logits(model, *SAMPLES)[0], expected, atol=1e-5, rtol=1e-5)


def test_a_bf16_model_is_merged_in_float32(base: ModelConfig, tmp_path: Path) -> None:
    model = trained(base.model_copy(update={"precision": "bf16"}), "bitune", "lora")
    model.save_pretrained(tmp_path / "saved")
    export_model(tmp_path / "saved", tmp_path / "merged", "fp32", "5GB", merge=True)
    exact = DualBranch.from_pretrained(tmp_path / "saved", precision="fp32")
    whole = DualBranch.from_pretrained(tmp_path / "merged")
    for ours, theirs in zip(answer_logits(whole, *SAMPLES), answer_logits(exact, *SAMPLES), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_a_full_model_has_nothing_to_merge(base: ModelConfig, tmp_path: Path) -> None:
    trained(base, "bitune", "full").save_pretrained(tmp_path / "saved")
    with pytest.raises(UserError, match="trained with tuning full: it has no adapters to merge"):
        export_model(tmp_path / "saved", tmp_path / "merged", "fp32", "5GB", merge=True)
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_plain_causal_models_load_with_stock_libraries(family: str, tuning: str, tmp_path: Path) -> None:
    tiny_base(family).save_pretrained(tmp_path / "base")
    model = trained(ModelConfig(name=str(tmp_path / "base"), precision="fp32"), "causal", tuning)
    model.save_pretrained(tmp_path / "saved")
    if tuning == "full":
        stock = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    else:
        stock = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "saved")
    prompt, answer = SAMPLES[0][0], SAMPLES[1][0]
    expected = stock.eval()(torch.tensor([prompt + answer])).logits[0, len(prompt) :]
    torch.testing.assert_close(answer_logits(model, [prompt], [answer])[0], expected, atol=1e-5, rtol=1e-5)


def test_the_causal_stream_of_a_full_bitune_model_loads_with_stock_transformers(
    base: ModelConfig, tmp_path: Path
) -> None:
    model = trained(base, "bitune", "full")
    model.save_pretrained(tmp_path / "saved")
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    causal = model.model.model.layers[1].causal.self_attn.q_proj.weight
    assert torch.equal(stock.model.layers[1].self_attn.q_proj.weight, causal)


def test_tied_heads_stay_tied(tmp_path: Path) -> None:
    tiny_base(tie_word_embeddings=True).save_pretrained(tmp_path / "base")
    model = trained(ModelConfig(name=str(tmp_path / "base"), precision="fp32"), "bitune", "full")
    model.save_pretrained(tmp_path / "saved")
    assert "lm_head.weight" not in load_file(tmp_path / "saved" / "model.safetensors")
    loaded = DualBranch.from_pretrained(tmp_path / "saved")
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert torch.equal(answer_logits(loaded, *SAMPLES)[0], answer_logits(model, *SAMPLES)[0])


def test_the_same_seed_gives_the_same_adapters(base: ModelConfig) -> None:
    def weights(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed + 17)  # the state of the global generator must not matter
        return build_model(base, MethodConfig.model_validate("bitune"), TuningConfig(), seed).trainable()

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_bf16_holds_frozen_weights_in_bf16_and_trained_ones_in_float32(base: ModelConfig) -> None:
    half = base.model_copy(update={"precision": "bf16"})
    model = build_model(half, MethodConfig.model_validate("bitune"), TuningConfig(), seed=0)
    assert {parameter.dtype for parameter in model.trainable().values()} == {torch.float32}
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.bfloat16}


@pytest.mark.parametrize("damage", ["no card", "no adapter", "lost weight", "extra weight", "other base", "no branch"])
def test_folders_that_do_not_fit_are_refused(damage: str, base: ModelConfig, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    trained(base, "bitune", "lora").save_pretrained(folder)
    adapter = folder / "adapter_model.safetensors"
    weights = load_file(adapter)
    match damage:
        case "no card":
            (folder / "dualtune.json").write_text('{"format": 1, "meth')
        case "no adapter":
            adapter.unlink()
        case "lost weight":
            weights.popitem()
            save_file(weights, adapter)
        case "extra weight":
            save_file(weights | {"base_model.model.model.layers.9.x.lora_A.weight": torch.ones(2)}, adapter)
        case "other base":
            tiny_base(hidden_size=16).save_pretrained(base.name)
        case "no branch":
            (folder / "prompt_branch.safetensors").unlink()
    with pytest.raises(UserError, match="saved"):
        DualBranch.from_pretrained(folder)


def test_a_moved_base_is_found_by_its_new_place(base: ModelConfig, tmp_path: Path) -> None:
    model = trained(base, "bitune", "lora")
    model.save_pretrained(tmp_path / "saved")
    Path(base.name).rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="no such folder"):
        DualBranch.from_pretrained(tmp_path / "saved")
    loaded = DualBranch.from_pretrained(tmp_path / "saved", base=str(tmp_path / "elsewhere"))
    assert torch.equal(answer_logits(loaded, *SAMPLES)[0], answer_logits(model, *SAMPLES)[0])


def test_weights_that_are_not_finite_are_not_saved(base: ModelConfig, tmp_path: Path) -> None:
    model = trained(base, "causal", "lora")
    next(iter(model.trainable().values())).data[0, 0] = float("nan")
    with pytest.raises(StageError, match="not finite"):
        model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved" / "dualtune.json").exists()


def test_unknown_models_are_named(tmp_path: Path) -> None:
    causal = MethodConfig.model_validate("causal")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"nothing': no such folder; .* has empty"):
        build_model(ModelConfig(name=str(tmp_path / "nothing")), causal, TuningConfig(), 0)
    with pytest.raises(UserError, match=r"empty.*no usable model"):
        build_model(ModelConfig(name=str(tmp_path / "empty")), causal, TuningConfig(), 0)
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(UserError, match=r"family 'gpt2': supported are gemma, llama"):
        build_model(ModelConfig(name=str(tmp_path / "gpt2")), causal, TuningConfig(), 0)


def test_unknown_target_modules_are_named(base: ModelConfig) -> None:
    with pytest.raises(UserError, match=r"query_key_value.*it has down_proj"):
        build_model(base, MethodConfig.model_validate("causal"), TuningConfig(target_modules=("query_key_value",)), 0)


def test_rows_longer_than_the_model_reads_are_refused(base: ModelConfig) -> None:
    check_length(base, 128)
    with pytest.raises(
        UserError, match=r"longest row has 129 tokens, but .* reads 128 at most: set data.max_tokens=128"
    ):
        check_length(base, 129)


@pytest.mark.parametrize("damage", ["lost weight", "more layers", "wider", "truncated"])
def test_base_weights_that_do_not_fit_their_config_are_refused(damage: str, base: ModelConfig) -> None:
    """transformers would fill them with random numbers and go on."""
    folder = Path(base.name)
    config = json.loads((folder / "config.json").read_text())
    match damage:
        case "lost weight":
            weights = load_file(folder / "model.safetensors")
            del weights["model.layers.1.mlp.up_proj.weight"]
            save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        case "more layers":
            (folder / "config.json").write_text(
                json.dumps({k: v for k, v in config.items() if k != "layer_types"} | {"num_hidden_layers": 4})
            )
        case "wider":
            (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
        case "truncated":
            (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:999])
    with pytest.raises(UserError, match=r"weights are missing or of another shape|no usable model"):
        build_model(base, MethodConfig.model_validate("causal"), TuningConfig(), 0)


@pytest.mark.parametrize("content", [b"", b"null", b"[1]", b"{", b"\xff\xfe", b"{}", None])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json"])
@pytest.mark.parametrize("is_sharded", [False, True])
def test_damaged_file_of_a_base_is_one_sentence(
    name: str, content: bytes | None, is_sharded: bool, base: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`is_sharded`: under ZeRO-3 the files are looked at before anything is built."""
    monkeypatch.setattr(sharding, "is_active", lambda: is_sharded)
    file = Path(base.name) / name
    (Path(base.name) / "model.safetensors").rename(Path(base.name) / "model-1.safetensors")
    file.unlink(missing_ok=True)
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_base(base, TuningConfig())
    assert str(caught.value).startswith(f"model.name = {base.name!r}: ") and "\n" not in str(caught.value)
