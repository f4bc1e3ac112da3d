"""The same step in TRL's SFTTrainer, in each of the layouts that it can run here. Used by train_step.py."""

import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from rich.console import Console
from rich.table import Table
from train_step import LORA, Step, interleave, median_ratio, pack, step_of
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

from pipeline.model import DualBranch, load_tokenizer
from pipeline.model.config import ModelConfig

Rows = list[tuple[list[int], int]]


def compare_with_trl(config: ModelConfig, model: DualBranch, rows: Rows, rounds: int) -> None:
    """Print seconds a row of 8 rows: ours packed, TRL's padded, one by one with accumulation, and packed."""
    rows = rows[:8]
    steps = {"ours": step_of(model, *pack(rows)), "padded": trl_step(config, rows, 8)}
    steps |= {"one by one": trl_step(config, rows, 1), "packed": trl_step(config, rows, 8, packing=True)}
    times = interleave(steps, rounds)
    table = Table("TRL layout", "ours s/row", "TRL s/row", "ours / TRL", "limit")
    for name in ("padded", "one by one", "packed"):
        per_row = [sorted(times[key])[len(times[key]) // 2] / len(rows) for key in ("ours", name)]
        ratio = median_ratio(times["ours"], times[name])
        table.add_row(name, f"{per_row[0]:.3f}", f"{per_row[1]:.3f}", f"{ratio:.3f}", "0.75")
    Console().print(table)


def trl_step(config: ModelConfig, rows: Rows, size: int, packing: bool = False) -> Step:
    """One optimizer step over all rows in micro-batches of `size` rows; `packing`: all in one row."""
    examples = [{"input_ids": ids, "completion_mask": [0] * start + [1] * (len(ids) - start)} for ids, start in rows]
    options: dict[str, Any] = {"packing": True, "max_length": sum(len(ids) for ids, _ in rows)} if packing else {}
    trainer: Any = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(config.name, dtype=torch.float32),
        args=SFTConfig(
            output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], per_device_train_batch_size=size,
            gradient_checkpointing=False, completion_only_loss=True, **options,
        ),
        train_dataset=Dataset.from_list(examples),
        processing_class=load_tokenizer(config),
        peft_config=LoraConfig(r=LORA.rank, lora_alpha=LORA.alpha, target_modules="all-linear"),
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 8 // size if not packing else 1  # as its own loop does
    batches = list(trainer.get_train_dataloader())
    parameters = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.0, fused=True)

    def step() -> float:
        start = time.perf_counter()
        for batch in batches:
            trainer.training_step(trainer.model, dict(batch))
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    return step
