"""Extraction: which answer a generated text states."""

import pytest

from pipeline.evaluate.extraction import chosen, last_number, number, solution_number, stated_choice, stated_number
from pipeline.prepare.forms import Example
from pipeline.prepare.paper import reasoned_answer

WORDS = ["ice", "hot water", "use hot water", "rain"]
NUMBERS = ["3", "2", "3.5", "-2"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("72", "72"), ("1,000", "1000"), ("$1,234,567.50", "1234567.5"), ("-5", "-5"), ("-$5", "-5"), ("$-5", "-5"),
        ("\u22125", "-5"), ("72.00", "72"), ("0.50", "0.5"), (".5", "0.5"), ("-0", "0"), ("1000", "1000"),
    ],
)  # fmt: skip
def test_a_number_is_written_in_one_way(text: str, expected: str) -> None:
    assert number(text) == expected
    assert last_number(f"It costs {text}.") == expected
    assert solution_number(f"so\n#### {text}") == expected


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("48/2 = <<48/2=24>>24\n#### 72", "72", "72"),
        ("####72", "72", "72"),
        ("#### $1,000.\n", "1000", "1000"),
        ("It is 72.", None, "72"),
        ("#### 72\nThe answer is 5", "72", "5"),
        ("#### 72\n#### 5", "72", "5"),
        ("She has 10-5 left", None, "5"),
        ("from 3 to -4 degrees", None, "-4"),
        ("(7)-2", None, "2"),
        ("3, 4", None, "4"),
        ("1,2345", None, "2345"),
        ("50% of 8 ...", None, "8"),
        ("####\n12 apples", "12", "12"),
        ("#### none", None, None),
        ("", None, None),
        ("no number, $ , .", None, None),
    ],
)
def test_numbers_of_solutions(text: str, strict: str | None, flexible: str | None) -> None:
    assert (solution_number(text), last_number(text)) == (strict, flexible)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 + 2 = 4\nThe answer is 4", "4"),
        ("The answer is 5. No: the answer is $1,200.50", "1200.5"),
        ("Answer: 7 apples, from 3 trees", "7"),
        ("#### 8", "8"),
        ("The answer is clear.\nAnswer:\n\n9", "9"),
        ("The answer is 6. The answer is clear.", "6"),
        ("so 4", None),
    ],
)
def test_the_number_of_the_last_statement(text: str, expected: str | None) -> None:
    assert stated_number(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ice is cold.\nThe answer is ice", 0),
        ("The answer is ICE.", 0),
        ("the final answer is: **hot water**", 1),
        ("**Answer:** `use hot water`", 2),
        ("Answer: hot water", 1),
        ("Answer:\n\nhot  water\nbecause ice is cold", 1),
        ("So the correct answer to the question is rain, because ice is cold.", 3),
        ("The answer is ice. Rain is wet.", 0),
        ("The answer is to use hot water", 2),
        ("The best option is \u201crain\u201d!", 3),
        ("The answer is B", 1), ("The answer is (b).", 1), ("Answer: C) use hot water", 2), ("Answer: d. rain", 3),
        ("The answer is option B because it is hot", 1), ("The answer is 2", 1), ("The answer is (4)", 3),
        ("The answer is ice. Wait, the answer is rain", 3),
        ("The answer is rain. The answer is clear.", 3),
        ("The answer isn't ice. The answer is rain.", 3),
        ("The answer is rain. The answer is not ice.", 3),
        ("It melts.\nHot water.\n", 1), ("rain", 3),
    ],
)  # fmt: skip
def test_a_stated_choice(text: str, expected: int) -> None:
    assert stated_choice(text, WORDS) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "  \n", "I do not know", "The answer is", "The answer is unclear", "The answer is E", "The answer is 5",
        "The answer is water", "The answer is rainy", "The answer is ice-cold", "The answer is not rain",
        "The answer is ice or rain", "The answer is A or B", "Answer: A, B", "Answer: (A) and (C)", "Answer: A) rain",
        "rain falls", "ice\nrain falls", "A dog", "The answer is a dog",
    ],
)  # fmt: skip
def test_no_or_several_choices_are_unparsed(text: str) -> None:
    assert stated_choice(text, WORDS) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("The answer is 3", 0), ("The answer is 2.", 1), ("The answer is 3.5 because", 2), ("The answer is -2", 3),
     ("The answer is about 3.5", 2), ("The answer is 1", 0), ("The answer is 3.7", None), ("Answer: B", 1)],
)  # fmt: skip
def test_a_choice_that_is_a_number_goes_before_counting(text: str, expected: int | None) -> None:
    assert stated_choice(text, NUMBERS) == expected


def test_equal_choices_are_one() -> None:
    choices = ["sun", "rain", "rain."]
    assert [stated_choice(f"The answer is {text}", choices) for text in ("rain", "C", "rain or sun")] == [1, 2, None]
    assert stated_choice("The answer is either rain, I think", choices) == 1
    document = {"choices": choices, "answer": 2}
    assert chosen(document, [1]) == chosen(document, [2]) == {"acc": 1.0, "unparsed": 0.0}
    assert chosen(document, [0]) == {"acc": 0.0, "unparsed": 0.0}
    assert chosen(document, [None]) == {"acc": 0.0, "unparsed": 1.0}


def test_case_decides_between_choices_that_differ_in_nothing_else() -> None:
    choices = ["CC only", "Cc only"]
    assert [stated_choice(f"The answer is {text}", choices) for text in ("CC only", "Cc only.", "cc only")] == [
        0,
        1,
        None,
    ]


@pytest.mark.parametrize("choices", [WORDS, NUMBERS, ["A", "B", "C"], ["Yes.", "No.", "Not known, as ice melts."]])
def test_what_training_writes_is_read_back(choices: list[str]) -> None:
    for index, choice in enumerate(choices):
        example = Example("?", choice, choices=tuple(choices), index=index, reasoning="It may be A, or ice, or 3.")
        assert stated_choice(reasoned_answer(example), choices) == index
