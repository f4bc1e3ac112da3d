"""Which attention kernel a run trains with: chosen at the start, proven on its device, and told.

A kernel is only taken after its outputs and gradients for this model's heads, patterns and precision were compared with
masked attention in float64 on the same device, which the tests compare with the patterns' plain rules.
"""

from importlib.util import find_spec

import torch
from torch import Tensor, nn

from pipeline.errors import UserError, one_line
from pipeline.model.attention import Exchange, attend
from pipeline.model.batch import Batch
from pipeline.model.config import MethodConfig
from pipeline.model.dual_branch import DualBranch
from pipeline.model.flex import FlexKernel
from pipeline.model.kernels import Kernel
from pipeline.model.layout import lay_out
from pipeline.model.mixing import Mixing
from pipeline.model.patterns import PATTERNS
from pipeline.model.varlen import VarlenKernel, find_flash, window_of

LENGTHS = (((37, 9), (0, 3), (5, 1), (130, 70), (1, 140)), None), (((40, 2), (6, 4), (9, 5)), (2, 0, 2, 1, 0))
"""(prompt, answer) tokens of the samples of the batches that a kernel is tried on, and who reads which prompt."""
TOLERANCE = 0.03
"""Largest error, relative to the largest value: a few times what bfloat16 rounds away."""


def choose_kernel(model: DualBranch, device: torch.device) -> tuple[Kernel | None, str]:
    """The kernel that `model.kernels` names (None: masked or causal SDPA), and a sentence about it.

    Raises:
        UserError: the kernel that was asked for cannot be used here, and why.
    """
    wish = model.base.kernels
    if wish == "sdpa":
        return None, "sdpa"
    name = "varlen" if wish == "auto" else wish
    reason = _obstacle(name, model, device)
    if reason is None:
        kernel, told = _make(name)
        reason = _fault(kernel, model, device)
        if reason is None:
            return kernel, told
    if wish != "auto":
        raise UserError(f"model.kernels = {wish!r}: {reason}")
    return None, f"sdpa ({name}: {reason})"


def _obstacle(name: str, model: DualBranch, device: torch.device) -> str | None:
    """Why the kernel can't be tried at all."""
    if device.type != "cuda":
        return f"trains on GPUs only, this is {device.type}"
    if getattr(model.model.config, "attention_dropout", 0.0):
        return "has no dropout of attention weights, which this model's config.json sets"
    if name == "flex":
        return None if find_spec("triton") else "needs Triton"
    if model.base.precision != "bf16":
        return "needs model.precision bf16"
    odd = [branch.pattern for branch in model.method.branches if _is_unknown(branch.pattern)]
    if odd:
        return f"has no form of the pattern {odd[0]}"
    return None if find_flash() else "neither torch.nn.attention.varlen (torch 2.11) nor flash-attn is installed"


def _is_unknown(pattern: str) -> bool:
    """Slippery attention has a kernel of its own."""
    found = PATTERNS[pattern]
    return window_of(found) is None and found.sparsity is None


def _make(name: str) -> tuple[Kernel, str]:
    if name == "flex":
        return FlexKernel(), "flex (FlexAttention)"
    found = find_flash()
    assert found is not None
    return VarlenKernel(found[0]), f"varlen (flash attention of {found[1]})"


def _fault(kernel: Kernel, model: DualBranch, device: torch.device) -> str | None:
    """What goes wrong when the kernel is tried."""
    config = model.model.config
    heads = int(config.num_attention_heads)
    dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    dtype = torch.bfloat16 if model.base.precision == "bf16" else torch.float32
    try:
        error = worst_error(kernel, model.method, (heads, int(config.num_key_value_heads), dim), device, dtype)
    except Exception as failure:  # whatever a kernel's compiler or driver raises
        return f"failed when it was tried ({type(failure).__name__}: {one_line(failure)[:200]})"
    return f"differed from masked attention by {error:.3g} of the largest value" if not error < TOLERANCE else None


def worst_error(
    kernel: Kernel, method: MethodConfig, shape: tuple[int, int, int], device: torch.device, dtype: torch.dtype,
    with_gradients: bool = True,
) -> float:  # fmt: skip
    """The largest error of outputs and gradients against masked attention in float64, relative to the largest value.

    Args:
        shape: heads, key/value heads, head dim.
        dtype: of queries, keys and values that the kernel gets.
    """
    errors = []
    for seed, (lengths, owners) in enumerate(LENGTHS):
        batch = Batch.pack([[0] * p for p, _ in lengths], [[0] * lengths[i][1] for i in owners or range(len(lengths))],
                           owners).to(device)  # fmt: skip
        for join in (False, True):
            found = _results(kernel, batch, method, shape, dtype, seed, join, with_gradients)
            right = _results(None, batch, method, shape, torch.float64, seed, join, with_gradients, dtype)
            errors += [_error(ours, theirs) for ours, theirs in zip(found, right, strict=True)]
    return max(errors)


def _error(ours: Tensor, theirs: Tensor) -> float:
    ours, theirs = ours.detach().double(), theirs.detach()
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-6))


def _results(
    kernel: Kernel | None, batch: Batch, method: MethodConfig, shape: tuple[int, int, int], dtype: torch.dtype,
    seed: int, join: bool, with_gradients: bool, rounded: torch.dtype | None = None,
) -> list[Tensor]:  # fmt: skip
    """Outputs of both streams, and gradients of all queries, keys and values."""
    layout = lay_out(batch, method, join)
    layout.kernel = kernel
    heads, key_heads, dim = shape
    generator = torch.Generator(batch.tokens.device).manual_seed(seed)

    def rows(count: int, number: int) -> Tensor:
        made = torch.randn(1, number, count, dim, generator=generator, device=batch.tokens.device)
        return made.to(rounded or dtype).to(dtype).requires_grad_(with_gradients)

    streams = [layout.causal_rows, *([layout.branch_rows] if layout.second else [])]
    inputs = [tuple(rows(count, number) for number in (heads, key_heads, key_heads)) for count in streams]
    mixing = Mixing(0.01, batch.tokens.device) if len(method.branches) == 2 else None
    exchange = Exchange(mixing) if len(streams) == 2 else None
    module = nn.Module()
    module.layer_idx = 0  # type: ignore[assignment]
    given: dict = {"layout": layout, "exchange": exchange}
    outputs = [attend(module, *inputs[1], None, stream="prompt", **given)[0]] if exchange else []
    outputs.append(attend(module, *inputs[0], None, **given)[0])
    if not with_gradients:
        return outputs
    tensors = [tensor for stream in inputs for tensor in stream]
    found = torch.autograd.grad(
        sum((output.double().sin().sum() for output in outputs), torch.zeros((), device=batch.tokens.device)),
        tensors, allow_unused=True,
    )  # fmt: skip
    gradients = [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, found, strict=True)]
    return [*outputs, *gradients]
