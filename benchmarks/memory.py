"""The largest tensors that one training step makes, and the peak memory of the process.

    .venv/bin/python benchmarks/memory.py --prompt 1024 --answer 256

No tensor may be as large as sequence x vocabulary or max-position x max-position: a line says whether one was.
"""

import argparse
import resource
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode
from train_step import LORA, step_of

from pipeline.model import Batch, build_model
from pipeline.model.config import MethodConfig, ModelConfig


class LargestTensors(TorchDispatchMode):
    """Records the largest tensor that each operation makes while the mode is on."""

    def __init__(self) -> None:
        super().__init__()
        self.largest: dict[str, tuple[int, tuple[int, ...]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        known = {part.untyped_storage().data_ptr() for part in args if isinstance(part, torch.Tensor)}
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in known:
                size = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.largest[str(func)] = max(self.largest.get(str(func), (0, ())), (size, tuple(tensor.shape)))
        return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/SmolLM2-135M-Instruct")
    parser.add_argument("--method", default="bitune")
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--answer", type=int, default=256)
    options = parser.parse_args()
    config = ModelConfig(name=options.model, precision="fp32")
    model = build_model(config, MethodConfig.model_validate(options.method), LORA, 0)
    tokens = torch.randint(10, 1000, (options.prompt + options.answer + 1,)).tolist()
    batch = Batch.pack([tokens[: options.prompt]], [tokens[options.prompt : -1]])
    labels = torch.tensor(tokens[options.prompt + 1 :])
    step = step_of(model, batch, labels)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with LargestTensors() as seen:
        step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    table = Table("operation", "elements", "shape")
    for name, (size, shape) in sorted(seen.largest.items(), key=lambda item: -item[1][0])[:6]:
        table.add_row(name, f"{size:,}", str(shape))
    Console().print(table)
    largest = max(size for size, _ in seen.largest.values())
    sequence, vocabulary = options.prompt + options.answer, model.model.config.vocab_size
    positions = model.model.config.max_position_embeddings
    for name, limit in (("sequence x vocabulary", sequence * vocabulary), ("max-position squared", positions**2)):
        print(f"largest tensor {largest:,} elements; {name} is {limit:,}: {'too large' if largest >= limit else 'ok'}")
    print(f"peak memory {peak / 2**20:.2f} GiB, of which the step {(peak - before) / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
