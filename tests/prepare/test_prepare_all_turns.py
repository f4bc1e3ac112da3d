"""data.turns: all. Every answer of a conversation in one row."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from prepare_inputs import KINDS, STORIES, MakeRun
from transformers import PreTrainedTokenizerFast

from pipeline.config import parse_config, signature
from pipeline.errors import UserError
from pipeline.prepare import prepare
from pipeline.prepare.example import Example, Rendered, Turn
from pipeline.prepare.record import Fault
from pipeline.prepare.templates import render
from pipeline.prepare.tokens import Tokens, answer_spans, check_tokens, encode_turns
from pipeline.prepare.turns import turns_of

HISTORY = (Turn("user", "Who barks?"), Turn("assistant", "A dog."), Turn("user", "And who\n\nsays moo?"),
           Turn("assistant", "  A cow, or two.\n"))  # fmt: skip
TALK = Example("Where?", "On the farm.", history=HISTORY)
ANSWERS = ["A dog.", "A cow, or two.\n", "On the farm."]
UNCLOSED = (
    "{{ bos_token }}{% for m in messages %}(start){{ m['role'] }}\n{{ m['content'] }}(stop)\n{% endfor %}"
    "{% if add_generation_prompt %}(start)assistant\n{% endif %}"
)
LLAMA_2 = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ bos_token }}[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }} {{ eos_token }}{% endif %}{% endfor %}"
)
WITHOUT_THOUGHTS = (
    "{% for m in messages %}(start){{ m['role'] }}\n{{ m['content'] }}"
    "{% if loop.last and m['role'] == 'assistant' %}(thought){% endif %}(stop){% endfor %}"
    "{% if add_generation_prompt %}(start)assistant\n{% endif %}"
)


def rows_of(
    example: Example, template: Any, tokenizer: PreTrainedTokenizerFast, turns: Any = "all"
) -> tuple[list[Rendered], Tokens]:
    opening = tokenizer.eos_token if template == "chat" else ""
    parts = turns_of(render(example, template, tokenizer), turns, opening)
    return parts, encode_turns([parts], template, tokenizer)[0]


def decode(ids: list[int], tokenizer: PreTrainedTokenizerFast) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def labels_of(row: Any, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Decoded behind what stands before: on their own some decoders strip a leading space."""
    texts = []
    for start, end in answer_spans(row):
        assert row.input_ids[end - 1] == tokenizer.eos_token_id
        assert tokenizer.eos_token_id not in row.input_ids[start : end - 1]
        before, whole = (decode(row.input_ids[:place], tokenizer) for place in (start, end - 1))
        texts.append(whole.removeprefix(before))
    return texts


@pytest.mark.parametrize("kind", KINDS)
def test_the_labels_of_the_papers_template_are_the_answers(
    kind: str, tokenizers: dict[str, PreTrainedTokenizerFast]
) -> None:
    tokenizer = tokenizers[kind]
    _, row = rows_of(TALK, "paper", tokenizer)
    shared = ":" if row.merged else ""  # a token with the prompt's end in it counts as answer
    assert [label.removeprefix(shared) for label in labels_of(row, tokenizer)] == [f" {answer}" for answer in ANSWERS]
    bos = tokenizer.bos_token_id
    assert bos is None or (row.input_ids[0] == bos and row.input_ids.count(bos) == 1)
    check_tokens(row, len(row.input_ids))


CHAT = [(UNCLOSED, "", "(stop)\n"), (LLAMA_2, " ", " ")]


@pytest.mark.parametrize(("template", "opening", "closing"), CHAT, ids=["unclosed", "llama_2"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_labels_of_chat_templates_are_the_answers(
    kind: str, template: str, opening: str, closing: str, tokenizers: dict[str, PreTrainedTokenizerFast]
) -> None:
    tokenizer = deepcopy(tokenizers[kind])
    tokenizer.chat_template = template
    _, row = rows_of(TALK, "chat", tokenizer)
    assert labels_of(row, tokenizer) == [f"{opening}{answer}{closing}" for answer in ANSWERS]
    check_tokens(row, len(row.input_ids))


def test_the_templates_own_eos_stands_once_behind_each_answer(
    tokenizers: dict[str, PreTrainedTokenizerFast],
) -> None:
    tokenizer = deepcopy(tokenizers["byte_bpe"])
    tokenizer.eos_token = "<|im_end|>"
    example = Example("Where?", "On the farm.", history=HISTORY[:2])
    _, row = rows_of(example, "chat", tokenizer)
    assert labels_of(row, tokenizer) == ["A dog.", "On the farm."]
    whole = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Who barks?"}, {"role": "assistant", "content": "A dog."},
         {"role": "user", "content": "Where?"}, {"role": "assistant", "content": "On the farm."}], tokenize=False
    )  # fmt: skip
    assert decode(row.input_ids, tokenizer) == f"<|start|>{whole}".rstrip("\n")


@pytest.mark.parametrize("template", ["paper", "chat"])
def test_a_turn_is_tokenised_as_when_it_is_asked(template: str, tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    """What is read before an answer doesn't depend on what follows: the first turns of a longer row."""
    tokenizer = tokenizers["byte_bpe"]
    _, whole = rows_of(TALK, template, tokenizer)
    _, short = rows_of(Example(HISTORY[2].text, HISTORY[3].text, history=HISTORY[:2]), template, tokenizer)
    assert whole.input_ids[: len(short.input_ids)] == short.input_ids
    assert (whole.prompt_length, whole.turns[:2]) == (short.prompt_length, short.turns)
    assert whole.segments[: len(short.segments)] == short.segments


def test_segments_are_the_messages_inside_a_turn(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    tokenizer = tokenizers["byte_bpe"]
    history = (*HISTORY[:2], Turn("user", "Who moos?"), Turn("assistant", "Hm.", trained=False))
    parts, row = rows_of(Example("Well?", "A cow.", history=history), "chat", tokenizer)
    assert [len(part.segments) for part in parts] == [0, 2]
    assert [part.prompt[parts[1].segments[0] :][:3] for part in parts[1:]] == ["Hm."]
    texts = [decode(row.input_ids[start:], tokenizer) for start in row.segments]
    assert [text[:5] for text in texts] == ["Hm.<|", "Well?"]
    assert row.turns[0] < row.segments[0] < row.segments[1] < row.turns[1]


@pytest.mark.parametrize("template", ["paper", "chat"])
def test_one_turn_is_the_row_of_last(template: str, tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    tokenizer = tokenizers["byte_bpe"]
    example = Example("Where?", "On the farm.", input="Of animals." if template == "paper" else "")
    assert rows_of(example, template, tokenizer)[1] == rows_of(example, template, tokenizer, "last")[1]


def test_a_template_that_shows_earlier_turns_differently_is_refused(
    tokenizers: dict[str, PreTrainedTokenizerFast],
) -> None:
    tokenizer = deepcopy(tokenizers["byte_bpe"])
    tokenizer.chat_template = WITHOUT_THOUGHTS
    with pytest.raises(Fault, match="the template shows earlier turns differently"):
        rows_of(TALK, "chat", tokenizer)


def test_every_turn_is_checked() -> None:
    check_tokens(Tokens([1, 5, 6, 2, 7, 8, 2], 2, turns=(4, 5)), 7)
    with pytest.raises(Fault, match="no target"):
        check_tokens(Tokens([1, 5, 2, 7, 8, 2], 2, turns=(3, 4)), 9)
    with pytest.raises(Fault, match="no prompt token"):
        check_tokens(Tokens([1, 5, 6, 2, 8, 2], 2, turns=(4, 4)), 9)
    with pytest.raises(Fault, match="holds the EOS token"):
        check_tokens(Tokens([1, 2, 6, 2, 7, 8, 2], 1, turns=(4, 5)), 9)


def messages(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


def test_rows_are_counted_filtered_and_kept(tmp_path: Path, make_run: MakeRun) -> None:
    talk = [("user", "Who barks?"), ("assistant", "A dog."), ("user", "And moos?"), ("assistant", "A cow.")]
    secret = [("user", "Who?"), ("assistant", "Mr Secret."), *talk[2:]]
    unasked = [*talk[:2], ("assistant", "Woof."), *talk[2:]]
    path = tmp_path / "rows.jsonl"
    rows = messages(*talk), messages(*talk[:2]), messages(*secret), messages(*unasked)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    hidden = {"patterns": [{"pattern": "Secret", "where": "answer"}], "answer_tokens": {"max": 40}}
    data = prepare(*make_run(path, turns="all", filters=hidden))
    assert [row.id for row in data.rows()] == ["rows.jsonl:1", "rows.jsonl:2"]
    assert data.manifest["rows"] == {"read": 4, "kept": 2, "rejected": 1, "dropped": 1}
    answers = sum(end - start for row in data.rows() for start, end in answer_spans(row))
    total = sum(len(row.input_ids) for row in data.rows())
    tokens = data.manifest["tokens"]
    assert (tokens["answer"], tokens["prompt"], tokens["total"]) == (answers, total - answers, total)
    assert [len(answer_spans(row)) for row in data.rows()] == [2, 1]


def test_signatures_and_keys_tell_all_from_last(tmp_path: Path, make_run: MakeRun) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(messages(("user", "Who?"), ("assistant", "Me."))) + "\n")
    (last, _), (every, _) = make_run(path), make_run(path, turns="all")
    assert signature(last) != signature(every)
    assert prepare(*make_run(path)).key != prepare(*make_run(path, turns="all")).key


REFUSED = [
    ({"method": "slippery_input"}, r"data.turns = all can't be trained with the method slippery_input \(scope: input"),
    ({"training": {"zero": {"stage": 2}}}, r"data.turns = all can't be trained with training.zero.stage = 2"),
    ({"training": {"zero": {"stage": 3}}}, r"data.turns = all can't be trained with training.zero.stage = 3"),
    ({"data": {"template": "cot"}}, "turns = all needs the template paper or chat"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_what_all_cannot_do_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    data = {"sources": [{"path": "rows.jsonl"}], "turns": "all"} | values.get("data", {})
    with pytest.raises(UserError, match=message):
        parse_config({"model": {"name": str(STORIES)}} | values | {"data": data}, "test")
    parse_config({"model": {"name": str(STORIES)}} | values | {"data": data | {"turns": "last"}}, "test")
