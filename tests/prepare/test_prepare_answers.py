"""Rows with several answers: which one is learnt."""

from typing import Any

import pytest

from pipeline.prepare.config import SourceConfig
from pipeline.prepare.forms import FORMS, detect_form
from pipeline.prepare.mapping import map_row
from pipeline.prepare.record import Fault

RATED = {
    "instruction": "Why?",
    "completions": [
        {"model": "gpt-4", "response": "four", "overall_score": 5.0},
        {"model": "bard", "response": "bard", "overall_score": "7.5"},
    ],
}


def _message(role: str, text: str, *replies: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": role, "text": text, "replies": list(replies), **more}


TREE = {
    "prompt": _message(
        "prompter", "Hi",
        _message("assistant", "worse", rank=1),
        _message("assistant", "gone", rank=-1, deleted=True),
        _message("assistant", "best", _message("prompter", "and?"), rank=0),
    )
}  # fmt: skip
SAID = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "yes"}]


@pytest.mark.parametrize(
    ("row", "form", "question", "answer"),
    [
        (RATED, "completions", "Why?", "bard"),
        (TREE, "tree", "Hi", "best"),
        ({"prompt": "Hi", "chosen": "yes", "rejected": "no"}, "preference", "Hi", "yes"),
        ({"prompt": "Hi", "chosen": SAID, "rejected": []}, "preference", "Hi", "yes"),
        ({"prompt": SAID[:1], "chosen": SAID[1:], "rejected": []}, "preference", "Hi", "yes"),
        ({"chosen": SAID, "rejected": []}, "preference", "Hi", "yes"),
    ],
)
def test_the_form_is_told_and_the_best_answer_taken(row: dict[str, Any], form: str, question: str, answer: str) -> None:
    found = detect_form([row], "x")
    assert found == form
    example = FORMS[found].read(row)
    assert (example.question, example.answer) == (question, answer)


def test_completions_by_a_model() -> None:
    config = SourceConfig(path="x", answered_by="gpt-4")
    assert FORMS["completions"].read(map_row(RATED, config)).answer == "four"
    with pytest.raises(Fault, match="no completion by 'claude'"):
        map_row(RATED, SourceConfig(path="x", answered_by="claude"))


@pytest.mark.parametrize(
    ("form", "row", "reason"),
    [
        ("completions", {"instruction": "Why?", "completions": []}, "empty field 'completions'"),
        ("completions", {"instruction": "Why?", "completions": "no"}, "wrong type in 'completions'"),
        (
            "completions",
            {"instruction": "Why?", "completions": [{"response": "a"}] * 2},
            "a completion without a score",
        ),
        ("tree", {"prompt": _message("narrator", "Hi")}, "unknown role"),
        ("tree", {"prompt": "Hi"}, "wrong type in 'prompt'"),
        ("preference", {"prompt": "Hi", "chosen": 3, "rejected": "no"}, "wrong type in 'chosen'"),
    ],
)
def test_a_row_without_a_best_answer_has_a_reason(form: Any, row: dict[str, Any], reason: str) -> None:
    with pytest.raises(Fault) as caught:
        FORMS[form].read(row)
    assert caught.value.reason == reason
