"""The harness's own tasks on local files: the same requests as from the hub's columns, whatever form the rows have."""

import csv
import json
from pathlib import Path
from typing import Any

import datasets
import lm_eval.tasks
import pytest
from lm_eval.tasks import TaskManager

from pipeline.errors import UserError
from pipeline.evaluate.config import TaskFiles
from pipeline.evaluate.suite import load_task

HARNESS = Path(lm_eval.tasks.__file__).parent
FOLDERS = (
    "piqa",
    "arc",
    "commonsense_qa",
    "siqa",
    "gsm8k",
    "mmlu/default",
    "logiqa",
    "lambada",
    "xstorycloze",
    "openbookqa",
)
Rows = list[dict[str, Any]]

TEXTS = ["ice", "fire", "snow", "rain", "sun"]
PIQA: Rows = [{"goal": f"Boil {n} eggs", "sol1": "Use ice", "sol2": "Use hot water", "label": n % 2} for n in range(9)]
ARC: Rows = [{"id": "x", "question": f"Which {n} are hot?", "choices": {"text": TEXTS[:4], "label": list("ABCD")},
              "answerKey": "ABCD"[n % 4]} for n in range(3)]  # fmt: skip
CSQA: Rows = [{"id": "x", "question": f"Which {n} is hot?", "choices": {"text": TEXTS, "label": list("ABCDE")},
               "answerKey": "ABCDE"[n]} for n in range(3)]  # fmt: skip
SIQA: Rows = [{"context": "Tom fell.", "question": f"What now, {n}?", "answerA": "cry", "answerB": "run",
               "answerC": "eat", "label": str(n + 1)} for n in range(3)]  # fmt: skip
MMLU: Rows = [{"question": f"{n} + 1 is", "subject": "x", "choices": list("2341"), "answer": n} for n in range(3)]
GSM8K: Rows = [{"question": f"{n} + 1?", "answer": f"{n}+1=<<{n}+1={n + 1}>>{n + 1}\n#### {n + 1}"} for n in range(9)]
LOGIQA: Rows = [{"label": "abcd"[n], "context": "Ice melts. So it is wet.", "question": f"Why {n}?",
                 "options": ["It is cold.", "It is hot. Very.", "None", "All"]} for n in range(3)]  # fmt: skip
STORY: Rows = [{**{f"input_sentence_{i}": f"Sentence {i} of {n}." for i in (1, 2, 3, 4)}, "sentence_quiz1": "Good.",
                "sentence_quiz2": "Bad.", "answer_right_ending": n + 1, "story_id": "x"} for n in range(2)]  # fmt: skip
LAMBADA: Rows = [{"text": "once upon a time"}, {"text": "the red ball"}]

OTHER: dict[str, Any] = {
    "arc_challenge": [{"question": row["question"], "choices": TEXTS[:4], "answer": row["answerKey"]} for row in ARC],
    "commonsense_qa": [
        {"id": "x", "answerKey": row["answerKey"], "question": {"stem": row["question"], "question_concept": "x",
         "choices": [{"label": label, "text": text} for label, text in zip("ABCDE", TEXTS, strict=True)]}}
        for row in CSQA
    ],
    "mmlu_anatomy": [{"question": row["question"], **dict(zip("ABCD", row["choices"], strict=True)),
                      "answer": "ABCD"[row["answer"]]} for row in MMLU],
    "piqa": [{"question": row["goal"], "choices": [row["sol1"], row["sol2"]], "answer": row["label"]} for row in PIQA],
    "xstorycloze_en": [
        {**{f"InputSentence{i}": row[f"input_sentence_{i}"] for i in (1, 2, 3, 4)},
         **{f"RandomFifthSentenceQuiz{i}": row[f"sentence_quiz{i}"] for i in (1, 2)},
         "AnswerRightEnding": str(row["answer_right_ending"])} for row in STORY
    ],
    "lambada_standard": "once upon a time\nthe red ball\n",
    "logiqa": "\n" + "\n".join(
        f"{row['label']}\nIce melts.So it is wet.\n{row['question']}\nA.It is cold.\nB.It is hot.Very.\nC.None\nD.All\n"
        for row in LOGIQA),
}  # fmt: skip
"""The same questions in the forms of the authors' own files, or in other known forms."""
HUB = {"piqa": PIQA, "arc_challenge": ARC, "arc_easy": ARC, "commonsense_qa": CSQA, "social_iqa": SIQA, "gsm8k": GSM8K,
       "mmlu_anatomy": MMLU, "logiqa": LOGIQA, "xstorycloze_en": STORY, "lambada_standard": LAMBADA}  # fmt: skip


@pytest.fixture(scope="module")
def known() -> TaskManager:
    """The index of a few of the harness's folders; that of all takes ten seconds."""
    return TaskManager(include_path=[str(HARNESS / folder) for folder in FOLDERS], include_defaults=False)


def written(folder: Path, name: str, rows: Rows | str) -> str:
    path = folder / f"{name}.{'txt' if isinstance(rows, str) else 'jsonl'}"
    path.write_text(rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


def requests(task: Any) -> list[Any]:
    """What is asked of the model, and the right answers."""
    task.build_all_requests(rank=0, world_size=1)
    return [(request.args, task.doc_to_target(request.doc)) for request in task.instances]


def from_the_hub(known: TaskManager, name: str, rows: Rows, shots: int, examples: Rows) -> Any:
    """The harness's task as the harness makes it, with the hub's rows in place of the hub."""
    splits = {"test": datasets.Dataset.from_list(rows), "train": datasets.Dataset.from_list(examples or rows)}
    entry = known.task_index[name].cfg or {}
    split = "fewshot_split" if "fewshot_split" in entry else "training_split"
    none = dict.fromkeys(("training_split", "validation_split", "fewshot_split"))
    changes = {**none, "test_split": "test", split: "train", "custom_dataset": lambda **_: splits}
    task = known.load([{"group": "hub", "task": [{"task": name, **changes}]}])["tasks"][name]
    task.set_config("num_fewshot", shots)
    task.set_fewshot_seed(1234)
    return task


@pytest.mark.parametrize("name", HUB)
def test_requests_equal_those_from_the_hub(known: TaskManager, tmp_path: Path, name: str) -> None:
    expected = requests(from_the_hub(known, name, HUB[name], 0, []))
    forms = [HUB[name], *([OTHER[name]] if name in OTHER else [])]
    for rows in forms:
        loaded = load_task(known, name, written(tmp_path, "rows", rows), 0)
        assert requests(loaded["tasks"][name]) == expected


@pytest.mark.parametrize("name", ["piqa", "gsm8k", "mmlu_anatomy"])
@pytest.mark.parametrize("shots", [1, 3])
def test_few_shot_requests_equal_those_from_the_hub(known: TaskManager, tmp_path: Path, name: str, shots: int) -> None:
    rows, examples = HUB[name][:2], HUB[name][2:] if name != "mmlu_anatomy" else [*HUB[name][2:], *HUB[name][:2]]
    files = TaskFiles(test=written(tmp_path, "test", rows), fewshot=written(tmp_path, "train", examples))
    task = load_task(known, name, files, shots)["tasks"][name]
    found = requests(task)
    assert found == requests(from_the_hub(known, name, rows, shots, examples))
    assert all(args[0].count("Answer:") == shots + 1 for args, _ in found)
    assert task.get_config("num_fewshot") == shots


def test_a_task_keeps_its_own_number_of_examples(known: TaskManager, tmp_path: Path) -> None:
    files = TaskFiles(test=written(tmp_path, "test", GSM8K[:1]), fewshot=written(tmp_path, "train", GSM8K[1:]))
    ((prompt, _), _), *_ = requests(load_task(known, "gsm8k", files)["tasks"]["gsm8k"])
    assert prompt.count("Question:") == 6


@pytest.mark.parametrize("shots", [None, 5])
def test_examples_need_a_file(known: TaskManager, tmp_path: Path, shots: int | None) -> None:
    with pytest.raises(UserError, match=r"evaluation.data.gsm8k: its 5-shot prompt needs a file of examples"):
        load_task(known, "gsm8k", written(tmp_path, "test", GSM8K), shots)


def test_too_few_examples_are_refused(known: TaskManager, tmp_path: Path) -> None:
    files = TaskFiles(test=written(tmp_path, "test", GSM8K[:1]), fewshot=written(tmp_path, "train", GSM8K[1:4]))
    with pytest.raises(UserError, match=r"gsm8k: 5 examples are asked for \(evaluation.num_fewshot\), there are 3"):
        load_task(known, "gsm8k", files, 5)


def test_examples_that_are_scored_are_refused(known: TaskManager, tmp_path: Path) -> None:
    path = written(tmp_path, "rows", GSM8K)
    with pytest.raises(UserError, match=r"evaluation.data.gsm8k: the examples \(fewshot\) are the documents"):
        load_task(known, "gsm8k", TaskFiles(test=path, fewshot=path), 2)


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("piqa", {"goal": "x", "sol1": "a", "sol2": "b"}, "missing field 'answer' (the task reads the columns goal"),
        ("piqa", {"goal": "x", "choices": ["a", "b", "c"], "answer": 1}, "3 choices, not 2"),
        ("arc_easy", {"question": "x", "answer": "a"}, "no choices (the task reads the columns question, choices, ans"),
        ("social_iqa", {**SIQA[0], "context": None}, "missing field 'context'"),
        ("gsm8k", {"question": "x"}, "missing field 'answer' (the task reads the columns question, answer)"),
        ("mmlu_anatomy", {**MMLU[0], "answer": 4}, "answer names no choice"),
        ("logiqa", {**LOGIQA[0], "label": "e"}, "answer names no choice"),
        ("lambada_standard", {"text": "word"}, "fewer than two words"),
        ("lambada_standard", {"txt": "a b"}, "missing field 'text'"),
        ("xstorycloze_en", {**STORY[0], "answer_right_ending": 3}, "field 'answer_right_ending' is neither 1 nor 2"),
        ("xstorycloze_en", {"input_sentence_1": "x"}, "missing field 'InputSentence2'"),
    ],
)  # fmt: skip
def test_a_row_that_would_be_misread_is_refused(
    known: TaskManager, tmp_path: Path, name: str, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        load_task(known, name, written(tmp_path, "rows", [HUB[name][0], row]), 0)
    assert f"rows.jsonl:2: {message}" in str(caught.value)


def test_a_column_that_is_not_there_is_named(known: TaskManager, tmp_path: Path) -> None:
    """The harness would take the column's name for the text."""
    with pytest.raises(UserError, match=r"openbookqa: there is no column 'question_stem', which the task reads"):
        load_task(known, "openbookqa", written(tmp_path, "rows", ARC), 0)


def test_a_broken_text_file_is_named(known: TaskManager, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rows.txt: line 10: 6 lines, not letter, context, question and four options"):
        load_task(known, "logiqa", written(tmp_path, "rows", OTHER["logiqa"][: OTHER["logiqa"].index("D.All", 130)]), 0)
    with pytest.raises(UserError, match=r"rows.txt: only LAMBADA and LogiQA have a text form"):
        load_task(known, "piqa", written(tmp_path, "rows", "Boil an egg\n"), 0)


@pytest.mark.parametrize(
    ("name", "scored", "examples"), [("piqa", "validation", "train"), ("mmlu_anatomy", "test", "dev")]
)
def test_a_folder_with_splits_serves_both(
    known: TaskManager, tmp_path: Path, name: str, scored: str, examples: str
) -> None:
    rows = {scored: HUB[name][:1], examples: HUB[name][1:], "other": HUB[name]}
    splits = datasets.DatasetDict({split: datasets.Dataset.from_list(part) for split, part in rows.items()})
    splits.save_to_disk(tmp_path / "saved")
    files = TaskFiles(test=str(tmp_path / "saved"), fewshot=str(tmp_path / "saved"))
    task = load_task(known, name, files, 2)["tasks"][name]
    assert requests(task) == requests(from_the_hub(known, name, rows[scored], 2, rows[examples]))


def test_tables_are_read(known: TaskManager, tmp_path: Path) -> None:
    path = tmp_path / "anatomy.csv"
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, OTHER["mmlu_anatomy"][0])
        table.writeheader()
        table.writerows(OTHER["mmlu_anatomy"])
    task = load_task(known, "mmlu_anatomy", str(path))["tasks"]["mmlu_anatomy"]
    assert requests(task) == requests(from_the_hub(known, "mmlu_anatomy", MMLU, 0, []))
