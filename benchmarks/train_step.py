"""Time of one training step: Bitune against plain causal, and plain causal against TRL's SFTTrainer.

    make bench && .venv/bin/python benchmarks/train_step.py

SmolLM2-135M, float32, LoRA rank 8 on all linear layers, 2 threads; forward, backward, clipping and AdamW.
What is compared runs in turn, and medians of the pairwise ratios are printed, beside the ratio of tokens
that pass through the layers, (2P + A) / (P + A).
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from pipeline.model import Batch, DualBranch, build_model, load_tokenizer
from pipeline.model.config import MethodConfig, ModelConfig, TuningConfig
from pipeline.train.config import TrainingConfig
from pipeline.train.schedule import make_optimizer

QUESTIONS = Path("examples/data/commonsense_qa_train.jsonl")
LORA = TuningConfig(kind="lora", rank=8, alpha=16)
Step = Callable[[], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/SmolLM2-135M-Instruct")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--trl", action="store_true", help="also run TRL's SFTTrainer (extra: bench)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = ModelConfig(name=options.model, precision="fp32")
    models = {name: build_model(config, MethodConfig.model_validate(name), LORA, 0) for name in ("causal", "bitune")}
    table = Table(
        "samples", "causal s", "bitune s", "bitune / causal", "tokens (2P+A)/(P+A)", "ratio of ratios", "limit"
    )
    for name, batch, labels in cases(config):
        times = interleave({key: step_of(model, batch, labels) for key, model in models.items()}, options.rounds)
        ratio = median_ratio(times["bitune"], times["causal"])
        tokens = (2 * batch.prompt_tokens + batch.answer_rows) / (batch.prompt_tokens + batch.answer_rows)
        limit = 1.05 if name.startswith("(") else 1.15
        medians = [f"{statistics.median(times[key]):.3f}" for key in ("causal", "bitune")]
        table.add_row(name, *medians, f"{ratio:.3f}", f"{tokens:.3f}", f"{ratio / tokens:.3f}", f"{limit}")
    Console().print(table)
    if options.trl:
        from trl_step import compare_with_trl  # imported late: TRL is an extra

        compare_with_trl(config, models["causal"], question_rows(config), options.rounds)


def cases(config: ModelConfig) -> list[tuple[str, Batch, torch.Tensor]]:
    """(name, batch, labels): single rows of P prompt and A answer tokens, and 8 packed questions."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for prompt, answer in ((128, 128), (256, 128), (64, 256)):
        tokens = torch.randint(10, 40000, (prompt + answer + 1,), generator=generator).tolist()
        batch = Batch.pack([tokens[:prompt]], [tokens[prompt:-1]])
        found.append((f"({prompt}, {answer})", batch, torch.tensor(tokens[prompt + 1 :])))
    rows = question_rows(config)[:8]
    return [*found, ("8 CommonsenseQA rows", *pack(rows))]


def pack(rows: list[tuple[list[int], int]]) -> tuple[Batch, torch.Tensor]:
    batch = Batch.pack([ids[: start - 1] for ids, start in rows], [ids[start - 1 : -1] for ids, start in rows])
    return batch, torch.tensor([token for ids, start in rows for token in ids[start:]])


def question_rows(config: ModelConfig, count: int = 64) -> list[tuple[list[int], int]]:
    """(token ids, prompt length) of real questions in the paper's template."""
    tokenizer = load_tokenizer(config)
    rows = []
    for line in QUESTIONS.read_text(encoding="utf-8").splitlines()[:count]:
        row = json.loads(line)
        texts = {choice["label"]: choice["text"] for choice in row["question"]["choices"]}
        prompt = f"Question: {row['question']['stem']}\n\nChoices:\n" + "\n".join(texts.values()) + "\n\nAnswer:"
        start = [tokenizer.bos_token_id, *tokenizer(prompt, add_special_tokens=False).input_ids]
        answer = tokenizer(f" {texts[row['answerKey']]}", add_special_tokens=False).input_ids
        rows.append(([*start, *answer, tokenizer.eos_token_id], len(start)))
    return rows


def step_of(model: DualBranch, batch: Batch, labels: torch.Tensor) -> Step:
    """A whole training step on one batch."""
    parameters = list(model.trainable().values())
    optimizer = make_optimizer(parameters, TrainingConfig(), model.device)

    def step() -> float:
        start = time.perf_counter()
        model.losses(batch, labels).mean().backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    return step


def interleave(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Seconds of each step, run in turn; the first round warms up and does not count."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            seconds = step()
            if turn:
                times[name].append(seconds)
    return times


def median_ratio(numerators: list[float], denominators: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


if __name__ == "__main__":
    main()
