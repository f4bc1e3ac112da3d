"""Conversations: what is asked, what is answered, what went before; and where a template shows earlier answers."""

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from pipeline.prepare.config import Form
from pipeline.prepare.example import Example, Turn
from pipeline.prepare.forms import FORMS
from pipeline.prepare.record import Fault
from pipeline.prepare.templates import render

HISTORY = (Turn("user", "Who?"), Turn("assistant", " Me."), Turn("user", "When? "), Turn("assistant", "Now.\n"))
TALK = Example("Where?", "Here.", history=HISTORY)
CALL = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def _say(role: str, content: Any = "text", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def test_messages_of_several_turns() -> None:
    talk = [_say("system", "Be brief."), _say("user", "a"), _say("assistant", "b"), _say("user", "c")]
    example = FORMS["messages"].read({"messages": [*talk, _say("assistant", "d")]})
    assert example == Example("c", "d", system="Be brief.", history=(Turn("user", "a"), Turn("assistant", "b")))


def test_tool_calls_and_results() -> None:
    called = [_say("user", "1?"), _say("assistant", None, tool_calls=[CALL]), _say("tool", "2")]
    example = FORMS["messages"].read({"messages": [*called, _say("assistant", "It is 2.")], "tools": [{"name": "add"}]})
    assert example == Example(
        "2", "It is 2.", asker="tool", tools='[{"name": "add"}]',
        history=(Turn("user", "1?"), Turn("assistant", '{"name": "add", "arguments": {"a": 1}}')),
    )  # fmt: skip


def test_blank_texts_that_may_be_absent_count_as_absent() -> None:
    talk = [_say("system", " "), _say("user", "1?"), _say("assistant", " \n", tool_calls=[CALL]), _say("tool", "\n")]
    example = FORMS["messages"].read({"messages": [*talk, _say("assistant", "It is 2.")]})
    called = Turn("assistant", '{"name": "add", "arguments": {"a": 1}}')
    assert example == Example("", "It is 2.", asker="tool", history=(Turn("user", "1?"), called))
    row = {"instruction": "Hi", "input": " ", "system": "\t", "output": "x"}
    assert FORMS["alpaca"].read(row) == Example("Hi", "x")


def test_a_space_between_parts_is_kept() -> None:
    parts = [{"type": "text", "text": text} for text in ("a", " ", "b")]
    assert FORMS["messages"].read({"messages": [_say("user", parts), _say("assistant", "c")]}) == Example("a b", "c")


def test_an_answer_of_weight_0_is_shown_and_not_learnt() -> None:
    talk = [_say("user", "a"), _say("assistant", "b", weight=0), _say("user", "c"), _say("assistant", "d", weight=1)]
    example = FORMS["messages"].read({"messages": talk})
    assert example.history == (Turn("user", "a"), Turn("assistant", "b", trained=False))
    ended = FORMS["messages"].read({"messages": [*talk, _say("user", "e"), _say("assistant", "f", weight=0)]})
    assert ended == example


def test_sharegpt_with_functions() -> None:
    turns = [("human", "1?"), ("function_call", "add(1)"), ("observation", "2"), ("gpt", "It is 2.")]
    row = {"conversations": [{"from": who, "value": text} for who, text in turns], "system": "Be brief."}
    assert FORMS["sharegpt"].read(row) == Example(
        "2", "It is 2.", system="Be brief.", asker="tool", history=(Turn("user", "1?"), Turn("assistant", "add(1)"))
    )


ASKED, SAID = [_say("user", "a")], [_say("assistant", "b")]


@pytest.mark.parametrize("form", ["prompt_completion", "preference"])
@pytest.mark.parametrize(
    ("prompt", "answer"), [("a", "b"), (ASKED, "b"), ("a", SAID), (ASKED, SAID), (None, ASKED + SAID)]
)
def test_system_and_tools_may_stand_beside_prompt_and_answer(form: Form, prompt: Any, answer: Any) -> None:
    row = {"prompt": prompt, "completion": answer, "chosen": answer, "rejected": "c"}
    beside = {"system": "Be brief.", "tools": [{"name": "add"}]}
    assert FORMS[form].read(row | beside) == Example("a", "b", system="Be brief.", tools='[{"name": "add"}]')
    if isinstance(prompt, list):
        with pytest.raises(Fault, match="two system messages"):
            FORMS[form].read(row | beside | {"prompt": [_say("system", "Be long."), *prompt]})


def test_alpaca_history() -> None:
    row = {"instruction": "Where?", "output": "Here.", "history": [["Who?", " Me."], ["When? ", "Now.\n"]]}
    assert FORMS["alpaca"].read(row) == TALK


def test_the_papers_template_repeats_itself(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    text = render(TALK, "paper", tokenizers["byte_bpe"])
    assert text.prompt == (
        "Question: Who?\n\nAnswer: Me.\n\nQuestion: When? \n\nAnswer: Now.\n\n\nQuestion: Where?\n\nAnswer:"
    )
    assert text.answer == " Here."
    assert text.earlier is not None
    assert [text.prompt[start:end] for start, end in text.earlier] == [" Me.", " Now.\n"]
    assert [text.prompt[start:][:6] for start in text.segments] == [" Me.\n\n", "\n\nQues", " Now.\n", "Questi"]


@pytest.mark.parametrize("eos", ["<|end|>", "<|im_end|>"])
def test_chat_spans_are_what_the_answer_would_be(tokenizers: dict[str, PreTrainedTokenizerFast], eos: str) -> None:
    source = tokenizers["byte_bpe"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=source.backend_tokenizer, eos_token=eos, chat_template=source.chat_template
    )
    text = render(TALK, "chat", tokenizer)
    assert text.earlier is not None
    found = [text.prompt[start:end] for start, end in text.earlier]
    ended = [Example("Who?", " Me."), Example("When? ", "Now.\n", history=HISTORY[:2])]
    assert found == [render(example, "chat", tokenizer).answer for example in ended]
    assert [text.prompt[start:][:3] for start in text.segments] == ["Me.", "Whe", "Now", "Whe"]


def test_answers_that_are_not_trained_have_no_span(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    talk = Example("Where?", "Here.", history=(HISTORY[0], Turn("assistant", "Me.", trained=False)))
    for template in ("paper", "chat"):
        text = render(talk, template, tokenizers["byte_bpe"])  # type: ignore[arg-type]
        assert text.earlier == ()
        assert "Me." in text.prompt


def test_a_template_that_shows_earlier_answers_differently(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    """As templates of reasoning models do, which leave out earlier reasoning."""
    shortening = (
        "{% set shown = messages if add_generation_prompt else messages[:-1] %}"
        "{% for m in shown %}{{ m['content'][:2] }}{% endfor %}>"
        "{% if not add_generation_prompt %}{{ messages[-1]['content'] }}{% endif %}"
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizers["byte_bpe"].backend_tokenizer, eos_token="<|end|>", chat_template=shortening
    )
    assert render(TALK, "chat", tokenizer).earlier is None


@pytest.mark.parametrize(
    ("example", "reason"),
    [
        (Example("a", "b", history=(Turn("assistant", "Hi"), Turn("user", "x"))), "don't alternate"),
        (Example("a", "b", history=(Turn("user", "x"),)), "don't alternate"),
        (Example("a", "b", asker="tool", history=(Turn("user", "x"),)), "tools, for which"),
        (Example("a", "b", tools="[]"), "tools, for which"),
    ],
)
def test_the_papers_template_has_no_place(
    tokenizers: dict[str, PreTrainedTokenizerFast], example: Example, reason: str
) -> None:
    with pytest.raises(Fault, match=reason):
        render(example, "paper", tokenizers["byte_bpe"])


def test_tools_need_a_chat_template_that_shows_them(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    source = tokenizers["byte_bpe"]
    example = Example("a", "b", tools='[{"name": "add"}]')
    with pytest.raises(Fault, match="tools, for which the chat template has no place"):
        render(example, "chat", source)
    shown = PreTrainedTokenizerFast(
        tokenizer_object=source.backend_tokenizer, eos_token="<|end|>",
        chat_template="{{ tools[0]['name'] }}" + str(source.chat_template),
    )  # fmt: skip
    assert render(example, "chat", shown).prompt.startswith("add<|im_start|>user")


@pytest.mark.parametrize("opening", ["{{ bos_token }}{{ bos_token }}", "\n {{ bos_token }}", "{{ bos_token }}"])
def test_a_template_that_opens_oddly_writes_one_bos(
    tokenizers: dict[str, PreTrainedTokenizerFast], opening: str
) -> None:
    source = tokenizers["byte_bpe"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=source.backend_tokenizer, bos_token="<|start|>", eos_token="<|end|>",
        chat_template=opening + str(source.chat_template),
    )  # fmt: skip
    assert render(Example("a", "b"), "chat", tokenizer).prompt.startswith("<|start|><|im_start|>user")
