"""Configuration of training."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.schema import Schema

Moment = Annotated[float, Field(ge=0, lt=1)]


class TrainingConfig(Schema):
    """Optimisation (Bitune, appendix A.2): AdamW, linear schedule with warm-up.

    A step uses `batch_size` samples, run as micro-batches of `micro_batch_size` packed samples.
    """

    epochs: Annotated[float, Field(gt=0)] = 1.0
    max_steps: Annotated[int, Field(ge=1)] | None = None
    """Stop after this many updates, whatever `epochs` says."""
    batch_size: Annotated[int, Field(ge=1)] = 10
    micro_batch_size: Annotated[int, Field(ge=1)] = 10
    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.1
    schedule: Literal["linear", "constant"] = "linear"
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    betas: tuple[Moment, Moment] = (0.9, 0.999)
    epsilon: Annotated[float, Field(gt=0)] = 1e-6
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    loss_reduction: Literal["token", "sample"] = "sample"
    """`token`: mean over all answer tokens of the batch; `sample`: mean over samples of their token means."""
    checkpoint_every: Annotated[int, Field(ge=1)] | None = 50
    """Updates between checkpoints; null: none but the end."""
    keep_checkpoints: Annotated[int, Field(ge=1)] = 2
    log_every: Annotated[int, Field(ge=1)] = 1
    tensorboard: bool = True
