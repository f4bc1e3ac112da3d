"""Templates: the text of prompt and answer. Training and evaluation both take it from here.

The paper's templates are those of Bitune (arXiv 2405.14862), appendix, table "Templates".
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from jinja2.exceptions import TemplateError

from pipeline.config import digest
from pipeline.errors import UserError
from pipeline.prepare.forms import Example
from pipeline.prepare.record import Fault

if TYPE_CHECKING:  # evaluation's state is asked for without loading the library
    from transformers import PreTrainedTokenizerFast

Layout = Literal["question", "input", "choices", "siqa", "mmlu"]
TemplateName = Literal["paper", "cot", "chat"]

PROMPT = "Question: {body}\n\nAnswer:"
ANSWER = " {answer}"
REASONED = " {reasoning}\nThe answer is {answer}"
"""Chain of thought: the paper's prompts with another answer. The paper does not state its format: this one is ours."""
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

PINNED_DATE = "01 Jan 2025"
"""Some chat templates print today's date; a prepared row must not depend on the day it was made."""


@dataclass(frozen=True)
class Rendered:
    """The text of one row: what the prompt says and what the answer says, special tokens of the template included."""

    prompt: str
    answer: str
    segments: tuple[int, ...] = ()
    """Characters of the prompt where a further segment starts: an instruction's input, the user's text after a system
    message."""


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


def render(example: Example, template: TemplateName, tokenizer: "PreTrainedTokenizerFast") -> Rendered:
    """Prompt and right answer as text, without the BOS and EOS that tokenising adds.

    Raises:
        Fault: the template has no place for something in the example.
    """
    if template == "chat":
        return _chat(example, tokenizer)
    if example.system:
        raise Fault("a system message, for which the paper's templates have no place")
    right = example.index if example.choices else 0
    answer = reasoned_answer(example) if template == "cot" else paper_answers(example)[right]
    return Rendered(paper_prompt(example), answer, paper_segments(example))


def paper_segments(example: Example) -> tuple[int, ...]:
    """Where the input of an instruction starts in the paper's prompt; nowhere in other layouts."""
    if layout_of(example) != "input":
        return ()
    return (PROMPT.index("{body}") + len(body(example, "input")) - len(example.input),)


def _chat(example: Example, tokenizer: "PreTrainedTokenizerFast") -> Rendered:
    layout = layout_of(example)
    _refuse_special(example, tokenizer)
    answer = answers(example, layout)[example.index if example.choices else 0]
    prompt, segments = chat_prompt(example, tokenizer)
    turns = _turns(example, body(example, layout))
    whole = apply_chat_template(tokenizer, [*turns, {"role": "assistant", "content": answer}])
    if not whole.startswith(prompt):
        raise Fault("the chat template renders the prompt differently once it is answered")
    return Rendered(prompt, _close(whole[len(prompt) :], tokenizer), segments)


def _turns(example: Example, text: str) -> list[dict[str, str]]:
    system = [{"role": "system", "content": example.system}] if example.system else []
    return [*system, {"role": "user", "content": text}]


def chat_prompt(example: Example, tokenizer: "PreTrainedTokenizerFast") -> tuple[str, tuple[int, ...]]:
    """The prompt of the chat template, and where the user's text starts if a system message comes before it.

    Raises:
        Fault: the template refuses the conversation.
    """
    text = body(example, layout_of(example))
    prompt = apply_chat_template(tokenizer, _turns(example, text), add_generation_prompt=True)
    if not example.system:
        return prompt, ()
    # Two prompts that differ from the first character of the user's text on tell where that is, whatever the template.
    other = "1" if text.lstrip()[:1] == "0" else "0"
    probe = apply_chat_template(tokenizer, _turns(example, other), add_generation_prompt=True)
    return prompt, (next(place for place, pair in enumerate(zip(prompt, probe, strict=False)) if len(set(pair)) > 1),)


def apply_chat_template(tokenizer: "PreTrainedTokenizerFast", turns: list[dict[str, str]], **options: Any) -> str:
    """The text of a conversation.

    Raises:
        Fault: the template refuses the conversation, for example its system message.
    """
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, date_string=PINNED_DATE, **options))
    except (TemplateError, TypeError, ValueError) as error:
        raise Fault("the chat template refuses the row", str(error)[:120]) from None


def _close(answer: str, tokenizer: "PreTrainedTokenizerFast") -> str:
    """Without the EOS that ends the turn and the line break behind it: tokenising adds the one EOS of every row."""
    head, found, tail = answer.rpartition(tokenizer.eos_token)
    return head if found and not tail.strip() else answer


def _refuse_special(example: Example, tokenizer: "PreTrainedTokenizerFast") -> None:
    """In one text with the template's own, a special token of the row would end a turn or open another."""
    texts = (example.question, example.answer, example.input, example.context, example.system, *example.choices)
    for token in special_tokens(tokenizer):
        if any(token in text for text in texts):
            raise Fault("the text holds a special token of the tokenizer", token)


def special_tokens(tokenizer: "PreTrainedTokenizerFast") -> list[str]:
    """Texts that the tokenizer takes for special tokens."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return sorted(added | set(tokenizer.all_special_tokens))


def check_template(template: TemplateName, tokenizer: "PreTrainedTokenizerFast") -> None:
    """Refuse a template that this tokenizer can't serve, before any row is read.

    Raises:
        UserError: no EOS token, no chat template, or a chat template whose prompt is not a prefix of the whole.
    """
    name = tokenizer.name_or_path
    if tokenizer.eos_token_id is None:
        raise UserError(f"{name}: the tokenizer has no EOS token, so an answer could never end")
    if template != "chat":
        return
    if not tokenizer.chat_template:
        raise UserError(f"{name}: the tokenizer has no chat template, use data.template: paper")
    try:
        _chat(Example("Is water wet?", "Yes."), tokenizer)
    except Fault as fault:
        raise UserError(f"{name}: data.template: chat can't be used: {fault}") from None


def template_hash(template: TemplateName, tokenizer: "PreTrainedTokenizerFast | None" = None) -> str:
    """Identity of a template's text, equal on every machine. Stored with a model, compared at evaluation.

    The paper's templates and `cot` need no tokenizer; the chat template is part of one.
    """
    values: dict[str, Any] = {
        "template": template, "prompt": PROMPT, "answer": ANSWER, "bodies": BODIES,
        "lines": CHOICE_LINES, "answers": CHOICE_ANSWERS,
    }  # fmt: skip
    if template == "cot":
        values["reasoned"] = REASONED
    if template == "chat":
        assert tokenizer is not None
        values["chat"] = [tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token, PINNED_DATE]
    return digest(values)
