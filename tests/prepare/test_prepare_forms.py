# ruff: noqa: E501 (the expected texts are easier to compare unbroken)
"""Every form on rows as the public sets write them, and the paper's templates word for word."""

import json
from pathlib import Path
from typing import Any

import pytest
from prepare_inputs import DATA, MakeRun

from pipeline.errors import UserError
from pipeline.prepare import prepare
from pipeline.prepare.config import SourceConfig
from pipeline.prepare.forms import FORMS, check_columns, detect_form
from pipeline.prepare.mapping import map_row
from pipeline.prepare.paper import paper_answers, paper_prompt, reasoned_answer
from pipeline.prepare.record import Fault
from pipeline.prepare.templates import template_hash


def _first(name: str) -> dict[str, Any]:
    text = (DATA / name).read_text(encoding="utf-8")
    return json.loads(text)[0] if name.endswith(".json") else json.loads(text.splitlines()[0])


ARC = {"id": "x", "question": "Which?", "choices": {"text": ["a", "b", "c", "d"], "label": ["1", "2", "3", "4"]}}
SIQA = {"context": "Tracy left.", "question": "Why?", "answerA": "to eat", "answerB": "to rest", "answerC": "to see"}
GSM8K = {"question": "How many?", "answer": "2+2=<<2+2=4>>4\n#### 4"}
MMLU = {"question": "Find it.", "subject": "algebra", "choices": ["0", "4", "2", "6"], "answer": 1}


def _paper(row: dict[str, Any]) -> str:
    example = FORMS[detect_form([row], "file")].read(row)
    return paper_prompt(example) + paper_answers(example)[example.index if example.choices else 0]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (_first("piqa_validation.jsonl"), "Question: How do I ready a guinea pig cage for it's new occupants?\n\nChoices:\n"
         "Provide the guinea pig with a cage full of a few inches of bedding made of ripped paper strips, you will also "
         "need to supply it with a water bottle and a food dish.\nProvide the guinea pig with a cage full of a few "
         "inches of bedding made of ripped jeans material, you will also need to supply it with a water bottle and a "
         "food dish.\n\nAnswer: Provide the guinea pig with a cage full of a few inches of bedding made of ripped paper "
         "strips, you will also need to supply it with a water bottle and a food dish."),
        (_first("commonsense_qa_train.jsonl"), "Question: The sanctions against the school were a punishing blow, and "
         "they seemed to what the efforts the school had made to change?\n\nChoices:\nignore\nenforce\nauthoritarian\n"
         "yell at\navoid\n\nAnswer: ignore"),
        (_first("arc_challenge_test.jsonl"), "Question: An astronomer observes that a planet rotates faster after a "
         "meteorite impact. Which is the most likely effect of this increase in rotation?\n\nChoices:\nPlanetary density "
         "will decrease.\nPlanetary years will become longer.\nPlanetary days will become shorter.\nPlanetary gravity "
         "will become stronger.\n\nAnswer: Planetary days will become shorter."),
        ({**ARC, "answerKey": "3"}, "Question: Which?\n\nChoices:\na\nb\nc\nd\n\nAnswer: c"),
        ({**SIQA, "label": "3"}, "Question: Given the context, answer correctly the question.\nContext: Tracy left.\n"
         "Question: Why?\n\nChoices:\n(0) to eat\n(1) to rest\n(2) to see\n\nAnswer: (2)"),
        (GSM8K, "Question: How many?\n\nAnswer: 2+2=<<2+2=4>>4\n#### 4"),
        ({"prompt": "Say {hi}", "completion": " hi"}, "Question: Say {hi}\n\nAnswer: hi"),
        ({"instruction": "Add.", "input": "1 and 2", "output": "3"}, "Question: Add.\n1 and 2\n\nAnswer: 3"),
        ({"instruction": "Add.", "input": None, "output": "3"}, "Question: Add.\n\nAnswer: 3"),
        ({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]},
         "Question: Hi\n\nAnswer: Yes"),
        ({**MMLU}, "Question: Find it.\n\nChoices:\n0\n4\n2\n6\n\nAnswer: 4"),
    ],
)  # fmt: skip
def test_paper_templates_word_for_word(row: dict[str, Any], text: str) -> None:
    assert _paper(row) == text


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({**ARC, "answerKey": "3", "reasoning": " Cats are small. \n"}, " Cats are small.\nThe answer is c"),
        ({**SIQA, "label": "3", "reasoning": "She left."}, " She left.\nThe answer is (2)"),
        (GSM8K, " 2+2=<<2+2=4>>4\nThe answer is 4"),
        ({**GSM8K, "reasoning": "Two and two."}, " Two and two.\nThe answer is 4"),
        ({"question": "How many?", "answer": "4", "reasoning": "Two and two."}, " Two and two.\nThe answer is 4"),
    ],
)
def test_chain_of_thought_ends_with_its_answer(row: dict[str, Any], answer: str) -> None:
    assert reasoned_answer(FORMS["question_choices"].read(row)) == answer


@pytest.mark.parametrize("row", [{**ARC, "answerKey": "3"}, {"question": "How many?", "answer": "4"},
                                 {**ARC, "answerKey": "3", "reasoning": ["a", "b"]}])  # fmt: skip
def test_chain_of_thought_without_reasoning_is_a_fault(row: dict[str, Any]) -> None:
    with pytest.raises(Fault, match="missing field 'reasoning'"):
        reasoned_answer(FORMS["question_choices"].read(row))


def test_mmlu_layout_for_evaluation() -> None:
    example = FORMS["question_choices"].read(MMLU)
    assert paper_prompt(example, "mmlu") == "Question: Find it.\n(0). 0\n(1). 4\n(2). 2\n(3). 6\n\nAnswer:"
    assert paper_answers(example, "mmlu") == [" (0)", " (1)", " (2)", " (3)"]


@pytest.mark.parametrize(
    ("row", "index"),
    [
        ({**ARC, "answerKey": "4"}, 3),
        ({**ARC, "answerKey": 1}, 0),
        ({**ARC, "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"}, 1),
        ({**ARC, "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "b"}, 1),
        ({**ARC, "choices": {"text": ["B", "A"], "label": ["A", "B"]}, "answerKey": "A"}, 0),
        ({**SIQA, "label": "1"}, 0),
        ({"goal": "open it", "sol1": "push", "sol2": "pull", "label": 1}, 1),
        ({"goal": "open it", "sol1": "push", "sol2": "pull", "label": 1.0}, 1),
        ({"question": "?", "choices": ["x", "y", "z"], "answer": 2}, 2),
        ({"question": "?", "choices": ["x", "y", "z"], "answer": "C"}, 2),
        ({"question": "?", "choices": ["x", "y", "z"], "answer": "y"}, 1),
        ({"question": "?", "choices": '["x", "y"]', "answer": "1"}, 1),
        ({"question": "?", "A": "x", "B": "y", "C": "z", "D": "w", "answer": "D"}, 3),
    ],
)
def test_the_key_names_the_right_choice(row: dict[str, Any], index: int) -> None:
    example = FORMS["question_choices"].read(row)
    assert example.index == index
    assert example.answer == example.choices[index]


def _turns(*roles: str | None) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": "text"} for role in roles]}


@pytest.mark.parametrize(
    ("form", "row", "reason"),
    [
        ("alpaca", {"instruction": "Add."}, "missing field 'output'"),
        ("alpaca", {"instruction": "Add.", "output": None}, "null field 'output'"),
        ("alpaca", {"instruction": "Add.", "output": " \n"}, "empty field 'output'"),
        ("alpaca", {"instruction": "Add.", "output": 3}, "wrong type in 'output'"),
        ("alpaca", {"instruction": "Add.", "input": ["x"], "output": "3"}, "wrong type in 'input'"),
        ("prompt_completion", {"prompt": "", "completion": "x"}, "empty field 'prompt'"),
        ("messages", {"messages": "hi"}, "wrong type in 'messages'"),
        ("messages", {"messages": [None]}, "wrong type in 'messages'"),
        ("messages", {"messages": []}, "no answer: the last message is not the assistant's"),
        ("messages", _turns("user"), "no answer: the last message is not the assistant's"),
        ("messages", _turns("assistant"), "no question: the answer follows no message of the user or a tool"),
        ("messages", _turns("user", "assistant", "assistant"), "no question: the answer follows no message of the user or a tool"),
        ("messages", _turns("alien", "user", "assistant"), "unknown role"),
        ("messages", _turns(None, "assistant"), "a message without a role"),
        ("messages", {"messages": [*_turns("user")["messages"], {"role": "assistant", "content": "x", "weight": 0}]},
         "every answer has weight 0"),
        ("messages", {"messages": [*_turns("user")["messages"], {"role": "assistant", "content": "x", "weight": 0.5}]},
         "a message's weight is neither 0 nor 1"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "a message with parts that are not text"),
        ("messages", {"tools": "?", **_turns("user", "assistant")}, "'tools' is not a JSON list"),
        ("sharegpt", {"conversations": "hi"}, "wrong type in 'conversations'"),
        ("sharegpt", {"conversations": [{"from": "human", "value": "hi"}]},
         "no answer: the last message is not the assistant's"),
        ("alpaca", {"instruction": "Add.", "output": "3", "history": [["a"]]}, "wrong type in 'history'"),
        ("alpaca", {"instruction": "Add.", "output": "3", "history": [["a", None]]}, "null field 'answer'"),
        ("messages", {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": None}]},
         "null field 'content'"),
        ("question_choices", {"question": "?", "choices": ["x", "y"]}, "missing field 'answer'"),
        ("question_choices", {"question": "?", "choices": ["x", "y"], "answer": None}, "empty field 'answer'"),
        ("question_choices", {"question": "?", "choices": ["x", "y"], "answer": float("nan")}, "empty field 'answer'"),
        ("question_choices", {"question": "?", "choices": ["x", "y"], "answer": True}, "wrong type in 'answer'"),
        ("question_choices", {"question": "?", "choices": ["x", "y"], "answer": 2}, "answer names no choice"),
        ("question_choices", {"question": "?", "choices": ["1", "2"], "answer": "1"}, "ambiguous answer"),
        ("question_choices", {"question": "?", "choices": ["x"], "answer": 0}, "fewer than two choices"),
        ("question_choices", {"question": "?", "choices": ["x", ""], "answer": 0}, "empty choice"),
        ("question_choices", {"question": "?", "choices": ["x", None], "answer": 0}, "wrong type in 'choices'"),
        ("question_choices", {"question": "?", "choices": "x, y", "answer": 0}, "wrong type in 'choices'"),
        ("question_choices", {**ARC, "choices": {"text": ["a"], "label": ["A", "B"]}, "answerKey": "A"},
         "choices and labels differ in number"),
        ("question_choices", {**ARC, "choices": {"text": ["a", "b"], "label": ["A", "A"]}, "answerKey": "A"},
         "two choices with one label"),
        ("question_choices", {**ARC, "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "1"},
         "answer names no choice"),
        ("question_choices", {"goal": "x", "sol1": "a", "sol2": "b", "label": -1}, "answer names no choice"),
    ],
)  # fmt: skip
def test_a_bad_row_has_a_named_reason(form: Any, row: dict[str, Any], reason: str) -> None:
    with pytest.raises(Fault) as caught:
        FORMS[form].read(row)
    assert caught.value.reason == reason


def test_columns_rename_and_hide_what_they_replace() -> None:
    row = {"question": "unused", "goal": "open it", "options": ["a", "b"], "gold": 1}
    columns = {"question": "goal", "choices": "options", "answer": "gold"}
    renamed = map_row(row, SourceConfig(path="x", columns=columns))
    assert renamed == {"question": "open it", "choices": ["a", "b"], "answer": 1}
    example = FORMS["question_choices"].read(renamed)
    assert (example.question, example.answer) == ("open it", "b")


def test_a_missing_column_is_named_beside_the_field_it_makes(tmp_path: Path, make_run: MakeRun) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"text": "a", "reply": "b"}))
    columns = {"prompt": "text", "completion": "answer"}
    source = {"form": "prompt_completion", "columns": columns}
    with pytest.raises(UserError, match=r"missing field 'completion' \(columns.completion is 'answer', which the row"):
        prepare(*make_run(file, source=source))


def test_unknown_field_in_columns_is_named() -> None:
    with pytest.raises(
        UserError, match=r"columns\.outptu: not a field of form alpaca \(history, input, instruction, output, system\)"
    ):
        check_columns(SourceConfig(path="x.json", form="alpaca", columns={"outptu": "answer"}))


def test_detection_names_columns_and_refuses_to_guess() -> None:
    assert detect_form([{"other": 1}, {"instruction": "a", "output": "b"}], "f") == "alpaca"
    with pytest.raises(UserError, match=r"f: the columns \(text\) fit no form"):
        detect_form([{"text": "a"}], "f")
    with pytest.raises(UserError, match=r"fit several forms \(prompt_completion, messages\)"):
        detect_form([{"prompt": "a", "completion": "b", "messages": []}], "f")


def test_template_hash_is_a_constant_of_the_text() -> None:
    """Changes only when a template changes; then models trained before must be refused."""
    assert template_hash("paper") == "db207dc22454ed8c"
    assert template_hash("cot") == "f51bf4ec926f6788"
