"""Tokens a second of packed rows against padded batches of the same rows, at the lengths of instruction data.

    .venv/bin/python benchmarks/packing.py

Rows have the lengths of 32 samples of UltraFeedback's binarized set (MIT; prompt and chosen answer in SmolLM2's tokens,
with some for the template), cut to `--longest`, and random tokens. The padded step is the unmodified model from
transformers with the same LoRA, over rows padded to the longest of each batch, with logits of answer tokens only, as
ours; both see the same rows in the same batches. What is compared runs in turn; the median of the pairwise ratios is
printed, with the share of padding.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from peft import LoraConfig, get_peft_model
from rich.console import Console
from rich.table import Table
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from pipeline.model import Batch, build_model
from pipeline.model.config import MethodConfig, ModelConfig, TuningConfig
from pipeline.train.config import TrainingConfig
from pipeline.train.schedule import make_optimizer

LENGTHS = [
    (17, 418), (364, 75), (152, 510), (102, 41), (42, 659), (38, 53), (980, 345), (95, 29), (29, 22), (29, 395),
    (70, 747), (127, 1066), (30, 390), (14, 34), (98, 16), (245, 416), (21, 356), (502, 27), (521, 13), (19, 73),
    (153, 29), (115, 240), (114, 837), (501, 16), (199, 3), (36, 824), (38, 325), (40, 575), (1478, 19), (273, 36),
    (401, 20), (176, 4),
]  # fmt: skip
"""(prompt, answer) tokens."""


@dataclass
class Sample:
    prompt: list[int]
    answer: list[int]
    """The opening token first, the last label behind."""

    @property
    def tokens(self) -> int:
        return len(self.prompt) + len(self.answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/SmolLM2-135M-Instruct")
    parser.add_argument("--rows", type=int, default=8, help="of a batch")
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    batches = draw(options)
    steps = {"padded": padded_step(options.model), "packed": packed_step(options.model)}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(options.rounds + 1):
        for batch in batches if turn else batches[:1]:
            for name, step in steps.items():
                taken = timed(step, batch)
                if turn:
                    seconds[name].append(taken)
    show(options, batches, seconds)


def show(options: argparse.Namespace, batches: list[list[Sample]], seconds: dict[str, list[float]]) -> None:
    tokens = [sum(sample.tokens for sample in batch) for batch in batches]
    places = [len(batch) * max(sample.tokens for sample in batch) for batch in batches]
    table = Table("batches", "tokens", "places", "wasted", "tokens/s", box=None)
    for name, filled in (("padded", places), ("packed", tokens)):
        speed = sum(tokens) * options.rounds / sum(seconds[name])
        wasted = 1 - sum(tokens) / sum(filled)
        table.add_row(name, f"{sum(tokens):,}", f"{sum(filled):,}", f"{wasted:.1%}", f"{speed:,.0f}")
    Console().print(table)
    ratio = statistics.median(a / b for a, b in zip(seconds["padded"], seconds["packed"], strict=True))
    print(f"packed / padded, tokens a second: {ratio:.2f} (median of {len(seconds['packed'])} pairs of steps)")


def draw(options: argparse.Namespace) -> list[list[Sample]]:
    source = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [source.randrange(10, 500) for _ in range(count)]

    cut = [(min(prompt, options.longest // 2), answer) for prompt, answer in LENGTHS]
    rows = [Sample(tokens(prompt), tokens(min(answer, options.longest - prompt))) for prompt, answer in cut]
    return [rows[start : start + options.rows] for start in range(0, len(rows), options.rows)]


def timed(step: Callable[[list[Sample]], None], batch: list[Sample]) -> float:
    start = time.perf_counter()
    step(batch)
    return time.perf_counter() - start


def packed_step(name: str) -> Callable[[list[Sample]], None]:
    """Ours, causal."""
    settings = (MethodConfig.model_validate("causal"), TuningConfig(kind="lora", rank=8, alpha=16))
    model = build_model(ModelConfig(name=name, precision="fp32"), *settings, seed=0)
    parameters = list(model.trainable().values())
    optimizer = make_optimizer(parameters, TrainingConfig(), model.device)

    def step(rows: list[Sample]) -> None:
        batch = Batch.pack([row.prompt for row in rows], [row.answer[:-1] for row in rows])
        labels = torch.tensor([token for row in rows for token in row.answer[1:]])
        finish(model.losses(batch, labels).mean(), parameters, optimizer)

    return step


def padded_step(name: str) -> Callable[[list[Sample]], None]:
    """The unmodified model over padded rows."""
    base = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    linear = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=linear, task_type="CAUSAL_LM")).train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = make_optimizer(parameters, TrainingConfig(), base.device)

    def step(rows: list[Sample]) -> None:
        ids, mask, answered = pad(rows)
        hidden = base.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        logits = base.get_output_embeddings()(hidden[:, :-1][answered[:, 1:]])
        finish(cross_entropy(logits, ids[answered]), parameters, optimizer)

    return step


def pad(rows: list[Sample]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(ids, is there a token, is it a label), each [rows, longest]."""
    shape = (len(rows), max(row.tokens for row in rows))
    ids, mask, answered = torch.zeros(shape, dtype=torch.long), torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    for index, row in enumerate(rows):
        ids[index, : row.tokens] = torch.tensor(row.prompt + row.answer)
        mask[index, : row.tokens] = 1
        answered[index, len(row.prompt) + 1 : row.tokens] = True
    return ids, mask, answered


def finish(loss: torch.Tensor, parameters: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    main()
