"""Are our scores those of lm-eval's own `hf` model? Largest differences over every request of real tasks.

    make bench && .venv/bin/python benchmarks/parity.py --documents 20
    .venv/bin/python benchmarks/parity.py --task lambada_standard=data/lambada_test_plain_text.txt \\
        --task mmlu_anatomy=data/mmlu_anatomy

Float32, plain causal model, for several token budgets: log-likelihoods, metrics, rolling log-likelihoods and greedily
generated texts. Exit status 1 when a log-likelihood differs by more than 1e-4 (of a whole rolled text: 1e-6 of it), or
anything else at all.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from pipeline.evaluate import BranchedLM
from pipeline.evaluate.config import EvaluationConfig
from pipeline.evaluate.score import run_task
from pipeline.evaluate.suite import check_tasks, load_task
from pipeline.model import load_tokenizer
from pipeline.model.config import ModelConfig
from pipeline.model.opening import open_model
from pipeline.quiet import silence

EXAMPLES = Path("examples/data")
DATA = {
    "csqa_full": EXAMPLES / "commonsense_qa_validation.jsonl",
    "arc_full": EXAMPLES / "arc_challenge_test.jsonl",
    "piqa_full": EXAMPLES / "piqa_validation.jsonl",
}
BUDGETS = (1, 512, 8192)
"""From one request a pass to hundreds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/SmolLM2-135M-Instruct")
    parser.add_argument("--documents", type=int, default=20, help="of each task")
    parser.add_argument(
        "--task", action="append", default=[], metavar="TASK=FILE", help="beside those of examples/data"
    )
    options = parser.parse_args()
    silence()
    config = ModelConfig(name=options.model, precision="fp32")
    tokenizer = load_tokenizer(config)
    weights = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    theirs = HFLM(pretrained=weights, tokenizer=tokenizer, batch_size=4, logits_cache=False)
    ours = [BranchedLM(open_model(options.model, precision="fp32"), tokenizer, budget) for budget in BUDGETS]
    data = {name: str(path) for name, path in DATA.items()} | dict(task.split("=", 1) for task in options.task)
    rows = [compare_task(name, data, options.documents, ours, theirs) for name in data]
    rows += [compare_rolling(options.documents, ours, theirs), compare_generation(options.documents, ours, theirs)]
    table = Table("what", "requests", *(f"budget {budget}" for budget in BUDGETS), "metrics / texts equal")
    for name, count, differences, equal in rows:
        table.add_row(name, f"{count}", *(f"{value:.1e}" for value in differences), "yes" if equal else "NO")
    Console().print(table)
    sys.exit(not all(equal and max(differences) <= 1e-4 for _, _, differences, equal in rows))


Compared = tuple[str, int, list[float], bool]
"""(what, requests, largest difference for every budget, is everything else equal?)"""


def compare_task(name: str, data: dict[str, str], limit: int, ours: list[BranchedLM], theirs: HFLM) -> Compared:
    config = EvaluationConfig.model_validate({"tasks": [name], "data": {name: data[name]}, "limit": limit})
    known = check_tasks(config)
    expected = run_task(theirs, load_task(known, name, config.data[name]), config)
    found = [run_task(lm, load_task(known, name, config.data[name]), config) for lm in ours]
    differences = [_largest(_scores(results, name), _scores(expected, name)) for results in found]
    equal = all(_agree(results, expected, name) for results in found)
    return name, len(_scores(expected, name)), differences, equal


def _scores(results: dict[str, Any], name: str) -> list[float]:
    """Log-likelihoods of all requests."""
    return [response[0] for sample in results["samples"][name] for response in sample["filtered_resps"]]


def _agree(left: dict[str, Any], right: dict[str, Any], name: str) -> bool:
    """Equal accuracies; a perplexity, which is made of log-likelihoods, to 1e-4 of it."""
    keys = [key for key in right["results"][name] if "," in key and "perplexity_stderr" not in key]
    pairs = [(left["results"][name][key], right["results"][name][key]) for key in keys]
    return all(
        math.isclose(a, b, rel_tol=1e-4 if key.startswith("perplexity") else 0)
        for (a, b), key in zip(pairs, keys, strict=True)
    )


def _largest(left: list[float], right: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(left, right, strict=True))


def compare_rolling(limit: int, ours: list[BranchedLM], theirs: HFLM) -> Compared:
    """Whole texts, one of them longer than the model reads; differences are relative to the text's log-likelihood."""
    passages = [f"{row['goal']} {row['sol1']}" for row in _rows("piqa_validation.jsonl")]
    texts = [*passages[:limit], "\n".join(passages)]
    requests = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in texts]
    expected = theirs.loglikelihood_rolling(requests, disable_tqdm=True)
    found = [lm.loglikelihood_rolling(requests) for lm in ours]
    relative = [[100 * (a - b) / b for a, b in zip(values, expected, strict=True)] for values in found]
    return "rolling (per 100 nats)", len(texts), [max(map(abs, values)) for values in relative], True


def compare_generation(limit: int, ours: list[BranchedLM], theirs: HFLM) -> Compared:
    """Greedy texts, token for token."""
    prompts = [f"Question: {row['goal']}\nAnswer:" for row in _rows("piqa_validation.jsonl")[:limit]]
    options = {"until": ["\n\n"], "max_gen_toks": 24}
    requests = [Instance("generate_until", {}, (prompt, dict(options)), 0) for prompt in prompts]
    expected = theirs.generate_until(requests, disable_tqdm=True)
    found = [lm.generate_until(requests) for lm in ours]
    return "greedy generation", len(prompts), [0.0] * len(found), all(texts == expected for texts in found)


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLES / name).read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
