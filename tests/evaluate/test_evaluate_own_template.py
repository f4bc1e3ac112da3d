"""Tasks and answers in a template of the user's own: those of its training."""

import json
from pathlib import Path
from typing import Any

import pytest
from evaluate_inputs import DATA, ROOT, STORIES, run_config, trained_like
from transformers import AutoTokenizer

from pipeline.answer import answer
from pipeline.errors import UserError
from pipeline.evaluate import evaluate
from pipeline.evaluate.config import EvaluationConfig, TaskFiles
from pipeline.evaluate.documents import delimiter, openings
from pipeline.evaluate.suite import check_tasks, load_task
from pipeline.prepare.config import TemplateTexts
from pipeline.prepare.forms import FORMS
from pipeline.prepare.own_template import own_prompt
from pipeline.prepare.templates import template_hash
from pipeline.run_folder import RunFolder

AS_THE_PAPER = {
    "prompt": "Question: {{ question }}{{ '\n\nChoices:\n' + choices | join('\n') if choices }}\n\nAnswer:",
    "answer": " {{ answer }}",
}
OTHER = {"prompt": "{{ question }}\n{{ choices | join(', ') }}\n=>", "answer": "{{ answer }}"}
TASKS = ["csqa_full", "arc_full"]
DATA_FOLDER = ROOT / "examples" / "data"
EXAMPLES = DATA_FOLDER / "commonsense_qa_train.jsonl"
GREEDY: dict[str, Any] = {"max_new_tokens": 6, "temperature": 0.0, "seed": 0}


def _scores(runs: Path, template: Any, **evaluation: Any) -> dict[str, Any]:
    data = {"sources": [{"path": "train.jsonl"}], "template": template}
    lora = {"kind": "lora", "rank": 4}
    config = run_config(runs, TASKS, data=data, method="bitune", tuning=lora, evaluation=evaluation)
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


def test_few_shot_prompts_are_in_the_template_of_the_training(tmp_path: Path) -> None:
    files = {task: {"test": str(DATA[task]), "fewshot": str(EXAMPLES)} for task in TASKS}
    shots: dict[str, Any] = {"data": files, "num_fewshot": 2, "limit": 2}
    paper, own, other = (_scores(tmp_path / name, template, **shots) for name, template in
                         (("paper", "paper"), ("own", AS_THE_PAPER), ("other", OTHER)))  # fmt: skip
    for task in TASKS:
        assert _logs(own[task]) == _logs(paper[task])
        assert _logs(other[task]) != _logs(paper[task])


@pytest.mark.parametrize(("task", "test", "examples", "prompt"), [
    ("csqa_full", DATA["csqa_full"], EXAMPLES, OTHER["prompt"]),
    ("gsm8k_full", DATA_FOLDER / "gsm8k_test.jsonl", DATA_FOLDER / "gsm8k_train.jsonl", "Q: {{ question }}\n"),
])  # fmt: skip
def test_each_example_is_asked_and_answered_in_it(task: str, test: Path, examples: Path, prompt: str) -> None:
    own = TemplateTexts(prompt=prompt, answer="-> {{ answer }}")
    config = EvaluationConfig(tasks=(task,))
    loaded = load_task(check_tasks(config), task, TaskFiles(test=str(test), fewshot=str(examples)), 2, own)["tasks"]
    loaded[task].build_all_requests(limit=3, rank=0, world_size=1)
    asked = {request.args[0] for request in loaded[task].instances}
    rows, known = ([FORMS["question_choices"].read(json.loads(line)) for line in file.read_text().splitlines()]
                   for file in (test, examples))  # fmt: skip
    answered = {own_prompt(row, own) + f"-> {row.answer}" for row in known}
    assert len(asked) == 3
    for text in asked:
        first, second = (one for one in answered if f"{one}\n\n" in text)
        assert any(text == f"{a}\n\n{b}\n\n{own_prompt(row, own)}"
                   for a, b in ((first, second), (second, first)) for row in rows[:3])  # fmt: skip


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
