"""What is written of a task: one record per document, and the summary that is written last."""

import json
import math
from typing import Any

from lm_eval.utils import handle_non_serializable

from pipeline.config import digest
from pipeline.errors import StageError
from pipeline.evaluate.suite import Loaded

Results = dict[str, Any]
"""What lm-eval's `evaluate` returns."""


def records(loaded: Loaded, results: Results) -> list[dict[str, Any]]:
    """One record per document of every task, in order; the metrics of several filters are put together.

    Raises:
        StageError: a log-likelihood is not a finite number.
    """
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for name, task in loaded["tasks"].items():
        for sample in results["samples"][name]:
            record = found.setdefault((name, sample["doc_id"]), {"task": name, **_record(task, sample)})
            if "extracted" in record:
                record["extracted"][sample["filter"]] = _first_of_all(sample["filtered_resps"])
            record["metrics"] |= {metric_name(f"{m},{sample['filter']}"): sample[m] for m in sample["metrics"]}
    return list(found.values())


def _record(task: Any, sample: dict[str, Any]) -> dict[str, Any]:
    shared = {"doc_id": sample["doc_id"], "doc_hash": sample["doc_hash"], "prompt_hash": sample["prompt_hash"]}
    if task.OUTPUT_TYPE == "multiple_choice":
        return shared | _choice(task, sample) | {"metrics": {}}
    if task.OUTPUT_TYPE == "generate_until":
        responses = [response for repeats in sample["resps"] for response in repeats]
        return shared | {"responses": responses, "extracted": {}, "answer": sample["target"], "metrics": {}}
    values = [_first(response) for response in sample["filtered_resps"]]
    _check_finite(values, sample)
    return shared | {"log_likelihoods": values, "answer": sample["target"], "metrics": {}}


def _first_of_all(values: list[Any]) -> Any:
    """A document with one request has one value, which stands alone."""
    return values[0] if len(values) == 1 else values


def _choice(task: Any, sample: dict[str, Any]) -> dict[str, Any]:
    choices = task.doc_to_choice(sample["doc"])
    scores = [_first(response) for response in sample["filtered_resps"]]
    _check_finite(scores, sample)
    found = {
        "choices": choices,
        "log_likelihoods": scores,
        "answer": task.doc_to_text(sample["doc"]) if task.multiple_input else sample["target"],
        "prediction": max(range(len(choices)), key=lambda index: scores[index]),
    }
    correct = {"correct": "acc", "correct_norm": "acc_norm"}
    return found | {key: bool(sample[metric]) for key, metric in correct.items() if metric in sample}


def _first(response: Any) -> Any:
    """The log-likelihood of (log-likelihood, is greedy); other responses as they are."""
    return response[0] if isinstance(response, tuple) else response


def _check_finite(scores: list[float], sample: dict[str, Any]) -> None:
    if not all(math.isfinite(score) for score in scores):
        raise StageError(f"document {sample['doc_id']}: a log-likelihood is not a finite number ({scores})")


def lines(found: list[dict[str, Any]]) -> str:
    """Records as JSON lines."""
    dumped = (json.dumps(r, ensure_ascii=False, allow_nan=False, default=handle_non_serializable) for r in found)
    return "".join(f"{line}\n" for line in dumped)


def summary(name: str, results: Results, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Scores of a task as fractions, their standard errors over documents, and what identifies the task.

    Raises:
        StageError: there is no score, or one is not a finite number.
    """
    raw = results["results"].get(name, {})
    numbers = {key: value for key, value in raw.items() if "," in key and isinstance(value, int | float)}
    scores = {metric_name(key): value for key, value in numbers.items() if "_stderr," not in key}
    if not scores or not all(math.isfinite(value) for value in scores.values()):
        raise StageError(f"task {name}: its scores are not finite numbers ({scores or 'there are none'})")
    better = results["higher_is_better"].get(name, {})
    return {
        "documents": len(found),
        "metrics": scores,
        "stderr": {metric_name(key.replace("_stderr", "")): numbers[key] for key in numbers if "_stderr," in key},
        "higher_is_better": {metric: better.get(metric.split(",")[0], True) for metric in scores},
        "main_metric": "acc" if "acc" in scores else next(iter(scores)),
        "task_version": results["versions"].get(name),
        "task_hash": digest([[record["doc_hash"], record["prompt_hash"], record["answer"]] for record in found]),
        "num_fewshot": results["n-shot"].get(name, 0),
    }


def metric_name(key: str) -> str:
    """`acc,none` -> `acc`; the name of a real filter stays: `exact_match,strict-match`."""
    metric, _, filter_name = key.partition(",")
    return metric if filter_name == "none" else key
