"""How long a trained model takes to read a prompt and to answer, measured and kept in its run folder."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from pipeline.config import signature
from pipeline.errors import UserError
from pipeline.files import write_json
from pipeline.model import DualBranch, longest_input
from pipeline.model.generation import prefill
from pipeline.model.opening import device_name, open_model
from pipeline.report.collect import read_config
from pipeline.run_folder import RunFolder
from pipeline.versions import versions


@torch.no_grad()
def measure_inference(folder: RunFolder, prompt_tokens: int, new_tokens: int, rounds: int = 3) -> dict[str, Any]:
    """Write RUN/inference.json: seconds for one prompt of random tokens, medians of the rounds after one to warm up.

    `prefill_seconds` is for all branches to read the prompt, `generation_seconds` for the whole answer of exactly
    `new_tokens` (its own prefill included).

    Raises:
        UserError: no trained run, or more tokens than its model reads.
    """
    config = read_config(folder)
    if config is None or not folder.model.is_dir():
        raise UserError(f"{folder.root}: holds no trained model")
    model = open_model(str(folder.model))
    _check_room(model, prompt_tokens + new_tokens)
    prompt = random_prompt(model, prompt_tokens)
    options = {"min_new_tokens": new_tokens, "do_sample": False}
    found = {
        "signature": signature(config),
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "prefill_seconds": median_seconds(lambda: prefill(model, [prompt[:-1]]), rounds),
        "generation_seconds": median_seconds(lambda: model.generate([prompt], new_tokens, **options), rounds),
        "rounds": rounds,
        "device": device_name(model.device),
        "versions": versions(),
    }
    write_json(folder.inference, found)
    return found


def random_prompt(model: DualBranch, length: int) -> list[int]:
    """The same for every model of a vocabulary."""
    return torch.randint(model.model.config.vocab_size, (length,), generator=torch.Generator().manual_seed(0)).tolist()


def median_seconds(work: Callable[[], object], rounds: int) -> float:
    """Of so many calls, after one that doesn't count. The GPU's queue is waited for."""
    return statistics.median([_seconds(work) for _ in range(rounds + 1)][1:])


def _seconds(work: Callable[[], object]) -> float:
    _wait()
    start = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - start


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _check_room(model: DualBranch, needed: int) -> None:
    limit = longest_input(model.model.config)
    if needed > limit:
        raise UserError(f"--prompt-tokens and --new-tokens make {needed} tokens, the model reads {limit}")
