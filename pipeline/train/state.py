"""All that a run needs to go on exactly: trained weights, optimizer, schedule, random states, position.

Files are safetensors and JSON, so that reading a checkpoint can never run code. accelerate's own `load_state`
is not used: it swallows a failure to restore the random states, and would save the frozen weights too.
"""

import json
import random
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pipeline.errors import StageError
from pipeline.files import write_json
from pipeline.train.ranks import Ranks

WEIGHTS, OPTIMIZER, RANDOM, POSITION = (
    "weights.safetensors",
    "optimizer.safetensors",
    "random-{rank:05d}.safetensors",
    "state.json",
)


@dataclass
class Position:
    """How far the run is. Updates count from 1; 0 is the untrained model."""

    step: int = 0
    seconds: float = 0.0
    """Wall time spent in the updates up to here, over all starts."""
    tokens: int = 0
    """Real tokens of the updates up to here."""
    loss: float | None = None
    """Loss of the last update."""
    validation_loss: float | None = None
    """The newest one."""
    best_validation_loss: float | None = None
    row: dict[str, Any] | None = None
    """Metrics of the last update, while they wait for its validation."""

    def advance(self, loss: float, seconds: float, tokens: int) -> None:
        self.step += 1
        self.loss = loss
        self.seconds += seconds
        self.tokens += tokens


@dataclass
class TrainingState:
    """The parts of a run that change with every update. `parameters` are in the order the optimizer got them."""

    parameters: dict[str, Parameter]
    optimizer: Optimizer
    scheduler: LRScheduler
    ranks: Ranks = field(default_factory=Ranks)
    position: Position = field(default_factory=Position)

    def write(self, folder: Path) -> None:
        """This rank's part. All ranks write into one folder, each its own files."""
        self._write_tensors(folder)
        tensors, numbers = random_states()
        save_file(tensors, folder / RANDOM.format(rank=self.ranks.index), metadata={"numbers": json.dumps(numbers)})
        if self.ranks.is_main:
            write_json(folder / POSITION, {
                "position": asdict(self.position),
                "learning_rates": [group["lr"] for group in self.optimizer.param_groups],
                "scheduler": self.scheduler.state_dict(),
            })  # fmt: skip

    def _write_tensors(self, folder: Path) -> None:
        """Every rank has the same weights and optimizer states: rank 0 writes them."""
        if self.ranks.is_main:
            save_file({name: plain(tensor) for name, tensor in self.parameters.items()}, folder / WEIGHTS)
            save_file(self._moments(), folder / OPTIMIZER)

    def read(self, folder: Path) -> None:
        """Restore everything that `write` saved.

        Raises:
            StageError: the tensors are not those of this run.
        """
        values = json.loads((folder / POSITION).read_text(encoding="utf-8"))
        self._read_tensors(folder)
        self.scheduler.load_state_dict(values["scheduler"])
        for group, rate in zip(self.optimizer.param_groups, values["learning_rates"], strict=True):
            group["lr"] = rate
        self.position = Position(**values["position"])
        file = folder / RANDOM.format(rank=self.ranks.index)
        with safe_open(file, framework="pt") as content:  # type: ignore[no-untyped-call]
            numbers = json.loads(content.metadata()["numbers"])
        set_random_states(load_file(file), numbers)

    def read_weights(self, folder: Path) -> None:
        """Take the trained weights of a checkpoint, and leave the position of the run as it is."""
        position = self.position
        self.read(folder)
        self.position = position

    def _read_tensors(self, folder: Path) -> None:
        self._set_weights(load_file(folder / WEIGHTS), folder)
        self._set_moments(load_file(folder / OPTIMIZER))

    def _set_weights(self, weights: dict[str, Tensor], folder: Path) -> None:
        refuse_others(weights, dict(self.parameters), folder / WEIGHTS)
        with torch.no_grad():
            for name, tensor in self.parameters.items():
                tensor.copy_(weights[name])

    def _moments(self) -> dict[str, Tensor]:
        """The optimizer's tensors, named `moment/parameter`."""
        state = self.optimizer.state_dict()["state"]
        return {
            f"{key}/{name}": plain(value)
            for index, name in enumerate(self.parameters)
            for key, value in state.get(index, {}).items()
        }

    def _set_moments(self, moments: dict[str, Tensor]) -> None:
        indices = {name: index for index, name in enumerate(self.parameters)}
        state: dict[int, dict[str, Tensor]] = {}
        for full_name, value in moments.items():
            key, _, name = full_name.partition("/")
            state.setdefault(indices[name], {})[key] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})


def refuse_others(found: dict[str, Tensor], expected: dict[str, Any], file: Path) -> None:
    """Make sure that a file holds the tensors of this run.

    Raises:
        StageError: names, shapes or types differ.
    """
    kinds = [{name: (tensor.shape, tensor.dtype) for name, tensor in part.items()} for part in (expected, found)]
    if odd := sorted(name for name in kinds[0].keys() | kinds[1].keys() if kinds[0].get(name) != kinds[1].get(name)):
        raise StageError(f"{file}: {len(odd)} tensors differ from the model's, the first is {odd[0]}")


def plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()


def random_states() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The states of all random generators of this process, as tensors and as JSON values."""
    kind, keys, *rest = numpy.random.get_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    tensors = {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(numpy.array(keys, dtype=numpy.int64)),
        **{f"cuda.{index}": state for index, state in enumerate(cuda)},
    }
    return tensors, {"python": random.getstate(), "numpy": [str(kind), *rest]}


def set_random_states(tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    version, internal, gauss = numbers["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, *rest = numbers["numpy"]
    numpy.random.set_state((kind, tensors["numpy"].numpy().astype(numpy.uint32), *rest))
    torch.set_rng_state(tensors["torch"])
    for index in range(torch.cuda.device_count()):
        if f"cuda.{index}" in tensors:
            torch.cuda.set_rng_state(tensors[f"cuda.{index}"], index)
