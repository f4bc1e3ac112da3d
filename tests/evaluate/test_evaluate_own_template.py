"""Tasks and answers in a template of the user's own: those of its training."""

import json
from pathlib import Path
from typing import Any

import pytest
from evaluate_inputs import STORIES, run_config, trained_like
from transformers import AutoTokenizer

from pipeline.answer import answer
from pipeline.errors import UserError
from pipeline.evaluate import evaluate
from pipeline.evaluate.documents import delimiter, openings
from pipeline.prepare.config import TemplateTexts
from pipeline.prepare.templates import template_hash
from pipeline.run_folder import RunFolder

AS_THE_PAPER = {
    "prompt": "Question: {{ question }}{{ '\n\nChoices:\n' + choices | join('\n') if choices }}\n\nAnswer:",
    "answer": " {{ answer }}",
}
OTHER = {"prompt": "{{ question }}\n{{ choices | join(', ') }}\n=>", "answer": "{{ answer }}"}
TASKS = ["csqa_full", "arc_full"]
GREEDY: dict[str, Any] = {"max_new_tokens": 6, "temperature": 0.0, "seed": 0}


def _scores(runs: Path, template: Any) -> dict[str, Any]:
    data = {"sources": [{"path": "train.jsonl"}], "template": template}
    config = run_config(runs, TASKS, data=data, method="bitune", tuning={"kind": "lora", "rank": 4})
    folder = RunFolder.of(config)
    known = TemplateTexts(**template) if isinstance(template, dict) else template
    trained_like("bitune").save_pretrained(folder.model, template_hash=template_hash(known))
    evaluate(config, folder)
    return {task: folder.samples(task).read_text(encoding="utf-8") for task in TASKS}


def _logs(samples: str) -> list[Any]:
    return [json.loads(line)["log_likelihoods"] for line in samples.splitlines()]


def test_tasks_ask_in_the_template_of_the_training(tmp_path: Path) -> None:
    paper, own, other = (_scores(tmp_path / name, template) for name, template in
                         (("paper", "paper"), ("own", AS_THE_PAPER), ("other", OTHER)))  # fmt: skip
    for task in TASKS:
        assert _logs(own[task]) == _logs(paper[task])
        assert _logs(other[task]) != _logs(paper[task])


def test_a_model_trained_with_another_template_is_refused(tmp_path: Path) -> None:
    data = {"sources": [{"path": "train.jsonl"}], "template": OTHER}
    config = run_config(tmp_path, ["csqa_full"], data=data, method="bitune", tuning={"kind": "lora", "rank": 4})
    folder = RunFolder.of(config)
    trained_like("bitune").save_pretrained(folder.model, template_hash=template_hash("paper"))
    with pytest.raises(UserError, match=r"csqa_full .*\(texts of your own, hash"):
        evaluate(config, folder)


def test_an_answer_is_asked_for_in_it(tmp_path: Path) -> None:
    told = {}
    for name, texts in (("own", AS_THE_PAPER), ("other", OTHER)):
        facts = {"template_hash": template_hash(TemplateTexts(**texts)), "template": texts}
        trained_like("bitune").save_pretrained(tmp_path / name, **facts)
        AutoTokenizer.from_pretrained(STORIES).save_pretrained(tmp_path / name)
        told[name] = answer(str(tmp_path / name), ["A dog?"], **GREEDY, template=None)
    assert told["own"] == answer(str(tmp_path / "own"), ["A dog?"], **GREEDY, template="paper")
    assert told["other"] != told["own"]
    with pytest.raises(UserError, match="--system: 'system' is not empty"):
        answer(str(tmp_path / "own"), ["A dog?"], **GREEDY, template=None, system="Be kind.")


def test_what_the_harness_is_told_of_it() -> None:
    own, other = (TemplateTexts(**texts) for texts in (AS_THE_PAPER, OTHER))
    assert (delimiter(own), delimiter(other)) == (" ", "")
    assert (openings(own), openings(other)) == (["Question:"], [])
