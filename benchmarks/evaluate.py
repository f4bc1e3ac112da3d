"""Time of scoring: ours against lm-eval's own `hf` model at its best batch size, and Bitune against plain causal.

    make bench && .venv/bin/python benchmarks/evaluate.py --lambada data/lambada_test_plain_text.txt

SmolLM2-135M, float32, 2 threads, the same documents and requests; what is compared runs in turn, and medians of the
pairwise ratios are printed. Shared prompts are read once here and once per choice there: the ratio of tokens that
pass through the layers bounds what that alone can give.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from rich.console import Console
from rich.progress import track
from rich.table import Table
from train_step import interleave, median_ratio
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from pipeline.evaluate import BranchedLM
from pipeline.evaluate.documents import choices
from pipeline.model import build_model, load_tokenizer
from pipeline.model.config import MethodConfig, ModelConfig, TuningConfig
from pipeline.quiet import silence

DATA = Path("examples/data")
BATCH_SIZES = (1, 8, 32)
Pair = tuple[str, str]
LIMITS = {"CommonsenseQA, 5 choices": 2.8, "ARC, 4 choices": 2.6, "PIQA, 5-shot": 1.6, "LAMBADA": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/SmolLM2-135M-Instruct")
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lambada", type=Path, help="the authors' plain-text test set, which is not shipped")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    silence()
    torch.set_num_threads(options.threads)
    config = ModelConfig(name=options.model, precision="fp32")
    tokenizer = load_tokenizer(config)
    ours = {name: _ours(config, name, tokenizer) for name in ("causal", "bitune")}
    weights = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    table = Table("requests", "hf, batch", "hf s", "ours s", "hf / ours", "token ratio", "goal", "bitune / causal")
    for name, pairs in track(
        cases(options.documents, options.lambada).items(), "measuring", console=Console(stderr=True)
    ):
        theirs, size = best_batch(weights, tokenizer, pairs)
        runs = {"hf": theirs} | {key: timed(lm, pairs) for key, lm in ours.items()}
        times = interleave(runs, options.rounds)
        seconds = [f"{statistics.median(times[key]):.2f}" for key in ("hf", "causal")]
        ratio = f"{median_ratio(times['hf'], times['causal']):.2f}"
        bitune = f"{median_ratio(times['bitune'], times['causal']):.2f}"
        table.add_row(
            name, f"{size}", *seconds, ratio, f"{token_ratio(ours['causal'], pairs):.2f}", f"{LIMITS[name]}", bitune
        )
    Console().print(table)


def _ours(config: ModelConfig, method: str, tokenizer: PreTrainedTokenizerBase) -> BranchedLM:
    model = build_model(config, MethodConfig.model_validate(method), TuningConfig(kind="none"), 0).eval()
    return BranchedLM(model, tokenizer)


def cases(documents: int, lambada: Path | None) -> dict[str, list[Pair]]:
    """(context, continuation) of real documents."""
    found = {
        "CommonsenseQA, 5 choices": _choices(_rows("commonsense_qa_validation.jsonl")[:documents]),
        "ARC, 4 choices": _choices(_rows("arc_challenge_test.jsonl")[:documents]),
        "PIQA, 5-shot": _five_shot(_rows("piqa_validation.jsonl"), documents // 2),
    }
    if lambada:
        found["LAMBADA"] = _last_words(lambada.read_text(encoding="utf-8").splitlines()[: 2 * documents])
    return found


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def _choices(rows: Sequence[dict[str, Any]]) -> list[Pair]:
    return [(row["prompt"], f" {choice}") for row in choices(rows) for choice in row["choices"]]


def _five_shot(rows: Sequence[dict[str, Any]], documents: int) -> list[Pair]:
    """In lm-eval's template of PIQA, with five other documents as examples."""
    draw, found = random.Random(0), []
    for row in rows[:documents]:
        shots = [f"{_question(shot)} {_solution(shot)}" for shot in draw.sample(rows[documents:], 5)]
        found += [("\n\n".join([*shots, _question(row)]), f" {row[solution]}") for solution in ("sol1", "sol2")]
    return found


def _question(row: dict[str, Any]) -> str:
    return f"Question: {row['goal']}\nAnswer:"


def _solution(row: dict[str, Any]) -> str:
    return str(row["sol1"] if row["label"] == 0 else row["sol2"])


def _last_words(passages: Sequence[str]) -> list[Pair]:
    return [(text, f" {word}") for text, word in (passage.rsplit(" ", 1) for passage in passages)]


def instances(pairs: Sequence[Pair]) -> list[Instance]:
    return [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]


def timed(lm: Any, pairs: Sequence[Pair]) -> Callable[[], float]:
    """A call that scores all pairs afresh and returns the seconds it took."""

    def score() -> float:
        if isinstance(lm, BranchedLM):
            lm.worker.answers.known.clear()
            lm._encode.cache_clear()
        start = time.perf_counter()
        lm.loglikelihood(instances(pairs), disable_tqdm=True)
        return time.perf_counter() - start

    return score


def best_batch(model: Any, tokenizer: Any, pairs: Sequence[Pair]) -> tuple[Callable[[], float], int]:
    """The harness's model at the batch size that is fastest for these requests, and that size."""
    found = {}
    for size in BATCH_SIZES:
        lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=size)
        found[size] = timed(lm, pairs)
    next(iter(found.values()))()  # warms up
    seconds = {size: run() for size, run in found.items()}
    best = min(seconds, key=lambda size: seconds[size])
    return found[best], best


def token_ratio(lm: BranchedLM, pairs: Sequence[Pair]) -> float:
    """Tokens of every context with every continuation, over tokens with every context once."""
    encoded = [lm._encode_pair(*pair) for pair in pairs]
    separate = sum(len(context) + len(continuation) - 1 for context, continuation in encoded)
    prompts = {tuple(context[:-1]) for context, _ in encoded}
    return separate / (sum(map(len, prompts)) + sum(len(continuation) for _, continuation in encoded))


if __name__ == "__main__":
    main()
