"""PEFT adapters, injected into both branches at once: nothing is ever switched or frozen along the way."""

from typing import Any

import peft
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

from pipeline.errors import UserError
from pipeline.model.config import TuningConfig


def add_adapters(model: PreTrainedModel, tuning: TuningConfig, seed: int) -> PeftModel:
    """Inject adapters into every target module of the (branched) model, in place.

    Returns:
        PEFT's wrapper around the same model, which saves the adapters in PEFT form.
    """
    names = target_names(model, tuning.target_modules)
    # float32 adapters on a bfloat16 base: updates of size 1e-4 would vanish in bfloat16's 8 bits.
    return peft.get_peft_model(model, _peft_config(tuning, names, seed), autocast_adapter_dtype=True)


def target_names(model: nn.Module, leaves: tuple[str, ...]) -> list[str]:
    """Full names of the linear modules of all decoder layers, or of those with the given leaf names.

    Raises:
        UserError: a leaf name that no linear module has.
    """
    linear = [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear) and ".layers." in f".{name}"
    ]
    known = {_leaf(name) for name in linear}
    unknown = sorted(set(leaves) - known)
    if unknown:
        raise UserError(
            f"tuning.target_modules = {', '.join(unknown)}: the model has no such linear modules; "
            f"it has {', '.join(sorted(known))}"
        )
    return [name for name in linear if not leaves or _leaf(name) in leaves]


def _leaf(name: str) -> str:
    """`q_proj`, also of the two parts of a `BranchedLinear`."""
    return name.removesuffix(".causal").removesuffix(".prompt").rpartition(".")[2]


def _peft_config(tuning: TuningConfig, names: list[str], seed: int) -> peft.PeftConfig:
    common: dict[str, Any] = {"target_modules": names, "task_type": "CAUSAL_LM"}
    match tuning.kind:
        case "lora" | "dora":
            return peft.LoraConfig(
                r=tuning.rank,
                lora_alpha=tuning.alpha,  # type: ignore[arg-type]  # PEFT divides it by the rank: a float is fine
                lora_dropout=tuning.dropout,
                use_dora=tuning.kind == "dora",
                **common,
            )
        case "ia3":
            # Bitune, appendix A.2: the feed-forward modules are all linear layers of the MLP.
            return peft.IA3Config(feedforward_modules=[name for name in names if ".mlp." in name], **common)
        case "vera":
            return peft.VeraConfig(
                r=tuning.rank, vera_dropout=tuning.dropout, projection_prng_key=seed, save_projection=True, **common
            )
    raise ValueError(f"tuning kind {tuning.kind} has no adapters")
