"""Documents: every public form of the paper's sets, in the text that training uses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evaluate_inputs import DATA, plain_model
from transformers import PreTrainedTokenizerBase

from pipeline.errors import UserError
from pipeline.evaluate import BranchedLM
from pipeline.evaluate.catalogue import TASKS
from pipeline.evaluate.config import EvaluationConfig
from pipeline.evaluate.documents import choices, mmlu, numbers, reasoned_choices, reasoned_numbers, siqa
from pipeline.evaluate.suite import check_tasks, load_task
from pipeline.prepare.forms import FORMS
from pipeline.prepare.templates import render
from pipeline.prepare.tokens import encode

SIQA = {"context": "Tom fell.", "question": "What now?", "answerA": "cry", "answerB": "run", "answerC": "eat"}
MMLU = {"question": "2 + 2 is", "subject": "arithmetic", "choices": ["1", "2", "3", "4"]}
ARC = {"question": "Which is hot?", "choices": {"text": ["ice", "fire", "snow", "rain"], "label": list("1234")}}
CSQA = {"stem": "Where?", "choices": [{"label": label, "text": label.lower()} for label in "ABCDE"]}

ROWS: dict[str, tuple[str, dict[str, Any], str, list[str], int | str]] = {
    "piqa": ("choices", {"goal": "Boil an egg", "sol1": "Use ice", "sol2": "Use hot water", "label": 1},
             "Question: Boil an egg\n\nChoices:\nUse ice\nUse hot water\n\nAnswer:", ["Use ice", "Use hot water"], 1),
    "arc": ("choices", {**ARC, "answerKey": "2"},
            "Question: Which is hot?\n\nChoices:\nice\nfire\nsnow\nrain\n\nAnswer:",
            ["ice", "fire", "snow", "rain"], 1),
    "csqa": ("choices", {"id": "1", "answerKey": "C", "question": CSQA},
             "Question: Where?\n\nChoices:\na\nb\nc\nd\ne\n\nAnswer:", ["a", "b", "c", "d", "e"], 2),
    "siqa": ("siqa", {**SIQA, "label": "3"},
             "Question: Given the context, answer correctly the question.\nContext: Tom fell.\nQuestion: What now?\n\n"
             "Choices:\n(0) cry\n(1) run\n(2) eat\n\nAnswer:", ["(0)", "(1)", "(2)"], 2),
    "mmlu": ("mmlu", {**MMLU, "answer": 3},
             "Question: 2 + 2 is\n(0). 1\n(1). 2\n(2). 3\n(3). 4\n\nAnswer:", ["(0)", "(1)", "(2)", "(3)"], 3),
    "gsm8k": ("numbers", {"question": "2 + 2?", "answer": "2 + 2 = <<2+2=4>>4\n#### 4"},
              "Question: 2 + 2?\n\nAnswer:", [], "4"),
}  # fmt: skip
READERS: dict[str, Callable[..., Any]] = {"choices": choices, "siqa": siqa, "mmlu": mmlu}


@pytest.mark.parametrize("name", [name for name in ROWS if name != "gsm8k"])
def test_a_row_becomes_the_papers_prompt(name: str) -> None:
    reader, row, prompt, texts, answer = ROWS[name]
    (document,) = READERS[reader]([row])
    assert document == {"prompt": prompt, "choices": texts, "answer": answer}


@pytest.mark.parametrize("name", [name for name in ROWS if name not in ("mmlu", "gsm8k")])
def test_training_uses_the_same_text(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    reader, row, *_ = ROWS[name]
    rendered = render(FORMS["question_choices"].read(row), "paper", tokenizer)
    (document,) = READERS[reader]([row])
    assert rendered.prompt + rendered.answer == f"{document['prompt']} {document['choices'][document['answer']]}"


def test_training_on_solutions_uses_the_same_prompt(tokenizer: PreTrainedTokenizerBase) -> None:
    """GSM8K is trained on as prompt and completion: annotations and #### stay in the answer."""
    row = ROWS["gsm8k"][1]
    trained = render(
        FORMS["prompt_completion"].read({"prompt": row["question"], "completion": row["answer"]}), "paper", tokenizer
    )
    (document,) = numbers([row])
    assert document == {"prompt": trained.prompt, "answer": "4", "solution": trained.answer.removeprefix(" ")}


@pytest.mark.parametrize(("reader", "name"), [(reasoned_choices, "arc"), (reasoned_numbers, "gsm8k")])
def test_chain_of_thought_uses_the_text_of_its_training(
    reader: Callable[..., Any], name: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    row = {**ROWS[name][1], "reasoning": "Think first."}
    trained = render(FORMS["question_choices"].read(row), "cot", tokenizer)
    (document,) = reader([row])
    assert f"{document['prompt']} {document['solution']}" == trained.prompt + trained.answer
    assert trained.answer == f" Think first.\nThe answer is {'fire' if name == 'arc' else '4'}"


@pytest.mark.parametrize("task", DATA)
def test_training_uses_the_same_text_and_tokens_on_real_rows(task: str, tokenizer: PreTrainedTokenizerBase) -> None:
    lm = BranchedLM(plain_model(), tokenizer, add_bos=True)
    rows = [json.loads(line) for line in DATA[task].read_text(encoding="utf-8").splitlines()]
    for row, document in zip(rows, choices(rows), strict=True):
        rendered = render(FORMS["question_choices"].read(row), "paper", tokenizer)
        pair = document["prompt"], f" {document['choices'][document['answer']]}"
        assert (rendered.prompt, rendered.answer) == pair
        (tokens,) = encode([rendered], "paper", tokenizer)
        context, continuation = lm._encode_pair(*pair)
        assert [*context, *continuation, tokenizer.eos_token_id] == tokens.input_ids
        assert len(context) == tokens.prompt_length


@pytest.mark.parametrize(
    ("reader", "row", "message"),
    [
        (choices, {**ARC, "answerKey": "E"}, "document 2.*names no choice"),
        (choices, ARC, "document 2.*missing field 'answer'"),
        (choices, {"question": "Why?", "answer": "so"}, "document 2.*no choices"),
        (siqa, {**SIQA, "context": "", "label": "1"}, "document 2.*context"),
        (numbers, {"question": "2 + 2?", "answer": "4"}, "document 2.*no number behind ####"),
        (reasoned_choices, {**ARC, "answerKey": "1"}, "document 2.*missing field 'reasoning'"),
    ],
)
def test_an_unusable_row_is_refused(reader: Callable[..., Any], row: dict[str, Any], message: str) -> None:
    good = {siqa: {**SIQA, "label": "1"}, numbers: ROWS["gsm8k"][1]}.get(
        reader, {**ARC, "answerKey": "1", "reasoning": "x"}
    )
    with pytest.raises(UserError, match=message):
        reader([good, row])


def write_rows(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    import datasets

    path = folder / name
    if name.endswith(".json"):
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif name.endswith(".jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif name.endswith(".parquet"):
        datasets.Dataset.from_list(rows).to_parquet(path)
    elif name == "splits":
        splits = {"test": datasets.Dataset.from_list(rows), "train": datasets.Dataset.from_list(rows[:1])}
        datasets.DatasetDict(splits).save_to_disk(path)
    else:
        datasets.Dataset.from_list(rows).save_to_disk(path)
    return path


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "rows.parquet", "saved", "splits"])
def test_local_data_of_every_form(tmp_path: Path, name: str) -> None:
    path = write_rows(tmp_path, name, [{**ARC, "answerKey": str(key)} for key in (2, 4, 1)])
    config = EvaluationConfig(tasks=("arc_full",), data={"arc_full": str(path)})
    task = load_task(check_tasks(config), "arc_full", str(path))["tasks"]["arc_full"]
    assert [task.doc_to_target(document) for document in task.eval_docs] == [1, 3, 0]
    assert task.doc_to_text(task.eval_docs[0]).startswith("Question: Which is hot?\n\nChoices:\nice")


@pytest.mark.parametrize("task", TASKS)
def test_every_task_of_ours_loads(tmp_path: Path, task: str) -> None:
    name = task.split("_")[0]
    path = write_rows(tmp_path, "rows.jsonl", [ROWS[name][1]])
    loaded = load_task(check_tasks(EvaluationConfig(tasks=(task,), data={task: str(path)})), task, str(path))
    assert list(loaded["tasks"]) == [task]
    (document,) = loaded["tasks"][task].eval_docs
    assert document["prompt"] == ROWS[name][2]
    assert document["answer"] == ROWS[name][4]
    metrics = ["acc"] if name in ("siqa", "mmlu") else ["acc", "acc_norm"]
    generated = ["exact_match" if name == "gsm8k" else "acc", "unparsed"]
    assert list(loaded["tasks"][task].aggregation()) == (
        generated if "choices" not in document or "_cot" in task else metrics
    )


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**ARC, "answerKey": "1"}) + "\n{broken\n", encoding="utf-8")
    known = check_tasks(EvaluationConfig(tasks=("arc_full",), data={"arc_full": str(path)}))
    with pytest.raises(UserError, match=r"rows.jsonl:2: broken JSON"):
        load_task(known, "arc_full", str(path))


def test_missing_data_is_named() -> None:
    with pytest.raises(UserError, match=r"evaluation.data.arc_full: there is no file or folder nowhere.jsonl"):
        check_tasks(EvaluationConfig(tasks=("arc_full",), data={"arc_full": "nowhere.jsonl"}))


def test_a_collection_without_a_score_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Known:
        def load(self, names: list[str]) -> dict[str, Any]:
            return {"tasks": {"one": object(), "two": object()}}

    with pytest.raises(UserError, match=r"some_tag has no score of its own; name its tasks: one, two"):
        load_task(Known(), "some_tag", None)  # type: ignore[arg-type]


def test_hub_data_is_read_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the name of the hub's data set stands in for the hub, in the same Parquet form."""
    import datasets

    folder = tmp_path / "tau" / "commonsense_qa"
    folder.mkdir(parents=True)
    choices_ = {"text": list("abcde"), "label": list("ABCDE")}
    rows = datasets.Dataset.from_list([{"question": "Where?", "choices": choices_, "answerKey": key} for key in "BE"])
    rows.to_parquet(folder / "validation-00000-of-00001.parquet")
    monkeypatch.chdir(tmp_path)
    loaded = load_task(check_tasks(EvaluationConfig(tasks=("csqa_full",))), "csqa_full", None)
    assert [document["answer"] for document in loaded["tasks"]["csqa_full"].eval_docs] == [1, 4]


def test_no_task_is_an_error() -> None:
    with pytest.raises(UserError, match=r"evaluation\.tasks is empty"):
        check_tasks(EvaluationConfig())
