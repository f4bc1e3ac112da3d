"""Tiny random models of every supported family, and small helpers that the model tests share."""

from collections.abc import Iterable

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from pipeline.model import Batch, DualBranch
from pipeline.model.building import assemble
from pipeline.model.config import MethodConfig, ModelConfig, TuningConfig

FAMILIES = ("llama", "gemma", "phi", "qwen2", "qwen3", "mistral")
VOCABULARY = 61


def tiny_base(family: str = "llama", seed: int = 0, **overrides: object) -> PreTrainedModel:
    values = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    config = AutoConfig.for_model(family, **(values | overrides))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():  # norms and biases start at 1 and 0: give them something to do
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def tiny_model(
    method: str | dict = "bitune", tuning: str = "lora", family: str = "llama", seed: int = 0, **model_options: object
) -> DualBranch:
    """A branched model whose adapters and mixing parameters are already away from their initial values."""
    config = ModelConfig(name=family, precision="fp32", **model_options)
    base = tiny_base(family, seed)
    settings = TuningConfig(kind=tuning, rank=4, alpha=8)
    model = assemble(base, config, MethodConfig.model_validate(method), settings, seed)
    shake(model, seed)
    return model


def shake(model: DualBranch, seed: int = 0, size: float = 0.05) -> None:
    """Move every trainable parameter by a random amount."""
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.trainable().values():
            parameter += size * torch.randn(parameter.shape, generator=generator)


def set_theta(model: DualBranch, value: float) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".theta_" in name:
                parameter.fill_(value)


def tokens(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()


def samples(lengths: Iterable[tuple[int, int]], seed: int = 0) -> tuple[list[list[int]], list[list[int]]]:
    """(prompts, answers) of the given (prompt, answer) lengths."""
    pairs = list(lengths)
    prompts = [tokens(p, 100 * seed + 2 * i) for i, (p, _) in enumerate(pairs)]
    answers = [tokens(a, 100 * seed + 2 * i + 1) for i, (_, a) in enumerate(pairs)]
    return prompts, answers


def answer_logits(model: DualBranch, prompts: list[list[int]], answers: list[list[int]]) -> list[Tensor]:
    """Logits of each answer."""
    hidden = model(Batch.pack(prompts, answers))
    return list(model.logits(hidden).split([len(answer) for answer in answers]))


def assert_sums_of(together: dict[str, Tensor], alone: list[dict[str, Tensor]]) -> None:
    """Gradients in float64 against sums of them. Mixing ratios are computed in float32, and so are their gradients."""
    for name, gradient in together.items():
        tolerance = {"atol": 1e-5, "rtol": 1e-4} if ".theta_" in name else {"atol": 1e-10, "rtol": 1e-10}
        torch.testing.assert_close(gradient, sum(one[name] for one in alone), **tolerance)
