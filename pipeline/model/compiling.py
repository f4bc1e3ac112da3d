"""torch.compile of the layers of a model: norms, projections, adapters and MLP, on both sides of the attention call."""

from torch import nn

from pipeline.errors import UserError
from pipeline.model.branches import BranchedLayer
from pipeline.model.building import decoder_layers
from pipeline.model.dual_branch import DualBranch
from pipeline.model.linears import BranchedLinear


def compile_layers(model: DualBranch, backend: str) -> None:
    """Compile every decoder layer in place, for rows of any number. The attention function runs as it is.

    Args:
        backend: of torch.compile.

    Raises:
        UserError: layers through which both streams pass with adapters of their own; tracing them does not end in time.
    """
    if any(isinstance(module, BranchedLinear) for module in model.modules()):
        raise UserError(
            f"training.compile = {backend}: layers with adapters for two streams ({model.method.name}, "
            f"{model.tuning.kind}) cannot be compiled; use none, tuning.kind full, or a method of one stream"
        )
    for layer in decoder_layers(model.model):
        for part in _parts(layer):
            part.compile(backend=backend, dynamic=True)


def _parts(layer: nn.Module) -> list[nn.Module]:
    """The unmodified model's layers: of each stream, where it has one of its own."""
    if not isinstance(layer, BranchedLayer):
        return [layer]
    return [part for name, part in layer.named_children() if name in ("causal", "prompt")]
