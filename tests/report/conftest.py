"""Run folders with made-up results."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import RunConfig, parse_config, signature
from pipeline.report import Cell
from pipeline.run_folder import RunFolder

VERSIONS = {"dualtune": "0.1.0", "commit": "0123456789ab"}


def evaluation(config: RunConfig, task: str, value: Any) -> dict[str, Any]:
    """What the evaluation stage writes, with a made-up value."""
    return {
        "task": task,
        "signature": signature(config),
        "evaluation_signature": f"e-{task}",
        "model_fingerprint": f"weights-{signature(config)}",
        "limit": config.evaluation.limit,
        "documents": 60,
        "metrics": {"acc": value, "acc_norm": 0.99},
        "stderr": {"acc": 0.07},
        "higher_is_better": {"acc": True},
        "main_metric": "acc",
        "lm_eval_version": "0.4.13",
        "task_version": 1.0,
        "task_hash": f"hash-{task}",
        "template_hash": "template",
        "wall_seconds": 1.5,
        "versions": VERSIONS,
    }


TRAINING = {"wall_seconds": 3600.0, "tokens_per_second": 250.0, "peak_memory_bytes": 2e9, "device": "GPU X"}

INFERENCE = {"prompt_tokens": 2000, "new_tokens": 2000, "device": "GPU X"}


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Cell]:
    """`make_run("LoRA", 42, {"piqa": 0.5}, method="causal")` writes a run folder and returns its cell.

    A value may be a list: then it holds the documents' values, whose mean is the score.
    """

    def make(row: str, seed: int | None, values: dict[str, Any], **settings: Any) -> Cell:
        changes = {task: settings.pop(task) for task in list(settings) if task in values}
        reason, trained = settings.pop("reason", None), settings.pop("trained", True)
        tasks = settings.pop("tasks", tuple(values))
        tuning = settings.pop("tuning", "none" if seed is None else "lora")
        raw = {
            "seed": 42 if seed is None else seed,
            "model": {"name": settings.pop("model", "models/tiny")},
            "method": settings.pop("method", "causal"),
            "tuning": tuning if isinstance(tuning, dict) else {"kind": tuning},
            "data": settings.pop("data", {"sources": [{"path": "train.jsonl"}]}),
            "evaluation": {"tasks": list(tasks), "limit": settings.pop("limit", None)},
            "paths": {"runs": str(tmp_path / "runs")},
            "training": settings.pop("training", {}),
        }
        prepared_key, result = settings.pop("prepared_key", "data-1"), settings.pop("result", {})
        inference = settings.pop("inference", None)
        assert not settings, f"unused settings {settings}"
        raw["method"] = raw["method"] if isinstance(raw["method"], dict) else {"name": raw["method"]}
        config = parse_config(raw, "test")
        folder = RunFolder.of(config)
        folder.create(config)
        if trained and config.tuning.kind != "none":
            folder.model.mkdir(exist_ok=True)
            facts = {"signature": signature(config), "prepared_key": prepared_key, "trainable_parameters": 10**7}
            write(folder.train_result, {**TRAINING, **facts, **result})
            if inference:
                write(folder.inference, {**INFERENCE, "signature": signature(config), **inference})
        for task, value in values.items():
            if value is not None:
                write_evaluation(folder, config, task, value, changes.get(task, {}))
        return Cell(row, seed, folder, tuple(tasks), reason, config=config)

    return make


def write_evaluation(folder: RunFolder, config: RunConfig, task: str, value: Any, changes: dict[str, Any]) -> None:
    documents = value if isinstance(value, list) else []
    score = sum(documents) / len(documents) if documents else value
    count = {"documents": len(documents)} if documents else {}
    write(folder.evaluation(task), evaluation(config, task, score) | count | changes)
    lines = [json.dumps({"doc_id": i, "prompt_hash": f"p{i}", "answer": 0, "prediction": int(not right),
                         "metrics": {"acc": float(right)}}) for i, right in enumerate(documents)]  # fmt: skip
    if documents:
        folder.samples(task).write_text("\n".join(lines) + "\n", encoding="utf-8")


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def demo_cells(make_run: Callable[..., Cell]) -> list[Cell]:
    """A pretrained model, a baseline and a better method, two seeds, two tasks."""
    return [
        make_run("Pretrained", None, {"piqa": 0.5, "arc": 0.25}),
        make_run("LoRA", 42, {"piqa": 0.5, "arc": 0.3}),
        make_run("LoRA", 43, {"piqa": 0.6, "arc": 0.4}),
        make_run("Bitune", 42, {"piqa": 0.7, "arc": 0.3}, method="bitune"),
        make_run("Bitune", 43, {"piqa": 0.7, "arc": 0.5}, method="bitune"),
    ]
