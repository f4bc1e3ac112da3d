"""The paper's templates: those of Bitune (arXiv 2405.14862), appendix, table "Templates"."""

from typing import Literal

from pipeline.prepare.example import Example, Rendered, Turn
from pipeline.prepare.record import Fault

Layout = Literal["question", "input", "choices", "siqa", "mmlu"]

PROMPT = "Question: {body}\n\nAnswer:"
ANSWER = " {answer}"
REASONED = " {reasoning}\nThe answer is {answer}"
"""Chain of thought: the paper's prompts with another answer. The paper does not state its format: this one is ours."""
SEPARATOR = "\n\n"
"""Between an answer and the question that follows it in a conversation."""
SOLUTION_MARK = "####"
"""What stands before the number at the end of a GSM8K solution."""
BODIES: dict[Layout, str] = {
    "question": "{question}",  # UltraFeedback, GSM8K
    "input": "{question}\n{input}",  # Alpaca with an input
    "choices": "{question}\n\nChoices:\n{choices}",  # PIQA, ARC, CommonsenseQA
    "siqa": "Given the context, answer correctly the question.\nContext: {context}\nQuestion: {question}"
    "\n\nChoices:\n{choices}",
    "mmlu": "{question}\n{choices}",
}
CHOICE_LINES: dict[Layout, str] = {"choices": "{text}", "siqa": "({index}) {text}", "mmlu": "({index}). {text}"}
CHOICE_ANSWERS: dict[Layout, str] = {"choices": "{text}", "siqa": "({index})", "mmlu": "({index})"}


def layout_of(example: Example) -> Layout:
    """The paper's layout for what the example holds. MMLU's is for evaluation only and must be asked for."""
    if example.choices:
        return "siqa" if example.context else "choices"
    return "input" if example.input else "question"


def body(example: Example, layout: Layout) -> str:
    """The question as the user asks it: with its choices, without `Question:` and `Answer:`."""
    lines = [CHOICE_LINES[layout].format(text=text, index=index) for index, text in enumerate(example.choices)]
    return BODIES[layout].format(question=example.question, input=example.input, context=example.context,
                                 choices="\n".join(lines))  # fmt: skip


def answers(example: Example, layout: Layout) -> list[str]:
    """What can be answered: each choice, or the one answer. No leading white space, which the template adds."""
    if not example.choices:
        return [example.answer.lstrip()]
    return [CHOICE_ANSWERS[layout].format(text=text.lstrip(), index=i) for i, text in enumerate(example.choices)]


def paper_prompt(example: Example, layout: Layout | None = None) -> str:
    """The paper's prompt; it ends with `Answer:`."""
    return PROMPT.format(body=body(example, layout or layout_of(example)))


def paper_answers(example: Example, layout: Layout | None = None) -> list[str]:
    """The paper's answers, one per choice (or the one answer); each starts with one space."""
    return [ANSWER.format(answer=answer) for answer in answers(example, layout or layout_of(example))]


def reasoned_answer(example: Example, layout: Layout | None = None) -> str:
    """The chain of thought's answer: reasoning, then `The answer is`, with the text of the right choice or the number.

    The worked solution of a GSM8K row (`steps #### number`) serves as reasoning where the row brings none.

    Raises:
        Fault: the row has no reasoning.
    """
    text = answers(example, layout or layout_of(example))[example.index if example.choices else 0]
    steps, marked, number = ("", "", "") if example.choices else text.rpartition(f"\n{SOLUTION_MARK}")
    reasoning = (example.reasoning or steps).strip()
    if not reasoning:
        raise Fault("missing field 'reasoning'")
    return REASONED.format(reasoning=reasoning, answer=number.strip() if marked else text)


def render_paper(example: Example, answer: str) -> Rendered:
    """The paper's prompt and an answer to it. Earlier turns stand before it in the same form, which is ours: the
    paper has one-turn rows only.

    Raises:
        Fault: a system message, tools, or turns other than the user's and the assistant's in turn.
    """
    if example.system:
        raise Fault("a system message, for which the paper's templates have no place")
    if example.tools or example.asker != "user":
        raise Fault("tools, for which the paper's templates have no place")
    before, starts, spans = _conversation(example.history)
    own = [len(before) + start for start in paper_segments(example)]
    starts = [*starts, *([len(before)] if before else []), *own]
    return Rendered(before + paper_prompt(example), answer, tuple(starts), tuple(spans))


def _conversation(history: tuple[Turn, ...]) -> tuple[str, list[int], list[tuple[int, int]]]:
    """The text of earlier turns, where segments of it start, and the spans of its answers that are trained on."""
    text, starts, spans = "", [], []
    for place, turn in enumerate(history):
        if turn.role != ("user", "assistant")[place % 2]:
            raise Fault("user and assistant don't alternate, as they do in the paper's templates", turn.role)
        if turn.role == "user":
            added = (SEPARATOR if text else "") + PROMPT.format(body=turn.text)
        else:
            added = ANSWER.format(answer=turn.text.lstrip())
            spans += [(len(text), len(text) + len(added))] * turn.trained
        starts += [len(text)] * (place > 0)
        text += added
    if len(history) % 2:
        raise Fault("user and assistant don't alternate, as they do in the paper's templates")
    return text + SEPARATOR if text else "", starts, spans


def paper_segments(example: Example) -> tuple[int, ...]:
    """Where the input of an instruction starts in the paper's prompt; nowhere in other layouts."""
    if layout_of(example) != "input":
        return ()
    return (PROMPT.index("{body}") + len(body(example, "input")) - len(example.input),)
