"""The harness's command line and Python functions with our model in them."""

import json
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from evaluate_inputs import STORIES, trained_like
from lm_eval.tasks import TaskManager
from transformers import PreTrainedTokenizerBase

from pipeline.cli import main
from pipeline.errors import UserError
from pipeline.evaluate.plugin import CommandLineLM, check, open_lm

TASK = """\
task: last_word
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{text.split(' ')[:-1]|join(' ')}}"
doc_to_target: "{{' '+text.split(' ')[-1]}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    lines = ["Once upon a time there was a dog", "Lily likes her red ball", "Tom ran to the park"]
    file = tmp_path / "text.jsonl"
    file.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines), encoding="utf-8")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "last_word.yaml").write_text(TASK.replace("FILE", str(file)), encoding="utf-8")
    return tmp_path / "tasks"


def samples(model: Any, tasks: Path, **arguments: Any) -> list[Any]:
    known = TaskManager(include_path=str(tasks), include_defaults=False)
    results = lm_eval.simple_evaluate(model, tasks=["last_word"], task_manager=known, **arguments)
    return [sample["filtered_resps"][0] for sample in results["samples"]["last_word"]]


def test_a_base_model_scores_as_in_the_harness(tasks: Path) -> None:
    ours = samples(CommandLineLM.create_from_arg_obj({"pretrained": str(STORIES), "precision": "fp32"}), tasks)
    theirs = samples("hf", tasks, model_args={"pretrained": str(STORIES), "dtype": "float32"}, device="cpu")
    assert [hit for _, hit in ours] == [hit for _, hit in theirs]
    assert [score for score, _ in ours] == pytest.approx([score for score, _ in theirs], abs=1e-4)


def test_a_trained_model_is_read_with_its_branches(
    tmp_path: Path, tasks: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    trained_like("bitune").save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    lm = open_lm(check({"pretrained": str(tmp_path / "model"), "precision": "fp32"}))
    assert (lm.model.method.name, lm.add_bos, lm.precision) == ("bitune", True, "fp32")
    assert samples(lm, tasks) != samples(open_lm(check({"pretrained": str(STORIES), "precision": "fp32"})), tasks)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"pretrained": "x", "bathc": 3}, "unknown key 'bathc'"),
        ({"pretrained": "x", "batch_size": "8"}, "batch_size = '8': must be one of '1' or 'auto'"),
        ({}, "pretrained"),
        ({"pretrained": "x", "precision": "fp16"}, "precision"),
    ],
)
def test_wrong_arguments_are_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check(given)


@pytest.mark.slow
def test_the_command_line_passes_everything_on_and_fails_when_results_are_lost(
    tmp_path: Path, tasks: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in the way").write_text("")
    arguments = ["--model_args", f"pretrained={STORIES}", "precision=fp32", "--include_path", str(tasks)]
    arguments += ["--tasks", "last_word", "--limit", "2", "--output_path", str(tmp_path / "in the way" / "results")]
    assert main(["lm-eval", "run", "--model", "dualtune", *arguments]) == 1
    output = capfd.readouterr()
    assert "|last_word|" in output.out and "limit: 2.0" in output.out
    assert "error: lm-eval: Could not save results aggregated" in output.err


@pytest.mark.parametrize(
    ("option", "words"), [(["--use_cache", "kept"], "no model"), (["--cache_requests", "true"], "few-shot")]
)
def test_caches_that_give_the_answers_of_another_are_refused(
    option: list[str],
    words: str,
    tasks: Path,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--model_args", f"pretrained={STORIES}", "precision=fp32", "--include_path", str(tasks), *option]
    assert main(["lm-eval", "run", "--model", "dualtune", *arguments, "--tasks", "last_word", "--limit", "1"]) == 2
    error = capfd.readouterr().err
    assert f"error: {option[0]}: " in error and words in error
