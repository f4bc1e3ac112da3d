"""Building a model: pretrained base, branches, adapters."""

from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from pipeline.errors import UserError
from pipeline.model import attention, sharding
from pipeline.model.adapters import add_adapters
from pipeline.model.branches import BranchedLayer, add_branches, own_copy
from pipeline.model.config import MethodConfig, ModelConfig, TuningConfig, refuse_missing_folder
from pipeline.model.dual_branch import DualBranch
from pipeline.model.head import LossHead
from pipeline.model.linears import BranchedLinear

FAMILIES = ("gemma", "llama", "mistral", "phi", "qwen2", "qwen3")
"""`model_type` of the families that the tests cover."""

UNREADABLE = (OSError, ValueError, RuntimeError, SafetensorError, TypeError, AttributeError, LookupError)
"""How libraries fail on damaged files; on JSON that holds a list or null in place of an object, as if by a bug."""


def build_model(model: ModelConfig, method: MethodConfig, tuning: TuningConfig, seed: int) -> DualBranch:
    """The pretrained base with fresh branches and adapters. The same seed gives the same weights.

    Raises:
        UserError: the model is not found, not readable, or of a family that is not supported.
    """
    return assemble(load_base(model, tuning), model, method, tuning, seed)


def assemble(
    base: PreTrainedModel, model: ModelConfig, method: MethodConfig, tuning: TuningConfig, seed: int
) -> DualBranch:
    """Add branches and adapters to a loaded base, in place."""
    attention.register()
    base.set_attn_implementation(attention.NAME)
    has_adapters = tuning.kind not in ("none", "full")
    add_branches(decoder_layers(base), method, tuning)
    if method.embeddings == "separate" and tuning.kind == "full":
        base.base_model.add_module("prompt", nn.ModuleDict({"embed_tokens": own_copy(base.get_input_embeddings())}))
    adapters = None
    if has_adapters:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            adapters = add_adapters(base, tuning, seed)
    dual = DualBranch(base, model, method, tuning, adapters)
    _set_trainable(dual)
    if model.gradient_checkpointing:
        _checkpoint_activations(dual)
    if sharding.is_active():
        _prepare_sharding(dual)
    return dual


def _prepare_sharding(dual: DualBranch) -> None:
    """Modules that read the weights of modules inside them, or are called differently often on each rank."""
    head = dual.model.get_output_embeddings()
    assert type(head) is nn.Linear
    head.__class__ = LossHead
    if sharding.make_leaves(dual, (BranchedLinear, BaseTunerLayer)):
        # DeepSpeed collects a leaf's gradients when that of its input is made: there must be one in the first layer.
        dual.model.enable_input_require_grads()


def decoder_layers(base: PreTrainedModel) -> nn.ModuleList:
    layers = base.base_model.layers
    assert isinstance(layers, nn.ModuleList)
    return layers


def _set_trainable(dual: DualBranch) -> None:
    kind = dual.tuning.kind
    if kind in ("none", "full"):
        dual.requires_grad_(kind == "full")
    # PEFT turns off gradients of everything that isn't an adapter: the mixing parameters too.
    for layer in dual.modules():
        if isinstance(layer, BranchedLayer) and layer.mixing is not None:
            layer.mixing.requires_grad_(kind != "none")


def _checkpoint_activations(dual: DualBranch) -> None:
    """Recompute layers in the backward pass: whole branched layers, not the layers inside them once more."""
    dual.model.activation_checkpointing_enable({"use_reentrant": False})
    for layer in dual.modules():
        if isinstance(layer, BranchedLayer):
            for inner in layer.children():
                if isinstance(inner, GradientCheckpointingLayer):
                    inner.gradient_checkpointing = False


def load_base(model: ModelConfig, tuning: TuningConfig) -> PreTrainedModel:
    """The pretrained model: float32 if all weights are trained, else in the configured precision."""
    config = check_family(model)
    dtype = torch.bfloat16 if model.precision == "bf16" and tuning.kind != "full" else torch.float32
    if sharding.is_active():
        try:
            return sharding.load_sharded(config, model, dtype)
        except UNREADABLE as error:
            raise not_found(model, error) from error
    base, found = _read(
        AutoModelForCausalLM, model, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
    )
    # transformers fills what it does not find with random numbers and goes on.
    odd = sorted({*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])})
    if odd:
        raise UserError(
            f"model.name = {model.name!r}: {len(odd)} weights are missing or of another shape than config.json says, "
            f"the first is {odd[0]}"
        )
    assert isinstance(base, PreTrainedModel)
    return base


def load_tokenizer(model: ModelConfig) -> PreTrainedTokenizerBase:
    """The tokenizer that belongs to the base model."""
    tokenizer = _read(AutoTokenizer, model)
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


def _read(kind: Any, model: ModelConfig, **options: Any) -> Any:
    """`kind.from_pretrained` of the model, with one sentence for the many ways in which it fails."""
    refuse_missing_folder(model)
    options |= {"revision": model.revision, "trust_remote_code": model.trust_remote_code}
    try:
        return kind.from_pretrained(model.name, **options)
    except UNREADABLE as error:
        raise not_found(model, error) from error


def check_family(model: ModelConfig) -> PreTrainedConfig:
    """Refuse an unknown model before anything large is read; its configuration otherwise.

    Raises:
        UserError: no such model, or not one of `FAMILIES`.
    """
    config: PreTrainedConfig = _read(AutoConfig, model)
    if config.model_type not in FAMILIES:
        raise UserError(
            f"model.name = {model.name!r} is of the family {config.model_type!r}: supported are {', '.join(FAMILIES)}"
        )
    return config


def check_length(model: ModelConfig, tokens: int) -> None:
    """Refuse rows that the model has no positions for.

    Raises:
        UserError: `tokens`, the length of the longest row, is more than the model's positions or sliding window.
    """
    limit = longest_input(check_family(model))
    if tokens > limit:
        raise UserError(
            f"the longest row has {tokens} tokens, but {model.name} reads {limit} at most: set data.max_tokens={limit}"
        )


def longest_input(config: PreTrainedConfig) -> int:
    """How many tokens a model reads at most: its positions, or its sliding window."""
    limits = (config.max_position_embeddings, getattr(config, "sliding_window", None))
    return min(limit for limit in limits if limit)


def not_found(model: ModelConfig, error: Exception) -> UserError:
    """What the user is told when loading fails."""
    if Path(model.name).is_dir():
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        return UserError(f"model.name = {model.name!r}: the folder holds no usable model ({reason})")
    return UserError(
        f"model.name = {model.name!r}: no such folder, and no such model on the hub or in its cache "
        "(is the hub reachable from here, or the model gated?)"
    )
