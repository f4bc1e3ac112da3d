"""One update under DeepSpeed ZeRO, which shards optimizer states, gradients and weights over the ranks."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.utils import DistributedType, InitProcessGroupKwargs
from torch import Tensor

from pipeline.train.config import TrainingConfig
from pipeline.train.engine import Engine, check_accelerator, forget_accelerator
from pipeline.train.loss import Objective
from pipeline.train.partitions import align_gradients, drop_second_copies
from pipeline.train.ranks import Ranks
from pipeline.train.trained import check_zero
from pipeline.train.zero import buckets, deepspeed_json, prepare_environment


class ShardedEngine(Engine):
    """The same update, with DeepSpeed's engine in the place of DDP and of the optimizer's step."""

    def _prepare(self, objective: Objective) -> None:
        objective.autocasts = objective.model.base.precision == "bf16"
        zero = self.accelerator.deepspeed_plugin.deepspeed_config["zero_optimization"]
        zero |= buckets(objective.model, zero)
        self._seen: set[str] = set()
        self._hooks = [parameter.register_hook(partial(self._see, name)) for name, parameter in self.parameters.items()]
        super()._prepare(objective)
        check_zero(self.parameters, self.objective.optimizer)
        drop_second_copies(self.objective.optimizer)
        align_gradients(self.objective.optimizer)

    def _see(self, name: str, _gradient: Tensor) -> None:
        self._seen.add(name)

    def _without_gradient(self) -> list[str]:
        """DeepSpeed takes gradients away as they are made: so it is noted when each is made."""
        for hook in self._hooks:
            hook.remove()
        return [name for name in self.parameters if name not in self._seen]

    @contextmanager
    def _boundary(self, is_last: bool) -> Iterator[None]:
        self.objective.set_gradient_accumulation_boundary(is_last)
        yield

    def _differentiate(self, loss: Tensor) -> None:
        self.objective.backward(loss)

    def _step(self) -> float:
        self.objective.step()
        norm: Any = self.objective.get_global_grad_norm()
        return math.nan if norm is None else float(norm)


def make_sharded_accelerator(training: TrainingConfig, ranks: Ranks, nvme: dict[str, Any] | None = None) -> Accelerator:
    """accelerate with DeepSpeed on this rank. From here on models are built sharded, if the stage is 3.

    Args:
        nvme: what `pipeline.train.nvme.nvme_files` gave.

    Raises:
        UserError: DeepSpeed is absent, or refuses its configuration.
    """
    values = deepspeed_json(training, nvme)
    forget_accelerator()
    prepare_environment()
    plugin = DeepSpeedPlugin(hf_ds_config=values, zero3_init_flag=training.zero.stage == 3)
    # Precision "no": the objective runs under autocast by itself, so that all weights stay float32 as they are
    # in one process; DeepSpeed's own bf16 would round mixing and adapters too.
    options = [InitProcessGroupKwargs(backend="nccl" if torch.cuda.is_available() else "gloo")]
    accelerator = Accelerator(mixed_precision="no", deepspeed_plugin=plugin, kwargs_handlers=options)
    check_accelerator(accelerator, ranks, DistributedType.DEEPSPEED)
    return accelerator
