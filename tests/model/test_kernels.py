"""Kernels over the packed row against the plain rule in float64, and the choice of one.

FlexAttention has no backward pass on CPUs and flash attention no CPU form at all: here FlexAttention's uncompiled form
is compared, forward, and flash attention's place is taken by a plain function of the same meaning, so that what is
proven is which rows and windows it is handed. `benchmarks/gpu.py` compares the real ones on a GPU.
"""

from collections.abc import Callable

import pytest
import torch
from test_attention import HEADS, make_batch, plain, random_rows, reference, spans
from tiny import answer_logits, samples, tiny_model

from pipeline.errors import UserError
from pipeline.model import kernel_choice
from pipeline.model.attention import Exchange, attend
from pipeline.model.config import PRESETS, MethodConfig
from pipeline.model.flex import FlexKernel
from pipeline.model.kernel_choice import choose_kernel, worst_error
from pipeline.model.layout import lay_out
from pipeline.model.mixing import Mixing
from pipeline.model.varlen import Bounds, VarlenKernel

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
CPU = torch.device("cpu")


def flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, queries: Bounds, keys: Bounds,
    window: tuple[int, int], scale: float | None,
) -> torch.Tensor:  # fmt: skip
    """Piece by piece, windows aligned at the last row and key."""
    outputs = []
    bounds = zip(queries.places.tolist(), queries.places.tolist()[1:], keys.places.tolist(), keys.places.tolist()[1:],
                 strict=False)  # fmt: skip
    for start, stop, first, last in bounds:
        row = torch.arange(stop - start)[:, None] + (last - first) - (stop - start)
        distance = torch.arange(last - first) - row
        left, right = (1000 if size < 0 else size for size in window)
        rows = (part.transpose(0, 1) for part in (query[start:stop], key[first:last], value[first:last]))
        outputs.append(plain(*rows, (distance >= -left) & (distance <= right)))
    return torch.cat(outputs)


KERNELS: dict[str, Callable] = {"flex": lambda: FlexKernel(compiles=False), "varlen": lambda: VarlenKernel(flash)}
WINDOWED = [name for name, branches in PRESETS.items() if all(b["pattern"] != "segment" for b in branches)]


@pytest.mark.parametrize("name", ["ragged", "empty prompts", "only empty prompts", "shared prompts"])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_equals_the_plain_rule(
    kernel: str, preset: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr("pipeline.model.mixing._mix", lambda a, b, alpha: (1 - alpha.double()) * a + alpha.double() * b)
    batch, method = make_batch(name), MethodConfig.model_validate(preset)
    layout = lay_out(batch, method, join=False)
    layout.kernel = KERNELS[kernel]()
    causal = [rows.detach() for rows in random_rows(layout.causal_rows, 1)]
    branch = [rows.detach() for rows in random_rows(layout.branch_rows, 2)] if layout.second else None
    mixing = Mixing(0.01).double()
    module = torch.nn.Module()
    module.layer_idx = 0
    with torch.no_grad():
        expected = reference(batch, layout, method, causal, branch, mixing)
        exchange = Exchange(mixing if len(method.branches) == 2 else None) if branch else None
        if branch and layout.second:
            output, _ = attend(module, *branch, None, layout=layout, exchange=exchange, stream="prompt")
            for span in spans(tuple(layout.prompts.lengths)):
                mask = layout.second.mask(span.stop - span.start, tail=1)
                rows = plain(branch[0][0][:, span], branch[1][0][:, span], branch[2][0][:, span], mask)
                torch.testing.assert_close(output[0, span], rows, atol=1e-12, rtol=1e-10)
        output, _ = attend(module, *causal, None, layout=layout, exchange=exchange)
    torch.testing.assert_close(output[0, : layout.causal_rows], expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("method", ["causal", "bitune", "slippery_input", "anti_causal"])
def test_whole_models_agree(method: str) -> None:
    model = tiny_model(method)
    cases = samples([(7, 4), (0, 3), (12, 2)])
    with torch.no_grad():
        expected = answer_logits(model, *cases)
        for make in KERNELS.values():
            model.kernel = make()
            for ours, theirs in zip(answer_logits(model, *cases), expected, strict=True):
                torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("preset", WINDOWED)
def test_gradients_through_packed_keys(preset: str) -> None:
    method = MethodConfig.model_validate(preset)
    assert worst_error(KERNELS["varlen"](), method, (HEADS, 2, 8), CPU, torch.float64) < 1e-6  # mixing is float32


def test_a_wrong_kernel_is_found() -> None:
    def careless(*arguments: object) -> torch.Tensor:
        return flash(*arguments[:5], (-1, -1), None)  # as one that ignores its window

    method = MethodConfig.model_validate("bitune")
    assert worst_error(VarlenKernel(careless), method, (HEADS, 2, 8), CPU, torch.float64) > 0.03


def choose(kernels: str, method: str = "bitune", device: str = "cuda", precision: str = "bf16") -> str:
    model = tiny_model(method)
    model.base = model.base.model_copy(update={"kernels": kernels, "precision": precision})
    return choose_kernel(model, torch.device(device))[1]


def test_choice_without_a_gpu() -> None:
    assert choose("sdpa", device="cpu") == "sdpa"
    assert choose("auto", device="cpu") == "sdpa (varlen: trains on GPUs only, this is cpu)"
    for name in KERNELS:
        with pytest.raises(UserError, match=rf"model.kernels = '{name}': trains on GPUs only, this is cpu"):
            choose(name, device="cpu")


def test_what_varlen_cannot_do_is_told() -> None:
    with pytest.raises(UserError, match="has no form of the pattern segment"):
        choose("varlen", "segment")
    with pytest.raises(UserError, match="bf16"):
        choose("varlen", precision="fp32")
    assert choose("auto", "segment") == "sdpa (varlen: has no form of the pattern segment)"


def test_a_kernel_that_fails_or_errs_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> tuple:
        raise RuntimeError("no kernel image\nfor this device")

    monkeypatch.setattr(kernel_choice, "_make", lambda name: (VarlenKernel(broken), name))
    monkeypatch.setattr(kernel_choice, "find_flash", lambda: (flash, "test"))
    monkeypatch.setattr(kernel_choice, "_obstacle", lambda *_: None)
    told = "failed when it was tried (RuntimeError: no kernel image for this device)"
    assert choose("auto", device="cpu") == f"sdpa (varlen: {told})"
    with pytest.raises(UserError, match="failed when it was tried"):
        choose("varlen", device="cpu")
    monkeypatch.setattr(kernel_choice, "worst_error", lambda *_: float("nan"))
    assert "differed from masked attention by nan" in choose("auto", device="cpu")
