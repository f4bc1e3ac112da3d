"""Documents of the paper's tasks: rows of any known form, rendered by the templates that training uses."""

from collections.abc import Iterable, Mapping
from typing import Any

import datasets

from pipeline.errors import UserError
from pipeline.prepare.forms import FORMS
from pipeline.prepare.record import Fault
from pipeline.prepare.templates import Layout, paper_answers, paper_prompt

Rows = Iterable[Mapping[str, Any]]


def choices(rows: Rows) -> datasets.Dataset:
    """PIQA, ARC, CommonsenseQA: the answer is the text of a choice."""
    return _documents(rows, "choices")


def siqa(rows: Rows) -> datasets.Dataset:
    """Social IQA: the answer is the number of a choice."""
    return _documents(rows, "siqa")


def mmlu(rows: Rows) -> datasets.Dataset:
    """MMLU: the answer is the number of a choice."""
    return _documents(rows, "mmlu")


def _documents(rows: Rows, layout: Layout) -> datasets.Dataset:
    """{prompt, choices, answer} of each row; `answer` is the index of the right choice.

    Raises:
        UserError: a row that can't be used. Leaving it out would change the score without a word.
    """
    return datasets.Dataset.from_list([_document(number, row, layout) for number, row in enumerate(rows, start=1)])


def _document(number: int, row: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    try:
        example = FORMS["question_choices"].read(dict(row))
        if not example.choices:
            raise Fault("no choices")
        if layout == "siqa" and not example.context:
            raise Fault("missing field 'context'")
    except Fault as fault:
        raise UserError(f"document {number} of the evaluation data: {fault}") from None
    answers = [answer.removeprefix(" ") for answer in paper_answers(example, layout)]  # lm-eval adds the space
    return {"prompt": paper_prompt(example, layout), "choices": answers, "answer": example.index}
