"""Small real models, requests and runs for the tests of evaluation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance

from pipeline.config import RunConfig, parse_config
from pipeline.model import DualBranch, build_model
from pipeline.model.config import MethodConfig, ModelConfig, TuningConfig

ROOT = Path(__file__).resolve().parents[2]
STORIES = ROOT / "tests" / "fixtures" / "stories260K"
DATA = {
    "csqa_full": ROOT / "examples" / "data" / "commonsense_qa_validation.jsonl",
    "piqa_full": ROOT / "examples" / "data" / "piqa_validation.jsonl",
    "arc_full": ROOT / "examples" / "data" / "arc_challenge_test.jsonl",
    "arc_easy_full": ROOT / "examples" / "data" / "arc_easy_test.jsonl",
}
BASE = ModelConfig(name=str(STORIES), precision="fp32")


def plain_model() -> DualBranch:
    return build_model(BASE, MethodConfig.model_validate("causal"), TuningConfig(kind="none"), seed=0).eval()


def trained_like(method: str, kind: str = "lora") -> DualBranch:
    """A model whose every trained tensor has moved, as after training."""
    model = build_model(BASE, MethodConfig.model_validate(method), TuningConfig(kind=kind, rank=4), seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.trainable().values():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def loglikelihoods(pairs: Sequence[tuple[str, str]]) -> list[Instance]:
    return [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]


def generations(texts: Sequence[str], **options: Any) -> list[Instance]:
    return [Instance("generate_until", {}, (text, dict(options)), index) for index, text in enumerate(texts)]


def run_config(runs: Path, tasks: Sequence[str], files: dict[str, Path] | None = None, **changes: Any) -> RunConfig:
    """A run that evaluates the plain model, or what `changes` say."""
    found = {task: DATA[task] for task in tasks} if files is None else files
    data = {task: str(path) for task, path in found.items()}
    values: dict[str, Any] = {
        "model": BASE.model_dump(),
        "method": "causal",
        "tuning": {"kind": "none"},
        "evaluation": {"tasks": list(tasks), "data": data, "limit": 6},
        "paths": {"runs": str(runs)},
    }
    for key, value in changes.items():
        values[key] = {**values[key], **value} if isinstance(values.get(key), dict) else value
    return parse_config(values, "test")
