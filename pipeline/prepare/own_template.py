"""A template of the user's own: Jinja texts of prompt and answer over the fields of an example."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from pipeline.errors import UserError, did_you_mean
from pipeline.prepare.chat import one_bos, refuse_special, spoken, starts_in
from pipeline.prepare.choices import LETTERS
from pipeline.prepare.config import TemplateTexts
from pipeline.prepare.example import Example, Rendered
from pipeline.prepare.record import Fault
from pipeline.prepare.sandbox import fill, names_in
from pipeline.prepare.turns import learnt

if TYPE_CHECKING:  # evaluation's state is asked for without loading the library
    from transformers import PreTrainedTokenizerFast

KEY = "data.template"
PLACES = ("input", "context", "system", "history", "tools")
"""Fields that the prompt must have a place for in rows that hold them: without it, it would ask something else."""
PROMPT_NAMES = ("question", *PLACES, "asker", "choices")
ANSWER_NAMES = (*PROMPT_NAMES, "answer", "letter", "index")
"""`answer` is the right answer's text; of choices, `letter` and `index` (from 0) are the right one's."""
PROBES = (
    Example("Is water wet?", "Of course."),
    Example("Is water wet?", "Of course.", choices=("Not at all.", "Of course."), index=1),
)


def check_names(text: str, part: str) -> None:
    """Refuse a text that is no Jinja or asks for what no row has.

    Args:
        part: `prompt` or `answer`.

    Raises:
        ValueError: with the line.
    """
    allowed = PROMPT_NAMES if part == "prompt" else ANSWER_NAMES
    names = names_in(text)
    for name, line in names.items():
        if name not in allowed:
            hint = ", which only the answer may say" if name in ANSWER_NAMES else did_you_mean(name, allowed)
            raise ValueError(f"line {line}: unknown name {name!r}{hint} (allowed here: {', '.join(allowed)})")
    needed = ("question",) if part == "prompt" else ("answer", "letter", "index")
    if not any(name in names for name in needed):
        raise ValueError("says nothing of the row: needs " + " or ".join(f"{{{{ {name} }}}}" for name in needed))


def check_own(texts: TemplateTexts, tokenizer: "PreTrainedTokenizerFast") -> None:
    """Refuse texts that can't serve any row with this tokenizer.

    Raises:
        UserError: they leave no prompt, change or drop the answer, or write what tokenising adds.
    """
    faults = []
    for probe in PROBES:
        try:
            rendered = render_own(probe, texts, tokenizer)
        except Fault as fault:
            faults.append(fault)
            continue
        if one_bos(rendered.prompt, tokenizer) != rendered.prompt:
            raise UserError(f"{KEY}.prompt: must start with {tokenizer.bos_token} once or not at all")
        if tokenizer.eos_token in rendered.answer:
            raise UserError(f"{KEY}.answer: holds {tokenizer.eos_token}, which is added behind every answer")
    if len(faults) == len(PROBES):
        raise UserError(f"{KEY}: can't be used: {faults[0]}")


def render_own(example: Example, texts: TemplateTexts, tokenizer: "PreTrainedTokenizerFast") -> Rendered:
    """Prompt and right answer as the texts say them.

    Raises:
        Fault: a text holds a special token, the prompt is blank or has no place for something in the example, or the
            answer is not told from others.
    """
    refuse_special(example, tokenizer)
    prompt = own_prompt(example, texts)
    answer = own_answers(example, texts)[example.index if example.choices else 0]
    return Rendered(prompt, answer, own_segments(example, texts, prompt), _earlier(example, texts, prompt))


def own_prompt(example: Example, texts: TemplateTexts) -> str:
    """The prompt.

    Raises:
        Fault: it is blank, or has no place for something in the example.
    """
    names = _names(texts.prompt)
    for place in PLACES:
        if getattr(example, place) and place not in names:
            raise Fault(f"{place!r} is not empty, and {KEY}.prompt has no place for it")
    if example.asker != "user" and "asker" not in names:
        raise Fault(f"a tool's result asks, and {KEY}.prompt does not look at 'asker'")
    prompt = fill(texts.prompt, _values(example), f"{KEY}.prompt")
    if not prompt.strip():
        raise Fault(f"{KEY}.prompt is blank")
    return prompt


def own_answers(example: Example, texts: TemplateTexts) -> list[str]:
    """What can be answered: each choice, or the one answer.

    Raises:
        Fault: an answer is left out or changed. Choices may be named by letter or index, if the prompt shows them.
    """
    if not example.choices:
        answer = example.answer.lstrip()  # the template says what stands before it
        said = _answer(example, texts, {"answer": answer, "letter": "", "index": ""})
        if answer not in said:
            raise Fault(f"{KEY}.answer leaves out or changes the answer")
        return [said]
    choices = [text.lstrip() for text in example.choices]
    named = [{"answer": text, "letter": LETTERS[index], "index": index} for index, text in enumerate(choices)]
    said_all = [_answer(example, texts, names) for names in named]
    if all(text in said for text, said in zip(choices, said_all, strict=True)):
        return said_all
    if "choices" not in _names(texts.prompt) or len(set(said_all)) < len(said_all):
        raise Fault(f"{KEY}.answer does not tell the choices apart")
    return said_all


def _answer(example: Example, texts: TemplateTexts, names: dict[str, Any]) -> str:
    return fill(texts.answer, _values(example) | names, f"{KEY}.answer")


def _values(example: Example) -> dict[str, Any]:
    values = {name: getattr(example, name) for name in PROMPT_NAMES}
    return values | {"history": [{"role": turn.role, "text": spoken(turn)} for turn in example.history]}


@cache
def _names(text: str) -> frozenset[str]:
    return frozenset(names_in(text))


def own_segments(example: Example, texts: TemplateTexts, prompt: str) -> tuple[int, ...]:
    """Where the text of each message but the first starts in the prompt, and the input of an instruction."""
    if not (example.system or example.history or example.input):
        return ()
    return starts_in(prompt, lambda marked: own_prompt(_marked(example, marked), texts))


def _marked(example: Example, marked: Callable[[str], str]) -> Example:
    opened = bool(example.system)
    history = [
        replace(turn, text=marked(turn.text)) if opened or place else turn
        for place, turn in enumerate(example.history)
    ]  # fmt: skip
    question = marked(example.question) if opened or history else example.question
    given = marked(example.input) if example.input else ""
    return replace(example, history=tuple(history), question=question, input=given)


def _earlier(example: Example, texts: TemplateTexts, prompt: str) -> tuple[tuple[int, int], ...] | None:
    """Where the prompt holds each earlier answer just as if the conversation had ended there."""
    try:
        before = learnt(example, "each")[:-1]
        pairs = [(own_prompt(one, texts), own_answers(one, texts)[0]) for one in before]
    except Fault:
        return None
    if not all(prompt.startswith(asked + said) for asked, said in pairs):
        return None
    return tuple((len(asked), len(asked) + len(said)) for asked, said in pairs)
