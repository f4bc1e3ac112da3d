"""What a run needs before it is started: parameters, memory per process, arithmetic, time."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.nn import Parameter
from transformers import AutoModelForCausalLM

from pipeline.config import RunConfig
from pipeline.model import DualBranch
from pipeline.model.building import assemble, check_family, decoder_layers
from pipeline.train.config import ZeroConfig

ADAM = 8
"""Bytes of AdamW's two moments for each trained parameter."""
FLOAT = 4
ACTIVATIONS_PER_LAYER = 34
"""Bytes per token and hidden unit that a layer keeps for its backward pass in bf16, without those of attention scores,
which fused kernels don't keep (Korthikanti et al. 2022, arXiv 2205.05198, section 4.1)."""


@dataclass(frozen=True)
class Size:
    """Counts of a model under its method and tuning."""

    parameters: int
    trained: int
    frozen_bytes: int
    largest_layer: int
    embeddings: int
    """Input and output, counted once where they are tied."""
    row_weights: int
    """Weights of the layers that one row passes through."""
    layers: int
    width: int
    largest_tensor: int
    layer_tensors: int
    """Of the layer with most."""


def measure(config: RunConfig) -> Size:
    """Build the model without memory (on torch's meta device) and count.

    Raises:
        UserError: no such model, or of a family that is not supported.
    """
    base_config = check_family(config.model)
    half = config.model.precision == "bf16" and config.tuning.kind != "full"
    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(base_config, dtype=torch.bfloat16 if half else torch.float32)
        row_weights = sum(_count(layer.parameters()) for layer in decoder_layers(base))
        model = assemble(base, config.model, config.method, config.tuning, config.seed)
    return _size(model, row_weights)


def _size(model: DualBranch, row_weights: int) -> Size:
    layers = decoder_layers(model.model)
    parameters = list(model.parameters())
    ends = {model.model.get_input_embeddings(), model.model.get_output_embeddings()}
    return Size(
        parameters=_count(parameters),
        trained=_count(model.trainable().values()),
        frozen_bytes=sum(p.numel() * p.element_size() for p in parameters if not p.requires_grad),
        largest_layer=max(_count(layer.parameters()) for layer in layers),
        embeddings=_count({p for module in ends for p in module.parameters()}),
        row_weights=row_weights,
        layers=len(layers),
        width=int(model.model.config.hidden_size),
        largest_tensor=max(parameter.numel() for parameter in parameters),
        layer_tensors=max(len(list(layer.parameters())) for layer in layers),
    )


def _count(parameters: Iterable[Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


@dataclass(frozen=True)
class Memory:
    """Bytes of one process by part, on its device; what is offloaded is `host` and `nvme`."""

    parameters: int
    gradients: int
    optimizer: int
    working: int
    """Weights gathered for the layers at work, and the buckets of DeepSpeed, or of DDP, which hold every gradient."""
    activations: int
    host: int
    """In the CPU's memory, without buffers."""
    nvme: int

    @property
    def held(self) -> int:
        """What stays between updates, without what is offloaded."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        return self.held + self.working + self.activations


def memory(size: Size, zero: ZeroConfig, processes: int, tokens: int, recomputes: bool) -> Memory:
    """Of each of `processes` under a ZeRO stage.

    Args:
        tokens: rows that pass through the layers in one micro-batch.
        recomputes: activation checkpointing.
    """
    stage, float32 = zero.stage, FLOAT * size.trained
    parameters = (size.frozen_bytes + float32) // (processes if stage == 3 else 1)
    gradients = float32 // (processes if stage >= 2 else 1)
    # The optimizer updates the weights themselves, where it has them whole, or its part of them on the same device.
    copies = stage in (1, 2) or zero.offload_optimizer != zero.offload_parameters or zero.offload_optimizer == "nvme"
    optimizer = (ADAM * size.trained + (float32 if copies else 0)) // (processes if stage >= 1 else 1)
    held = {
        # Gradients are added up in one place, and under stage 3 handed to the optimizer in another.
        ("gradients", "none" if zero.offload_optimizer == "none" else "cpu"): gradients,
        ("handed", zero.offload_optimizer): 0 if stage < 3 or zero.offload_optimizer == "none" else gradients,
        ("parameters", zero.offload_parameters): parameters,
        ("optimizer", zero.offload_optimizer): optimizer,
    }
    bucket = FLOAT * min(2**27, max(size.largest_layer, size.embeddings))
    live = FLOAT * (2 * size.largest_layer + size.embeddings)
    per_layer = tokens * size.width * ACTIVATIONS_PER_LAYER
    kept = 2 * tokens * size.width * size.layers + per_layer if recomputes else per_layer * size.layers
    return Memory(
        **{part: held.get((part, "none"), 0) for part in ("parameters", "gradients", "optimizer")},
        working={0: float32 if processes > 1 else 0, 3: 2 * bucket + live}.get(stage, bucket),
        activations=kept,
        host=sum(count for (_, place), count in held.items() if place == "cpu"),
        nvme=sum(count for (_, place), count in held.items() if place == "nvme"),
    )
