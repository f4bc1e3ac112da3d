"""Model FLOPs utilisation: the arithmetic that the model needs, over what the devices could do (Chowdhery et al. 2022,
arXiv 2204.02311, appendix B)."""

from pipeline.config import RunConfig
from pipeline.hardware import peak_flops
from pipeline.model import DualBranch
from pipeline.model.building import decoder_layers
from pipeline.model.sharding import size


def flops_of_row(row_weights: int, is_full: bool) -> int:
    """Of one row through the layers, forward and backward: 2 for each weight forward, 2 for the gradient of the
    activations, 2 for that of the weights, if they are trained (Kaplan et al. 2020, arXiv 2001.08361). Attention
    scores and output embeddings are left out."""
    return (6 if is_full else 4) * row_weights


class Utilisation:
    """Of one run on `processes` devices of a kind."""

    def __init__(self, config: RunConfig, model: DualBranch, device: str, processes: int) -> None:
        is_full = config.tuning.kind == "full"
        weights = sum(
            size(parameter)
            for layer in decoder_layers(model.model)
            for name, parameter in layer.named_parameters()
            if parameter.requires_grad == is_full and not name.startswith("prompt.")  # rows pass through one branch
        )
        peak = peak_flops(device) if config.model.precision == "bf16" else None
        self.flops = flops_of_row(weights, is_full)
        """Of each row that passes through the layers."""
        self.peak = peak * processes if peak else None

    def of(self, rows: int, seconds: float) -> float | None:
        """Share of the peak, from 0 to 1; None on an unknown device, and in float32."""
        return self.flops * rows / seconds / self.peak if self.peak else None
