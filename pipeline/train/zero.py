"""DeepSpeed's own configuration, made of ours."""

import os
from typing import Any

import torch
from pydantic import ValidationError

from pipeline.errors import UserError, one_line
from pipeline.model import DualBranch
from pipeline.model.building import decoder_layers
from pipeline.train.config import TrainingConfig
from pipeline.versions import installed

LARGEST_BUCKET = 2**27
"""Elements; half a GiB of float32."""
NEVER = 2**31 - 1


def deepspeed_json(training: TrainingConfig, nvme: dict[str, Any] | None = None) -> dict[str, Any]:
    """What DeepSpeed is told before the model is built.

    Args:
        nvme: further keys, of `pipeline.train.nvme`.

    Raises:
        UserError: DeepSpeed is not installed, or refuses a key of `training.zero.deepspeed`.
    """
    zero = training.zero
    if not installed("deepspeed"):
        raise UserError(f"training.zero.stage = {zero.stage} needs DeepSpeed: pip install -e '.[deepspeed]'")
    sharding: dict[str, Any] = {"stage": zero.stage}
    for name, place in (("offload_optimizer", zero.offload_optimizer), ("offload_param", zero.offload_parameters)):
        if place != "none":
            sharding[name] = {"device": place, "pin_memory": torch.cuda.is_available()}
    values: dict[str, Any] = {
        # Which rows go where, and what a batch is, is decided by us; DeepSpeed sees one micro-batch at a time.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": training.max_grad_norm or 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # torch's AdamW runs fused on the CPU too, and compiles nothing
        "steps_per_print": NEVER,
        "zero_optimization": sharding,
    }
    values = _merged(_merged(values, nvme or {}), zero.deepspeed)
    _check(values["zero_optimization"])
    return values


def _merged(values: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for name, value in others.items():
        own = merged.get(name)
        merged[name] = _merged(own, value) if isinstance(own, dict) and isinstance(value, dict) else value
    return merged


def _check(sharding: dict[str, Any]) -> None:
    """DeepSpeed ignores unknown keys at the top, but knows those of `zero_optimization`."""
    prepare_environment()
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    try:
        DeepSpeedZeroConfig(**sharding)
    except (ValidationError, ValueError, TypeError, AssertionError) as error:
        reason = one_line(error)
        raise UserError(f"training.zero.deepspeed.zero_optimization: refused by DeepSpeed ({reason})") from None


def prepare_environment() -> None:
    """What DeepSpeed and accelerate look for before DeepSpeed is used."""
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"  # else both ranks of a CPU run would believe that they are alone
        import deepspeed.ops

        # Its shared-memory reduction is compiled at first use, which takes a compiler and a minute; gloo does as well.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def buckets(model: DualBranch, zero: dict[str, Any]) -> dict[str, int]:
    """Sizes of DeepSpeed's buffers, in elements, for this model; keys that the user gave are left alone.

    DeepSpeed's defaults (5e8 elements, whatever the model) cost gigabytes per rank.
    """
    layer = max(sum(map(_size, layer.parameters())) for layer in decoder_layers(model.model))
    trained = max(map(_size, model.trainable().values()))
    bucket = min(LARGEST_BUCKET, max(trained, min(layer, sum(map(_size, model.trainable().values())))))
    sizes = {"reduce_bucket_size": bucket}
    if zero["stage"] == 3:
        sizes |= {
            "stage3_prefetch_bucket_size": min(LARGEST_BUCKET, layer),
            "stage3_max_live_parameters": 4 * layer,
            "stage3_max_reuse_distance": 0,
            "sub_group_size": min(10**9, max(4 * layer, trained)),  # buffers of this size come and go at the start
            "stage3_param_persistence_threshold": 10 * int(model.model.config.hidden_size),  # norms, low ranks
        }
    else:
        sizes["allgather_bucket_size"] = bucket
    return {name: size for name, size in sizes.items() if name not in zero}


def _size(parameter: torch.nn.Parameter) -> int:
    return int(getattr(parameter, "ds_numel", parameter.numel()))
