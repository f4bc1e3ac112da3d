"""The model's own chat template."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateError

from pipeline.prepare.example import Example, Rendered, Turn
from pipeline.prepare.paper import answers, body, layout_of
from pipeline.prepare.record import Fault

if TYPE_CHECKING:  # evaluation's state is asked for without loading the library
    from transformers import PreTrainedTokenizerFast

Message = dict[str, str]

PINNED_DATE = "01 Jan 2025"
"""Some chat templates print today's date; a prepared row must not depend on the day it was made."""
PRIVATE = range(0xE000, 0xF8FF)
"""Characters that mean nothing: one of them, put into messages, tells where the template writes these."""


def render_chat(example: Example, tokenizer: "PreTrainedTokenizerFast") -> Rendered:
    """Prompt and answer as the chat template writes them, without the EOS that closes the answer.

    Raises:
        Fault: a text holds a special token, or the template has no place for something in the example.
    """
    refuse_special(example, tokenizer)
    layout = layout_of(example)
    answer = {"role": "assistant", "content": answers(example, layout)[example.index if example.choices else 0]}
    prompt, segments = chat_prompt(example, tokenizer)
    messages, tools = messages_of(example), _tools(example, tokenizer)
    whole = apply_chat_template(tokenizer, [*messages, answer], **tools)
    if not whole.startswith(prompt):
        raise Fault("the chat template renders the prompt differently once it is answered")
    spans = _earlier(example, messages, prompt, tokenizer, tools)
    return Rendered(prompt, close(whole[len(prompt) :], tokenizer), segments, spans)


def messages_of(example: Example) -> list[Message]:
    """The conversation up to the question."""
    system = [{"role": "system", "content": example.system}] if example.system else []
    earlier = [{"role": turn.role, "content": spoken(turn)} for turn in example.history]
    return [*system, *earlier, {"role": example.asker, "content": body(example, layout_of(example))}]


def spoken(turn: Turn) -> str:
    """The text of an earlier turn. What stands before an answer is the template's to say."""
    return turn.text.lstrip() if turn.role == "assistant" else turn.text


def chat_prompt(example: Example, tokenizer: "PreTrainedTokenizerFast") -> tuple[str, tuple[int, ...]]:
    """The prompt of the chat template, and where the text of each message but the first starts in it.

    Raises:
        Fault: the template refuses the conversation.
    """
    messages, tools = messages_of(example), _tools(example, tokenizer)
    prompt = apply_chat_template(tokenizer, messages, add_generation_prompt=True, **tools)
    if len(messages) == 1:
        return prompt, ()

    def render(marked: Callable[[str], str]) -> str:
        later = [{**message, "content": marked(message["content"])} for message in messages[1:]]
        return apply_chat_template(tokenizer, [messages[0], *later], add_generation_prompt=True, **tools)

    return prompt, starts_in(prompt, render)


def starts_in(text: str, render: Callable[[Callable[[str], str]], str]) -> tuple[int, ...]:
    """Where parts of a rendered text start: those that `render` passes through the function it is given. Nowhere if
    the template shows them differently then."""
    mark = next(chr(code) for code in PRIVATE if chr(code) not in text)
    probe = render(lambda part: _mark(part, mark))
    if probe.replace(mark, "") != text:
        return ()
    places = [place for place, character in enumerate(probe) if character == mark]
    return tuple(place - index for index, place in enumerate(places))


def _mark(text: str, mark: str) -> str:
    """The text with a mark before it, behind white space, which some templates strip."""
    lead = len(text) - len(text.lstrip())
    return text[:lead] + mark + text[lead:]


def _earlier(
    example: Example, messages: list[Message], prompt: str, tokenizer: "PreTrainedTokenizerFast", tools: dict[str, Any]
) -> tuple[tuple[int, int], ...] | None:
    """Where the prompt holds each earlier answer just as if the conversation had ended there."""
    first, spans = len(messages) - 1 - len(example.history), []
    for place, turn in enumerate(example.history, start=first):
        if turn.role != "assistant" or not turn.trained:
            continue
        try:
            asked = apply_chat_template(tokenizer, messages[:place], add_generation_prompt=True, **tools)
            said = apply_chat_template(tokenizer, messages[: place + 1], **tools)
        except Fault:
            return None
        closed = asked + close(said[len(asked) :], tokenizer)
        if not said.startswith(asked) or not prompt.startswith(closed):
            return None
        spans.append((len(asked), len(closed)))
    return tuple(spans)


def _tools(example: Example, tokenizer: "PreTrainedTokenizerFast") -> dict[str, Any]:
    if not example.tools:
        return {}
    if "tools" not in str(tokenizer.chat_template):  # it would leave them out without a word
        raise Fault("tools, for which the chat template has no place")
    return {"tools": json.loads(example.tools)}


def apply_chat_template(tokenizer: "PreTrainedTokenizerFast", turns: list[Message], **options: Any) -> str:
    """The text of a conversation.

    Raises:
        Fault: the template refuses the conversation, for example its system message.
    """
    try:
        text = str(tokenizer.apply_chat_template(turns, tokenize=False, date_string=PINNED_DATE, **options))
    except (TemplateError, TypeError, ValueError) as error:
        raise Fault("the chat template refuses the row", str(error)[:120]) from None
    return one_bos(text, tokenizer)


def one_bos(text: str, tokenizer: "PreTrainedTokenizerFast") -> str:
    """The text with one BOS where its template starts with several, or with white space before one."""
    bos = tokenizer.bos_token
    rest, found = text, False
    while bos and rest.lstrip().startswith(bos):
        rest, found = rest.lstrip().removeprefix(bos), True
    return bos + rest if found else text


def close(answer: str, tokenizer: "PreTrainedTokenizerFast") -> str:
    """Without the EOS that ends the turn and the line break behind it: tokenising adds the one EOS of every row."""
    head, found, tail = answer.rpartition(tokenizer.eos_token)
    return head if found and not tail.strip() else answer


def refuse_special(example: Example, tokenizer: "PreTrainedTokenizerFast") -> None:
    """In one text with the template's own, a special token of the row would end a turn or open another."""
    texts = (example.question, example.answer, example.input, example.context, example.system, example.reasoning,
             example.tools, *example.choices, *(turn.text for turn in example.history))  # fmt: skip
    for token in special_tokens(tokenizer):
        if any(token in text for text in texts):
            raise Fault("the text holds a special token of the tokenizer", token)


def special_tokens(tokenizer: "PreTrainedTokenizerFast") -> list[str]:
    """Texts that the tokenizer takes for special tokens."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return sorted(added | set(tokenizer.all_special_tokens))
