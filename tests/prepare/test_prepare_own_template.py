"""A template of the user's own: labels, BOS and EOS, what is refused, and what it is part of."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prepare_inputs import DATA, MakeRun
from transformers import PreTrainedTokenizerFast

from pipeline.errors import UserError
from pipeline.prepare import prepare
from pipeline.prepare.config import TemplateTexts
from pipeline.prepare.example import Example
from pipeline.prepare.record import Fault
from pipeline.prepare.templates import check_template, render
from pipeline.prepare.tokens import encode

PLAIN = {"prompt": "### {{ question }}\n### Answer:\n", "answer": "{{ answer }}"}
AS_THE_PAPER = {
    "prompt": "Question: {{ question }}{{ '\n' + input if input }}"
    "{{ '\n\nChoices:\n' + choices | join('\n') if choices }}\n\nAnswer:",
    "answer": " {{ answer }}",
}


def _with(**texts: str) -> TemplateTexts:
    return TemplateTexts(**{**PLAIN, **texts})


def test_the_papers_template_spelt_out_makes_the_papers_rows(make_run: MakeRun) -> None:
    sources = (DATA / "commonsense_qa_validation.jsonl", DATA / "piqa_validation.jsonl", DATA / "alpaca.json")
    paper, own = (prepare(*make_run(*sources, **data)) for data in ({}, {"template": AS_THE_PAPER}))
    assert own.key != paper.key and own.manifest["template_hash"] != paper.manifest["template_hash"]
    assert own.manifest["template"] == AS_THE_PAPER
    assert list(own.rows()) == list(paper.rows()) and len(own) > 300


@pytest.mark.parametrize("turns", ["each", "all"])
def test_conversations(tmp_path: Path, make_run: MakeRun, turns: str) -> None:
    talk = '{"messages": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Ho."}, ' \
        '{"role": "user", "content": "He?"}, {"role": "assistant", "content": "Ha."}]}\n'  # fmt: skip
    (tmp_path / "talk.jsonl").write_text(talk)
    spelt = {
        "prompt": "{% for turn in history %}{{ 'Question: ' + turn.text + '\n\nAnswer:' if turn.role == 'user' else "
        "' ' + turn.text + '\n\n' }}{% endfor %}Question: {{ question }}\n\nAnswer:",
        "answer": " {{ answer }}",
    }
    runs = [make_run(tmp_path / "talk.jsonl", turns=turns, template=template) for template in ("paper", spelt)]
    paper, own = (list(prepare(*run).rows()) for run in runs)
    assert len(own) == (2 if turns == "each" else 1)
    for ours, theirs in zip(own, paper, strict=True):  # segments start at the texts, the paper's at `Question:`
        assert replace(ours, segments=()) == replace(theirs, segments=())


@pytest.mark.parametrize("example", [Example("Wet?", "  Yes. "), Example("é 🙂?", "Ja\n\nDoch"), Example("1+1", "2")])
def test_labels_say_the_answer_between_one_bos_and_one_eos(
    tokenizer: PreTrainedTokenizerFast, example: Example
) -> None:
    if tokenizer.backend_tokenizer.model.__class__.__name__ == "Unigram" and "é" in example.question:
        example = Example("Who?", "I.")  # it knows no such letters
    template = _with(answer="\t{{ answer }}.")
    check_template(template, tokenizer)
    text = render(example, template, tokenizer)
    (tokens,) = encode([text], template, tokenizer)
    ids = list(tokens.input_ids)
    assert ids.count(tokenizer.eos_token_id) == 1 and ids[-1] == tokenizer.eos_token_id
    if tokenizer.bos_token_id is not None:
        assert ids.count(tokenizer.bos_token_id) == 1 and ids[0] == tokenizer.bos_token_id
    whole, before = (
        tokenizer.decode(part, clean_up_tokenization_spaces=False) for part in (ids[:-1], ids[: tokens.prompt_length])
    )
    said = whole.removeprefix(before)
    assert text.answer == f"\t{example.answer.lstrip()}."
    assert said == text.answer or (tokens.merged and said.endswith(text.answer))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"prompt": "{{ question "}, r"data.template.*prompt.*line 1: is not a Jinja template"),
        ({"prompt": "a\n{{ question }} {{ instrction }}"}, r"prompt.*line 2: unknown name 'instrction'"),
        ({"prompt": "{{ question }}{{ answer }}"}, "prompt.*'answer', which only the answer may say"),
        ({"prompt": "Say it:"}, r"prompt.*needs {{ question }}"),
        ({"answer": "Yes."}, r"answer.*says nothing of the row"),
        ({"answer": "{{ answer | nosuch }}"}, r"answer.*is not a Jinja template \(No filter named 'nosuch'"),
        ({"answer": "{{ answer | random }}"}, r"answer.*is not a Jinja template \(No filter named 'random'"),
        ({"promt": "x"}, r"promt.*did you mean"),
        ({"prompt": 3}, "prompt"),
    ],
)
def test_texts_that_no_row_could_use_are_refused_at_once(
    make_run: MakeRun, texts: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=rf"(?s){message}"):
        make_run("x.jsonl", template={**PLAIN, **texts})


def test_an_unknown_name_of_a_template_is_named(make_run: MakeRun) -> None:
    with pytest.raises(UserError, match=r"template.*papr.*one of paper, cot, chat.*paper"):
        make_run("x.jsonl", template="papr")
    with pytest.raises(UserError, match=r"answer"):
        make_run("x.jsonl", template={"prompt": "{{ question }}"})


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"prompt": "<s><s>{{ question }}"}, "data.template.prompt: must start with <s> once or not at all"),
        ({"answer": "{{ answer }}</s>"}, "data.template.answer: holds </s>"),
        (
            {"answer": "{{ answer | upper }}"},
            "data.template: can't be used: data.template.answer leaves out",
        ),
        ({"answer": "{{ answer[:2] }}"}, "data.template: can't be used: data.template.answer leaves out"),
        ({"prompt": "{{ ' ' if question }}"}, "data.template: can't be used: data.template.prompt is blank"),
    ],
)
def test_texts_that_would_train_wrongly_are_refused_before_any_row(
    tokenizers: dict[str, PreTrainedTokenizerFast], texts: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError) as refused:
        check_template(_with(**texts), tokenizers["stories"])
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (Example("Hi", "Ho", system="Be kind."), "'system' is not empty, and data.template.prompt has no place for it"),
        (Example("Hi", "Ho", input="Given"), "'input' is not empty"),
        (Example("Hi", "a</s>b"), "</s>"),
    ],
)
def test_rows_without_a_place_in_it_are_rejected(
    tokenizers: dict[str, PreTrainedTokenizerFast], example: Example, message: str
) -> None:
    with pytest.raises(Fault, match=message):
        render(example, _with(), tokenizers["stories"])


def test_choices_may_be_named_by_their_letters(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    example = Example("Wet?", "yes", choices=("no", "yes"), index=1)
    lettered = _with(
        prompt="{{ question }}{% for text in choices %} {{ loop.index0 }}={{ text }}{% endfor %}:",
        answer=" {{ letter }}",
    )
    text = render(example, lettered, tokenizers["stories"])
    assert (text.prompt, text.answer) == ("Wet? 0=no 1=yes:", " B")
    with pytest.raises(Fault, match="does not tell the choices apart"):
        render(example, _with(answer="{{ letter }}"), tokenizers["stories"])
