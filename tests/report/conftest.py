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


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Cell]:
    """`make_run("LoRA", 42, {"piqa": 0.5}, method="causal")` writes a run folder and returns its cell."""

    def make(row: str, seed: int | None, values: dict[str, Any], **settings: Any) -> Cell:
        changes = {task: settings.pop(task) for task in list(settings) if task in values}
        reason, trained = settings.pop("reason", None), settings.pop("trained", True)
        tasks = settings.pop("tasks", tuple(values))
        tuning = settings.pop("tuning", "none" if seed is None else "lora")
        raw = {
            "seed": 42 if seed is None else seed,
            "model": {"name": "models/tiny"},
            "method": settings.pop("method", "causal"),
            "tuning": {"kind": tuning},
            "data": {"sources": [{"path": "train.jsonl"}]},
            "evaluation": {"tasks": list(tasks), "limit": settings.pop("limit", None)},
            "paths": {"runs": str(tmp_path / "runs")},
            "training": settings.pop("training", {}),
        }
        prepared_key = settings.pop("prepared_key", "data-1")
        assert not settings, f"unused settings {settings}"
        config = parse_config(raw, "test")
        folder = RunFolder.of(config)
        folder.create(config)
        if trained and tuning != "none":
            write(folder.train_result, {"signature": signature(config), "prepared_key": prepared_key})
        for task, value in values.items():
            if value is not None:
                write(folder.evaluation(task), evaluation(config, task, value) | changes.get(task, {}))
        return Cell(row, seed, folder, tuple(tasks), reason)

    return make


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
