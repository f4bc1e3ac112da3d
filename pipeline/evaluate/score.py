"""One task: requests to the model, the harness's metrics, the files."""

import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.metadata import version
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.evaluator import evaluate as run_harness
from lm_eval.evaluator_utils import get_sample_size
from rich.console import Console

from pipeline.config import RunConfig, digest, signature
from pipeline.errors import StageError
from pipeline.evaluate.answers import Answers
from pipeline.evaluate.config import EvaluationConfig
from pipeline.evaluate.fingerprint import evaluation_signature, own_hash
from pipeline.evaluate.harness import BranchedLM
from pipeline.evaluate.progress import Shown
from pipeline.evaluate.records import lines, records, summary
from pipeline.evaluate.suite import Loaded
from pipeline.files import write_json, write_text
from pipeline.run_folder import RunFolder
from pipeline.versions import versions

SEED = 1234
"""Of sampled generation; greedy decoding and log-likelihoods need none."""
RESAMPLINGS = 100
"""Bootstrap draws for the standard error of metrics that have no closed form."""


class Task:
    """A loaded task of a run, with the identity of its score.

    The console must be made before the harness runs, whose own output is discarded.
    """

    def __init__(
        self, name: str, loaded: Loaded, config: RunConfig, folder: RunFolder, fingerprint: str, console: Console
    ) -> None:
        self.name, self.loaded, self.config, self.folder = name, loaded, config, folder
        self.fingerprint, self.console = fingerprint, console
        self.signature = evaluation_signature(name, config, fingerprint)
        self.asked: tuple[str, ...] = ()
        """Keys of all requests, once `answer` has made them."""

    def open(self, lm: BranchedLM) -> None:
        """Give the model the answers that are there already, a fresh count and a bar."""
        share = lm.worker.share
        part = f" {share.number}/{share.count}" if share.count > 1 else ""
        lm.worker.open(self.answers(lm))
        lm.worker.progress, lm.truncated = Shown(f"evaluate {self.name}{part}", self.console), 0

    def answer(self, lm: BranchedLM) -> None:
        """Answer the model's share of all requests, without a result."""
        self.open(lm)
        try:
            with _hushed():
                for kind, requests in self._requests(lm).items():
                    getattr(lm, kind)(requests)
        finally:
            lm.worker.progress.close()
        self.asked = tuple(lm.worker.asked)

    def is_answered(self, lm: BranchedLM) -> bool:
        """Are there answers to all requests by now, of this process and of others?"""
        return self.answers(lm).holds(self.asked)

    def answers(self, lm: BranchedLM) -> Answers:
        """Those that are there. What is sampled depends on the passes, so answers of other passes are not taken."""
        identity = digest({"score": self.signature, "budget": lm.worker.budget})
        return Answers(self.folder.answers(self.name), identity)

    def _requests(self, lm: BranchedLM) -> dict[str, list[Instance]]:
        """As the harness makes them, by kind."""
        found: dict[str, list[Instance]] = {}
        options = harness_options(self.config.evaluation)
        template = lm.apply_chat_template if options["apply_chat_template"] else None
        for task in self.loaded["tasks"].values():
            limit = get_sample_size(task, self.config.evaluation.limit)
            task.build_all_requests(limit=limit, chat_template=template, **options)
            for instance in task.instances:
                found.setdefault(instance.request_type, []).extend([instance] * instance.repeats)
        return found

    def score(self, lm: BranchedLM) -> dict[str, Any]:
        """Answer what is missing, then write TASK.jsonl, one record per document, and after it TASK.json.

        Raises:
            StageError: a score that is not a number, too little memory, or a file that can't be written.
        """
        started = time.monotonic()
        self.open(lm)
        try:
            results = run_task(lm, self.loaded, self.config.evaluation)
            found = records(self.loaded, results)
        except StageError as error:
            raise StageError(f"task {self.name}: {error}") from error
        finally:
            lm.worker.progress.close()
        outcome = {**self._origin(lm), **summary(self.name, results, found)}
        outcome |= {"truncated_requests": lm.truncated, "wall_seconds": round(time.monotonic() - started, 3)}
        self._save(found, outcome)
        lm.worker.answers.remove()
        self.console.print(f"evaluate {self.name}: {told(outcome)}", markup=False, soft_wrap=True)
        return outcome

    def _origin(self, lm: BranchedLM) -> dict[str, Any]:
        return {
            "task": self.name,
            "signature": signature(self.config),
            "evaluation_signature": self.signature,
            "model_fingerprint": self.fingerprint,
            "limit": self.config.evaluation.limit,
            "template_hash": own_hash(self.name, self.config.own_template),
            "lm_eval_version": version("lm-eval"),
            "settings": settings(lm, self.config.evaluation),
            "versions": versions(),
        }

    def _save(self, found: list[dict[str, Any]], outcome: dict[str, Any]) -> None:
        """Write the records, then the result. An older result goes first: it would not belong to these records."""
        result = self.folder.evaluation(self.name)
        try:
            result.unlink(missing_ok=True)
        except OSError as error:
            raise StageError(f"{result}: cannot be written ({error.strerror})") from error
        write_text(self.folder.samples(self.name), lines(found))
        write_json(result, outcome)


def harness_options(config: EvaluationConfig) -> dict[str, Any]:
    """How prompts are put together, in the harness's words."""
    return {
        "apply_chat_template": config.chat_template,
        "fewshot_as_multiturn": config.chat_template,
        "system_instruction": config.system_prompt,
    }


def settings(lm: BranchedLM, config: EvaluationConfig) -> dict[str, Any]:
    """How requests were put to the model."""
    return {
        "max_batch_tokens": lm.worker.budget,
        "max_length": lm.max_length,
        "longest_input_asked": config.max_length,
        "add_bos": lm.add_bos,
        "precision": lm.precision,
        "device": lm.model.device.type,
        "seed": SEED,
        **harness_options(config),
    }


def run_task(lm: Any, loaded: Loaded, config: EvaluationConfig) -> dict[str, Any]:
    """Score one loaded task with the harness; `lm` is any of its models."""
    torch.manual_seed(SEED)
    options = harness_options(config)
    with _hushed():
        results: Any = run_harness(
            lm=lm, task_dict=loaded, limit=config.limit, bootstrap_iters=RESAMPLINGS, log_samples=True, **options
        )
    return dict(results)


def told(outcome: dict[str, Any]) -> str:
    """The result in one line."""
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in outcome["metrics"].items())
    limited = f", limited to {outcome['limit']}" if outcome["limit"] else ""
    cut = f", {outcome['truncated_requests']} contexts cut from the left" if outcome["truncated_requests"] else ""
    return f"{metrics} ({outcome['documents']} documents{limited}{cut}, {outcome['wall_seconds']:.1f} s)"


@contextmanager
def _hushed() -> Iterator[None]:
    """Without the harness's bars and prints; errors are exceptions and get through."""
    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # the harness would start a process per core to resample
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield
