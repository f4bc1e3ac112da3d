"""Documents of the paper's tasks: rows of any known form, rendered by the templates that training uses."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import datasets

from pipeline.errors import UserError
from pipeline.evaluate.extraction import solution_number
from pipeline.prepare.config import TemplateTexts
from pipeline.prepare.forms import FORMS, Example
from pipeline.prepare.own_template import own_answers, own_prompt
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


def own_documents(rows: Rows, texts: TemplateTexts) -> datasets.Dataset:
    """Rows of any of these tasks in a template of the user's own: {prompt, choices, answer} or {prompt, answer,
    solution}."""
    return _documents(rows, lambda example: _own(example, texts))


def delimiter(texts: TemplateTexts) -> str:
    """What the harness puts between prompt and answer: the space that the template's answer starts with, if it does."""
    return " " if texts.answer.startswith(" ") else ""


def openings(texts: TemplateTexts) -> list[str]:
    """Where a generated answer ends, besides EOS: at the words with which the next prompt would begin."""
    words = re.split(r"\{[{%#]", texts.prompt, maxsplit=1)[0].strip()
    return [words] if words else []


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


def _own(example: Example, texts: TemplateTexts) -> dict[str, Any]:
    """The document, with answers less the delimiter."""
    prompt = own_prompt(example, texts)
    answers = [answer.removeprefix(delimiter(texts)) for answer in own_answers(example, texts)]
    if example.choices:
        return {"prompt": prompt, "choices": answers, "answer": example.index}
    return {"prompt": prompt, "answer": _solved(example), "solution": answers[0]}


def _choices(example: Example, layout: Layout) -> dict[str, Any]:
    """{prompt, choices, answer}; `answer` is the index of the right choice."""
    if not example.choices:
        raise Fault("no choices")
    if layout == "siqa" and not example.context:
        raise Fault("missing field 'context'")
    answers = [answer.removeprefix(" ") for answer in paper_answers(example, layout)]  # lm-eval adds the space
    return {"prompt": paper_prompt(example, layout), "choices": answers, "answer": example.index}


def _number(example: Example) -> dict[str, Any]:
    return {"prompt": paper_prompt(example), "answer": _solved(example), "solution": example.answer}


def _solved(example: Example) -> str:
    answer = solution_number(example.answer)
    if answer is None:
        raise Fault("no number behind #### in 'answer'")
    return answer


def _reasoned(example: Example) -> dict[str, Any]:
    return {"solution": reasoned_answer(example).removeprefix(" ")}
