"""Configuration of training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.errors import UserError
from pipeline.schema import Schema
from pipeline.versions import installed

Moment = Annotated[float, Field(ge=0, lt=1)]


Place = Literal["none", "cpu", "nvme"]

TRACKERS = {"tensorboard": ("tensorboard",), "wandb": ("wandb",), "mlflow": ("mlflow-skinny", "mlflow")}
"""Packages of which one makes a tracker work."""


def check_trackers(names: Sequence[str]) -> None:
    """Make sure that these trackers are installed.

    Raises:
        UserError: one isn't.
    """
    for name in names:
        if not any(map(installed, TRACKERS[name])):
            raise UserError(f"training.trackers: {name} is not installed: pip install -e '.[trackers]'")


OWNED = {
    "train_batch_size": "training.batch_size",
    "train_micro_batch_size_per_gpu": "training.micro_batch_size",
    "gradient_accumulation_steps": "training.batch_size and training.micro_batch_size",
    "gradient_clipping": "training.max_grad_norm",
    "optimizer": "training.learning_rate, betas, epsilon and weight_decay",
    "scheduler": "training.schedule and warmup_ratio",
    "activation_checkpointing": "model.gradient_checkpointing",
    **dict.fromkeys(("fp16", "bf16", "amp", "torch_autocast", "data_types"), "model.precision"),
    "zero_optimization.stage": "training.zero.stage",
    "zero_optimization.offload_optimizer.device": "training.zero.offload_optimizer",
    "zero_optimization.offload_param.device": "training.zero.offload_parameters",
    "zero_optimization.offload_optimizer.nvme_path": "training.zero.nvme_path",
    "zero_optimization.offload_param.nvme_path": "training.zero.nvme_path",
    # These read from NVMe to addresses that are not aligned, which fails unseen.
    "zero_optimization.offload_optimizer.fast_init": "training.zero.nvme_path",
    "zero_optimization.offload_optimizer.pipeline_read": "training.zero.nvme_path",
    "zero_optimization.offload_optimizer.pipeline_write": "training.zero.nvme_path",
    "zero_optimization.offload_param.max_in_cpu": "training.zero.nvme_path",
}
"""Keys of DeepSpeed's JSON that are made of keys of ours."""


def _dotted(values: dict[str, Any], prefix: str = "") -> list[str]:
    """All keys, those of groups before what is in them: zero_optimization, zero_optimization.stage, ..."""
    found = []
    for name, value in values.items():
        found.append(prefix + name)
        found += _dotted(value, f"{prefix}{name}.") if isinstance(value, dict) else []
    return found


class ZeroConfig(Schema):
    """What DeepSpeed shards over the processes of a run, and where it keeps what doesn't fit on the device.

    Stage 0: nothing, every process holds everything (DDP); 1: optimizer states; 2: gradients too; 3: weights too.
    """

    stage: Annotated[int, Field(ge=0, le=3)] = 0
    offload_optimizer: Place = "none"
    offload_parameters: Place = "none"
    nvme_path: Path | None = None
    """Folder on a local disk for what is offloaded to `nvme`; each run has one of its own in it while it trains."""
    deepspeed: dict[str, Any] = {}
    """Further keys of DeepSpeed's own JSON; those that dualtune sets itself are refused."""

    @model_validator(mode="after")
    def _check_places(self) -> "ZeroConfig":
        if self.offload_optimizer != "none" and self.stage == 0:
            raise ValueError("zero.offload_optimizer needs zero.stage 1, 2 or 3")
        if self.offload_parameters != "none" and self.stage < 3:
            raise ValueError("zero.offload_parameters needs zero.stage 3")
        self._check_nvme()
        if self.deepspeed and self.stage == 0:
            raise ValueError("zero.deepspeed has keys, but zero.stage is 0: DeepSpeed is not used")
        for key in _dotted(self.deepspeed):
            if key in OWNED:
                raise ValueError(f"zero.deepspeed.{key} contradicts what is set by {OWNED[key]}: drop it")
        return self

    def _check_nvme(self) -> None:
        places = {"zero.offload_optimizer": self.offload_optimizer, "zero.offload_parameters": self.offload_parameters}
        swapped = [key for key, place in places.items() if place == "nvme"]
        if swapped and self.stage < 3:  # DeepSpeed would keep them in the CPU's memory without a word
            raise ValueError(f"{swapped[0]} = nvme needs zero.stage 3")
        if swapped and self.nvme_path is None:
            raise ValueError(f"{swapped[0]} = nvme needs zero.nvme_path: a folder on a local disk")
        if self.nvme_path is not None and not swapped:
            raise ValueError("zero.nvme_path is set, but nothing is offloaded to nvme")
        if self.offload_parameters == "nvme" and self.offload_optimizer == "none":
            raise ValueError("zero.offload_parameters = nvme needs zero.offload_optimizer cpu or nvme")


class TrainingConfig(Schema):
    """Optimisation (Bitune, appendix A.2): AdamW, linear schedule with warm-up.

    A step uses `batch_size` samples, however many processes share them, run as micro-batches of
    `micro_batch_size` packed samples.
    """

    epochs: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    max_steps: Annotated[int, Field(ge=1)] | None = None
    """Stop after this many updates, whatever `epochs` says."""
    batch_size: Annotated[int, Field(ge=1)] = 10
    micro_batch_size: Annotated[int, Field(ge=1)] = 10
    micro_batch_tokens: Annotated[int, Field(ge=1)] | None = None
    """Instead of `micro_batch_size`: micro-batches of at most this many tokens that pass through the layers (a
    prompt counts once per branch), as equal in size as can be. A longer row is a micro-batch of its own."""
    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.1
    schedule: Literal["linear", "constant"] = "linear"
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    betas: tuple[Moment, Moment] = (0.9, 0.999)
    epsilon: Annotated[float, Field(gt=0)] = 1e-6
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    loss_reduction: Literal["token", "sample"] = "sample"
    """`token`: mean over all answer tokens of the batch; `sample`: mean over samples of their token means."""
    validate_every: Annotated[int, Field(ge=1)] | None = None
    """Updates between losses on the rows that `data.validation_fraction` holds out; the last update always has one."""
    checkpoint_every: Annotated[int, Field(ge=1)] | None = 50
    """Updates between checkpoints; null: none but the end."""
    keep_checkpoints: Annotated[int, Field(ge=1)] = 2
    export: Literal["last", "best"] = "last"
    """Which weights become the model: those of the last update, or those with the lowest validation loss."""
    grace_seconds: Annotated[float, Field(gt=0)] = 240.0
    """How long after a signal to stop the run may take to save and end, before it is ended by force."""
    log_every: Annotated[int, Field(ge=1)] = 1
    trackers: list[Literal["tensorboard", "wandb", "mlflow"]] = ["tensorboard"]
    """Where metrics go besides metrics.jsonl: TensorBoard, Weights & Biases, MLflow; one run for all starts."""
    compile: Literal["none", "inductor", "aot_eager"] = "none"
    """torch.compile of each layer around its attention: `inductor` for speed, `aot_eager` to look for faults."""
    zero: ZeroConfig = ZeroConfig()

    @model_validator(mode="before")
    @classmethod
    def _read_older_key(cls, values: Any) -> Any:
        """`tensorboard: false` is how configurations said `trackers: []` before there were others."""
        if isinstance(values, dict) and isinstance(values.get("tensorboard"), bool):
            if "trackers" in values:
                raise ValueError("tensorboard is the older form of trackers, and both are given: drop tensorboard")
            values = dict(values)
            values["trackers"] = ["tensorboard"] if values.pop("tensorboard") else []
        return values

    @field_validator("trackers")
    @classmethod
    def _once(cls, names: list[str]) -> list[str]:
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"{twice[0]} is named twice")
        return names

    @model_validator(mode="after")
    def _can_compile(self) -> "TrainingConfig":
        if self.compile != "none" and self.zero.stage == 3:
            raise ValueError(
                f"compile = {self.compile} cannot be used with zero.stage 3, whose weights come and go inside layers"
            )
        return self
