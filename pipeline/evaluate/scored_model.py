"""The model that is scored: the run's trained one, or the pretrained base."""

import torch
from torch import Tensor

from pipeline.config import RunConfig
from pipeline.errors import StageError
from pipeline.evaluate.spreading import spread
from pipeline.model import DualBranch, build_model
from pipeline.model.opening import settle
from pipeline.run_folder import RunFolder

INITIAL = {"lora_B": 0.0, "vera_lambda_b": 0.0, "ia3_l": 1.0}
"""Part of a parameter's name -> the value that makes an adapter do nothing, where training starts."""


def load_model(config: RunConfig, folder: RunFolder, device: str | None = None) -> DualBranch:
    """In evaluation mode, on `device`, by default the GPU if there is one; `evaluation.spread`: over all GPUs.

    Raises:
        StageError: the run trains, but every trained weight has its initial value.
    """
    if config.tuning.kind == "none":
        model = build_model(config.model, config.method, config.tuning, config.seed)
    else:
        model = DualBranch.from_pretrained(folder.model, base=config.model.name, precision=config.model.precision)
        refuse_untrained(model, config)
    if config.evaluation.spread:
        return spread(model.eval())
    return settle(model, device)


def refuse_untrained(model: DualBranch, config: RunConfig) -> None:
    """An adapter that was not applied scores like the base model, and nobody would notice.

    Raises:
        StageError: every trained weight has its initial value.
    """
    trained = {name: parameter.detach() for name, parameter in model.trainable().items()}
    moved = _differs_from_base(trained, config) if config.tuning.kind == "full" else _adapter_moved(trained, config)
    if not moved:
        raise StageError(
            f"the {config.tuning.kind} weights of {config.name} all have their initial values: this is the base model, "
            "training changed nothing or its weights were not saved"
        )


def _adapter_moved(trained: dict[str, Tensor], config: RunConfig) -> bool:
    starts = INITIAL | {"theta": config.method.theta_init}
    known = [(tensor, start) for name, tensor in trained.items() for part, start in starts.items() if part in name]
    return any(bool((tensor != torch.tensor(start, dtype=tensor.dtype)).any()) for tensor, start in known)


def _differs_from_base(trained: dict[str, Tensor], config: RunConfig) -> bool:
    fresh = build_model(config.model, config.method, config.tuning, config.seed).trainable()
    return any(not torch.equal(tensor, fresh[name].detach()) for name, tensor in trained.items())
