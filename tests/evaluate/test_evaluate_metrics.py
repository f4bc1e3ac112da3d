"""acc and acc_norm by hand, and what is recorded of each document."""

import json
import math
from pathlib import Path

import pytest
from lm_eval.api.instance import Instance
from transformers import PreTrainedTokenizerBase

from pipeline.errors import StageError
from pipeline.evaluate import BranchedLM
from pipeline.evaluate.config import EvaluationConfig
from pipeline.evaluate.records import lines, records, summary
from pipeline.evaluate.score import run_task
from pipeline.evaluate.suite import Loaded, check_tasks, load_task
from pipeline.model import DualBranch

# acc takes the highest log-likelihood, acc_norm the highest per character of the choice.
QUESTIONS = [
    # -4 > -6: the first by acc;  -4/2 = -2 < -6/12 = -0.5: the second by acc_norm. Right: the second.
    ({"goal": "one", "sol1": "no", "sol2": "certainly so", "label": 1}, {"no": -4.0, "certainly so": -6.0}),
    # -1 > -3 and -1/3 > -3/4: the first by both. Right: the first.
    ({"goal": "two", "sol1": "yes", "sol2": "nope", "label": 0}, {"yes": -1.0, "nope": -3.0}),
    # -5 > -6: the second by acc;  -5/4 < -6/8: the first by acc_norm. Right: the second.
    ({"goal": "three", "sol1": "go there", "sol2": "stay", "label": 1}, {"go there": -6.0, "stay": -5.0}),
    # -2 = -2 and equal lengths: the first of equals. Right: the second.
    ({"goal": "four", "sol1": "up", "sol2": "no", "label": 1}, {"up": -2.0, "no": -2.0}),
]


class Told(BranchedLM):
    """Answers with given log-likelihoods."""

    scores: dict[str, dict[str, float]] = {}

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        pairs = [request.args for request in requests]
        return [(self.scores[context.split("\n")[0]][continuation[1:]], False) for context, continuation in pairs]


def told(plain: DualBranch, tokenizer: PreTrainedTokenizerBase, scores: list[dict[str, float]]) -> Told:
    lm = Told(plain, tokenizer)
    lm.scores = {f"Question: {row['goal']}": s for (row, _), s in zip(QUESTIONS, scores, strict=True)}
    return lm


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    path = tmp_path / "piqa.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row, _ in QUESTIONS), encoding="utf-8")
    config = EvaluationConfig(tasks=("piqa_full",), data={"piqa_full": str(path)})
    return load_task(check_tasks(config), "piqa_full", str(path))


def test_metrics_equal_a_hand_computation(
    plain: DualBranch, tokenizer: PreTrainedTokenizerBase, loaded: Loaded
) -> None:
    results = run_task(told(plain, tokenizer, [scores for _, scores in QUESTIONS]), loaded, EvaluationConfig())
    found = records(loaded, results)
    outcome = summary("piqa_full", results, found)
    assert [record["prediction"] for record in found] == [0, 0, 1, 0]
    assert [record["correct"] for record in found] == [False, True, True, False]
    assert [record["correct_norm"] for record in found] == [True, True, False, False]
    assert outcome["metrics"] == {"acc": 0.5, "acc_norm": 0.5}
    # four values with mean 1/2: sample variance 1/3, standard error sqrt(1/3 / 4)
    assert outcome["stderr"]["acc"] == pytest.approx(math.sqrt(1 / 12))
    assert outcome["higher_is_better"] == {"acc": True, "acc_norm": True}
    assert (outcome["documents"], outcome["main_metric"], outcome["num_fewshot"]) == (4, "acc", 0)


def test_records_hold_what_was_scored(plain: DualBranch, tokenizer: PreTrainedTokenizerBase, loaded: Loaded) -> None:
    results = run_task(told(plain, tokenizer, [scores for _, scores in QUESTIONS]), loaded, EvaluationConfig(limit=2))
    found = [json.loads(line) for line in lines(records(loaded, results)).splitlines()]
    assert [record["doc_id"] for record in found] == [0, 1]
    assert found[0]["choices"] == ["no", "certainly so"]
    assert found[0]["log_likelihoods"] == [-4.0, -6.0]
    assert found[0]["answer"] == 1
    assert found[0]["metrics"] == {"acc": 0.0, "acc_norm": 1.0}
    assert len({record["prompt_hash"] for record in found}) == 2


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_score_that_is_no_number_fails(
    plain: DualBranch, tokenizer: PreTrainedTokenizerBase, loaded: Loaded, value: float
) -> None:
    scores = [{**scores} for _, scores in QUESTIONS]
    scores[2]["stay"] = value
    results = run_task(told(plain, tokenizer, scores), loaded, EvaluationConfig())
    with pytest.raises(StageError, match="document 2: a log-likelihood is not a finite number"):
        records(loaded, results)
