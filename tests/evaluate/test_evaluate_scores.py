"""Metrics by hand: answers read from generated text, perplexity of last words, perplexity of running text."""

import json
import math
from pathlib import Path
from typing import Any

import lm_eval.tasks
import pytest
from evaluate_inputs import DATA, run_config, trained_like
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager
from transformers import PreTrainedTokenizerBase

from pipeline.errors import UserError
from pipeline.evaluate import BranchedLM, evaluate
from pipeline.evaluate.config import EvaluationConfig
from pipeline.evaluate.records import lines, records, summary
from pipeline.evaluate.score import run_task
from pipeline.evaluate.suite import check_tasks, load_task
from pipeline.model import DualBranch
from pipeline.prepare.templates import template_hash
from pipeline.run_folder import RunFolder

HARNESS = Path(lm_eval.tasks.__file__).parent


class Told(BranchedLM):
    """Answers requests with given texts or log-likelihoods, in their order."""

    answers: list[Any] = []

    def generate_until(self, requests: Any, disable_tqdm: bool = True) -> list[str]:
        self.asked = [request.args for request in requests]
        return self.answers

    def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        return self.answers

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:  # type: ignore[override]
        return self.answers


@pytest.fixture
def lm(plain: DualBranch, tokenizer: PreTrainedTokenizerBase) -> Told:
    return Told(plain, tokenizer)


def scored(lm: Told, known: TaskManager | None, task: str, path: Path, answers: list[Any]) -> tuple[Any, Any]:
    """What is recorded of each document, and the summary."""
    lm.answers = answers
    known = known or check_tasks(EvaluationConfig(tasks=(task,), data={task: str(path)}))
    loaded = load_task(known, task, str(path))
    results = run_task(lm, loaded, EvaluationConfig())
    found = [json.loads(line) for line in lines(records(loaded, results)).splitlines()]
    return found, summary(task, results, records(loaded, results))


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


SUMS = [{"question": f"What is {n} x 500?", "answer": f"So {n}*500.\n#### {n * 500:,}"} for n in range(1, 5)]


def test_exact_match_of_solutions(lm: Told, tmp_path: Path) -> None:
    texts = [
        "1*500=<<1*500=500>>500\n#### $500.",  # right, right
        "2*500=1000\n#### 1,000\nThat was 2 times 500",  # right, wrong (500)
        "It makes 1500.00 dollars.",  # no ####: wrong, right
        "I do not know",  # nothing: wrong, wrong
    ]
    found, outcome = scored(lm, None, "gsm8k_full", written(tmp_path, SUMS), texts)
    assert [record["extracted"] for record in found] == [
        {"strict-match": "500", "flexible-extract": "500"}, {"strict-match": "1000", "flexible-extract": "500"},
        {"strict-match": None, "flexible-extract": "1500"}, {"strict-match": None, "flexible-extract": None},
    ]  # fmt: skip
    assert [record["responses"] for record in found] == [[text] for text in texts]
    assert [record["answer"] for record in found] == ["500", "1000", "1500", "2000"]
    assert outcome["metrics"] == {
        "exact_match,strict-match": 2 / 4, "unparsed,strict-match": 2 / 4,
        "exact_match,flexible-extract": 2 / 4, "unparsed,flexible-extract": 1 / 4,
    }  # fmt: skip
    assert outcome["main_metric"] == "exact_match,strict-match"
    assert outcome["higher_is_better"]["unparsed,strict-match"] is False
    prompt, options = lm.asked[0]
    assert prompt == "Question: What is 1 x 500?\n\nAnswer:"
    assert options == {"until": ["Question:"], "do_sample": False, "max_gen_toks": 256}


def test_exact_match_of_chains_of_thought(lm: Told, tmp_path: Path) -> None:
    texts = ["1 times 500.\nThe answer is 500", "The answer is 2. No: the answer is 1,000 (500 + 500)", "1500", "none"]
    found, outcome = scored(lm, None, "gsm8k_cot", written(tmp_path, SUMS), texts)
    assert [record["metrics"]["exact_match,strict-match"] for record in found] == [1, 1, 0, 0]
    assert [record["metrics"]["exact_match,flexible-extract"] for record in found] == [1, 0, 1, 0]
    assert [record["metrics"]["unparsed,strict-match"] for record in found] == [0, 0, 1, 1]
    assert outcome["metrics"]["exact_match,strict-match"] == 0.5


def test_accuracy_of_chains_of_thought(lm: Told, tmp_path: Path) -> None:
    rows = [{"question": "Which is hot?", "choices": ["ice", "fire", "iced fire"], "answer": n % 3} for n in range(5)]
    texts = [
        "Ice is cold.\nThe answer is fire",  # another choice: wrong
        "Fire burns.\nThe answer is fire.",  # right
        "The answer is (C)",  # right
        "The answer is ice or fire",  # both: unparsed, wrong
        "Fire is hot, I think",  # no statement: unparsed, wrong
    ]
    found, outcome = scored(lm, None, "csqa_cot", written(tmp_path, rows), texts)
    assert [record["extracted"] for record in found] == [
        {"none": 1},
        {"none": 1},
        {"none": 2},
        {"none": None},
        {"none": None},
    ]
    assert [record["answer"] for record in found] == [0, 1, 2, 0, 1]
    assert [record["metrics"] for record in found] == [
        {"acc": 0, "unparsed": 0}, {"acc": 1, "unparsed": 0}, {"acc": 1, "unparsed": 0},
        {"acc": 0, "unparsed": 1}, {"acc": 0, "unparsed": 1},
    ]  # fmt: skip
    assert (outcome["metrics"], outcome["main_metric"]) == ({"acc": 2 / 5, "unparsed": 2 / 5}, "acc")


def test_perplexity_of_last_words(lm: Told, tmp_path: Path) -> None:
    known = TaskManager(include_path=str(HARNESS / "lambada"), include_defaults=False)
    path = written(tmp_path, [{"text": "a red ball"}, {"text": "a big dog"}, {"text": "the end"}])
    found, outcome = scored(lm, known, "lambada_standard", path, [(-1.0, True), (-2.0, False), (-6.0, False)])
    # the mean log-likelihood of a last word is (-1 - 2 - 6) / 3 = -3; one of three was the likeliest
    assert outcome["metrics"] == {"perplexity": pytest.approx(math.exp(3)), "acc": pytest.approx(1 / 3)}
    assert outcome["higher_is_better"] == {"perplexity": False, "acc": True}
    assert [record["log_likelihoods"] for record in found] == [[-1.0], [-2.0], [-6.0]]
    assert [record["answer"] for record in found] == [" ball", " dog", " end"]


def test_perplexity_of_running_text(lm: Told, tmp_path: Path) -> None:
    known = TaskManager(include_path=str(HARNESS / "wikitext"), include_defaults=False)
    path = written(tmp_path, [{"page": "one two three"}, {"page": "déjà vu"}])
    found, outcome = scored(lm, known, "wikitext", path, [-8.0, -4.0])
    # 3 + 2 words; 13 bytes and 9 (7 characters, two of them of two bytes): -12 over 5 words and over 22 bytes
    assert outcome["metrics"] == {
        "word_perplexity": pytest.approx(math.exp(12 / 5)),
        "byte_perplexity": pytest.approx(math.exp(12 / 22)),
        "bits_per_byte": pytest.approx(12 / 22 / math.log(2)),
    }
    assert [record["log_likelihoods"] for record in found] == [[-8.0], [-4.0]]


def test_generated_answers_end_to_end(tmp_path: Path) -> None:
    """A tiny model's answers are nonsense, but they are there, recorded and counted."""
    path = written(tmp_path, SUMS[:2])
    config = run_config(tmp_path, ["gsm8k_full"], {"gsm8k_full": path}, evaluation={"limit": None})
    folder = RunFolder.of(config)
    result = evaluate(config, folder)["gsm8k_full"]
    found = [json.loads(line) for line in folder.samples("gsm8k_full").read_text(encoding="utf-8").splitlines()]
    assert (result["documents"], result["template_hash"]) == (2, template_hash("paper"))
    assert all(len(record["responses"][0]) > 50 for record in found)
    wrong = [record["extracted"]["strict-match"] is None for record in found]
    assert result["metrics"]["unparsed,strict-match"] == sum(wrong) / 2


def test_chain_of_thought_needs_a_model_trained_for_it(tmp_path: Path) -> None:
    data = {"sources": [{"path": "train.jsonl"}]}
    files = {"csqa_cot": DATA["csqa_full"]}
    tuning = {"kind": "lora", "rank": 4}
    config = run_config(tmp_path, ["csqa_cot"], files, method="bitune", tuning=tuning, data=data)
    folder = RunFolder.of(config)
    trained_like("bitune").save_pretrained(folder.model, template_hash=template_hash("paper"))
    with pytest.raises(UserError, match=r"csqa_cot .*\(cot, hash .*; train with data.template: cot"):
        evaluate(config, folder)
    both = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"tasks": ("csqa_full",)})})
    trained_like("bitune").save_pretrained(folder.model, template_hash=template_hash("cot"))
    with pytest.raises(UserError, match=r"csqa_full .*\(paper, hash .*; train with data.template: paper"):
        evaluate(both, folder)


def test_number_of_examples_is_part_of_a_score(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in DATA["piqa_full"].read_text(encoding="utf-8").splitlines()]
    test, train = written(tmp_path, rows[:4]), tmp_path / "train.jsonl"
    train.write_text("".join(json.dumps(row) + "\n" for row in rows[4:]), encoding="utf-8")
    hashes = []
    for shots in (None, 0, 2):
        changes = {"num_fewshot": shots, "data": {"piqa_full": {"test": str(test), "fewshot": str(train)}}}
        config = run_config(tmp_path, ["piqa_full"], {}, evaluation={"limit": None, **changes})
        result = evaluate(config, RunFolder.of(config))["piqa_full"]
        assert (result["documents"], result["num_fewshot"]) == (4, shots or 0)
        hashes.append(result["task_hash"])
    assert hashes[0] == hashes[1] != hashes[2]
