"""Documents of the paper's tasks: rows of any known form, rendered by the templates that training uses."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import datasets

from pipeline.errors import UserError
from pipeline.evaluate.extraction import solution_number
from pipeline.prepare.forms import FORMS, Example
from pipeline.prepare.paper import Layout, paper_answers, paper_prompt, reasoned_answer
from pipeline.prepare.record import Fault

Rows = Iterable[Mapping[str, Any]]


def choices(rows: Rows) -> datasets.Dataset:
    """PIQA, ARC, CommonsenseQA: the answer is the text of a choice."""
    return _documents(rows, lambda example: _choices(example, "choices"))


def siqa(rows: Rows) -> datasets.Dataset:
    """Social IQA: the answer is the number of a choice."""
    return _documents(rows, lambda example: _choices(example, "siqa"))


def mmlu(rows: Rows) -> datasets.Dataset:
    """MMLU: the answer is the number of a choice."""
    return _documents(rows, lambda example: _choices(example, "mmlu"))


def numbers(rows: Rows) -> datasets.Dataset:
    """GSM8K: {prompt, answer, solution}; the answer is the number that ends the worked solution."""
    return _documents(rows, _number)


def reasoned_choices(rows: Rows) -> datasets.Dataset:
    """Examples of chain of thought in a prompt: `choices` with a `solution`, so that each row needs its reasoning."""
    return _documents(rows, lambda example: _choices(example, "choices") | _reasoned(example))


def reasoned_numbers(rows: Rows) -> datasets.Dataset:
    """The same for `numbers`."""
    return _documents(rows, lambda example: _number(example) | _reasoned(example))


def _documents(rows: Rows, read: Callable[[Example], dict[str, Any]]) -> datasets.Dataset:
    """What the harness reads of each row.

    Raises:
        UserError: a row that can't be used. Leaving it out would change the score without a word.
    """
    return datasets.Dataset.from_list([_document(number, row, read) for number, row in enumerate(rows, start=1)])


def _document(number: int, row: Mapping[str, Any], read: Callable[[Example], dict[str, Any]]) -> dict[str, Any]:
    try:
        return read(FORMS["question_choices"].read(dict(row)))
    except Fault as fault:
        raise UserError(f"document {number} of the evaluation data: {fault}") from None


def _choices(example: Example, layout: Layout) -> dict[str, Any]:
    """{prompt, choices, answer}; `answer` is the index of the right choice."""
    if not example.choices:
        raise Fault("no choices")
    if layout == "siqa" and not example.context:
        raise Fault("missing field 'context'")
    answers = [answer.removeprefix(" ") for answer in paper_answers(example, layout)]  # lm-eval adds the space
    return {"prompt": paper_prompt(example, layout), "choices": answers, "answer": example.index}


def _number(example: Example) -> dict[str, Any]:
    answer = solution_number(example.answer)
    if answer is None:
        raise Fault("no number behind #### in 'answer'")
    return {"prompt": paper_prompt(example), "answer": answer, "solution": example.answer}


def _reasoned(example: Example) -> dict[str, Any]:
    return {"solution": reasoned_answer(example).removeprefix(" ")}
