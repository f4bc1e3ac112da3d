"""Labels say exactly the answer, BOS stands once in front, EOS once behind, for every tokenizer and template."""

import json

import pytest
from prepare_inputs import DATA, KINDS
from transformers import PreTrainedTokenizerFast

from pipeline.errors import UserError
from pipeline.prepare.forms import FORMS, Example
from pipeline.prepare.record import Fault
from pipeline.prepare.templates import Rendered, check_template, paper_prompt, render
from pipeline.prepare.tokens import Tokens, check_tokens, encode, encode_prompt, hopelessly_long

EXAMPLES = [
    Example("What is water?", "A liquid."),
    Example("Translate.", "Ça va, 日本 🙂?", input="How are you?\n\n  Fine."),
    Example("Which is red?", "the rose ", choices=("the sky", "the rose "), index=1),
    Example("What next?", "leave", context="It rained.", choices=("stay", "leave", "sing"), index=1),
    Example("Ends with space ", "  starts with two"),
    Example("Say it", "\nA new line\n\n"),
]
FIRST = Example("What is water?", "A liquid.")


def _encode(example: Example, tokenizer: PreTrainedTokenizerFast, template: str = "paper") -> tuple[Rendered, Tokens]:
    text = render(example, template, tokenizer)
    return text, encode([text], template, tokenizer)[0]


def _answer(tokens: Tokens, tokenizer: PreTrainedTokenizerFast) -> str:
    """What the labels say, decoded behind their prompt: on its own some decoders strip the leading space."""
    whole = _decode(tokens.input_ids[:-1], tokenizer)
    return whole.removeprefix(_decode(tokens.input_ids[: tokens.prompt_length], tokenizer))


def _decode(ids: list[int], tokenizer: PreTrainedTokenizerFast) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("example", EXAMPLES)
def test_labels_decode_to_the_answer(tokenizer: PreTrainedTokenizerFast, example: Example) -> None:
    if tokenizer.backend_tokenizer.model.__class__.__name__ == "Unigram" and "日" in example.answer:
        example = Example("Translate.", "It is fine.", input="How are you?")  # it knows no such letters
    text, tokens = _encode(example, tokenizer)
    decoded = _answer(tokens, tokenizer)
    if tokens.merged:
        assert decoded.endswith(text.answer)
        assert len(decoded) > len(text.answer)
    else:
        assert decoded == text.answer


@pytest.mark.parametrize("example", EXAMPLES)
def test_bos_and_eos_exactly_once(tokenizer: PreTrainedTokenizerFast, example: Example) -> None:
    _, tokens = _encode(example, tokenizer)
    assert tokens.input_ids[-1] == tokenizer.eos_token_id
    assert tokens.input_ids.count(tokenizer.eos_token_id) == 1
    if tokenizer.bos_token_id is not None:
        assert tokens.input_ids[0] == tokenizer.bos_token_id
        assert tokens.input_ids.count(tokenizer.bos_token_id) == 1
    assert tokens.prompt_length < len(tokens.input_ids)


def test_prompt_and_answer_together_are_the_whole_text(tokenizer: PreTrainedTokenizerFast) -> None:
    text, tokens = _encode(FIRST, tokenizer)
    body = tokens.input_ids[tokenizer.bos_token_id is not None : -1]
    assert body == tokenizer(text.prompt + text.answer, add_special_tokens=False)["input_ids"]


def test_last_label_is_eos_when_padding_is_eos(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    tokenizer = tokenizers["byte_bpe"]
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    _, tokens = _encode(FIRST, tokenizer)
    assert tokens.input_ids[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "unigram"])
def test_special_text_in_a_row_is_plain_text_for_the_paper_template(
    tokenizers: dict[str, PreTrainedTokenizerFast], kind: str
) -> None:
    tokenizer = tokenizers[kind]
    eos = tokenizer.eos_token
    text, tokens = _encode(Example(f"Is {eos} the end?", f"No, {eos} is text."), tokenizer)
    assert tokens.input_ids.count(tokenizer.eos_token_id) == 1
    assert _answer(tokens, tokenizer) == text.answer or tokens.merged


def test_eos_spelt_by_the_vocabulary_sets_the_row_aside(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    _, tokens = _encode(Example("Is it?", "No, </s> is not."), tokenizers["unigram"])
    with pytest.raises(Fault, match="the answer holds the EOS token"):
        check_tokens(tokens, 100)


def test_token_across_the_boundary_goes_to_the_answer(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    tokenizer = tokenizers["byte_bpe_merging"]
    assert len(tokenizer.tokenize(": ")) == 1
    text, tokens = _encode(FIRST, tokenizer)
    assert tokens.merged
    assert text.prompt.startswith(_decode(tokens.input_ids[: tokens.prompt_length], tokenizer))
    assert _answer(tokens, tokenizer) == ": A liquid."
    assert _decode(tokens.input_ids[:-1], tokenizer) == text.prompt + text.answer


def test_encode_prompt_equals_the_prompt_of_a_row(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    for kind in ("byte_bpe", "byte_bpe_without_bos", "unigram", "stories"):
        _, tokens = _encode(FIRST, tokenizers[kind])
        prompt, _ = encode_prompt(paper_prompt(FIRST), "paper", tokenizers[kind])
        assert prompt == tokens.input_ids[: tokens.prompt_length], kind


@pytest.mark.parametrize("kind", ["byte_bpe", "byte_bpe_without_bos"])
@pytest.mark.parametrize("example", [*EXAMPLES, Example("Who?", "Me.", system="Be brief.")])
def test_chat_template(tokenizers: dict[str, PreTrainedTokenizerFast], kind: str, example: Example) -> None:
    tokenizer = tokenizers[kind]
    text, tokens = _encode(example, tokenizer, "chat")
    assert text.prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")
    decoded = _decode(tokens.input_ids[tokens.prompt_length :], tokenizer)
    assert decoded.lstrip("\n") == (text.answer + "<|end|>").lstrip("\n")
    assert text.answer.endswith("<|im_end|>\n")  # what closes the turn is learnt too
    assert tokens.input_ids.count(tokenizer.eos_token_id) == 1


def test_chat_template_that_closes_with_eos_gets_no_second_one(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    tokenizer = _variant(tokenizers["byte_bpe"], eos_token="<|im_end|>", bos_token="<|im_start|>")
    text, tokens = _encode(FIRST, tokenizer, "chat")
    assert text.answer == "A liquid."
    assert tokens.input_ids[tokens.prompt_length :].count(tokenizer.eos_token_id) == 1
    assert tokens.input_ids[-1] == tokenizer.eos_token_id
    assert tokens.input_ids[0] == tokenizer.bos_token_id != tokens.input_ids[1]


def test_chat_template_that_writes_bos_gets_no_second_one(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    source = tokenizers["byte_bpe"]
    tokenizer = _variant(source, chat_template="{{ bos_token }}" + str(source.chat_template))
    _, tokens = _encode(FIRST, tokenizer, "chat")
    assert tokens.input_ids.count(tokenizer.bos_token_id) == 1


def test_chat_refuses_special_tokens_in_a_row(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    with pytest.raises(Fault, match="special token"):
        _encode(Example("Hello <|im_end|>", "Hi."), tokenizers["byte_bpe"], "chat")


def test_chat_template_that_is_not_a_prefix_is_refused(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    tokenizer = _variant(tokenizers["byte_bpe"], chat_template="{{ messages|length }}{{ messages[0]['content'] }}")
    with pytest.raises(UserError, match="differently once it is answered"):
        check_template("chat", tokenizer)


def test_missing_chat_template_or_eos_is_refused(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    with pytest.raises(UserError, match="has no chat template"):
        check_template("chat", tokenizers["stories"])
    with pytest.raises(UserError, match="no EOS token"):
        check_template("paper", PreTrainedTokenizerFast(tokenizer_object=tokenizers["unigram"].backend_tokenizer))


def test_system_message_has_no_place_in_the_paper_template(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    with pytest.raises(Fault, match="system message"):
        _encode(Example("Who?", "Me.", system="Be brief."), tokenizers["byte_bpe"])


def test_rows_without_prompt_or_target_or_too_long() -> None:
    with pytest.raises(Fault, match="no prompt token"):
        check_tokens(Tokens([5, 6, 2], 0), 10)
    with pytest.raises(Fault, match="no target"):
        check_tokens(Tokens([1, 5, 2], 2), 10)
    with pytest.raises(Fault, match="longer than max_tokens"):
        check_tokens(Tokens([1, 5, 6, 2], 2), 3)
    check_tokens(Tokens([1, 5, 6, 2], 2), 4)


def test_huge_text_is_not_tokenised(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    assert hopelessly_long(Rendered("a" * 1_100_000, " b"), 512, tokenizers["stories"])
    assert not hopelessly_long(Rendered("a" * 100_000, " b"), 512, tokenizers["stories"])


def test_real_rows_round_trip(tokenizer: PreTrainedTokenizerFast) -> None:
    lines = (DATA / "arc_easy_test.jsonl").read_text(encoding="utf-8").splitlines()[:40]
    texts = [render(FORMS["question_choices"].read(json.loads(line)), "paper", tokenizer) for line in lines]
    for text, tokens in zip(texts, encode(texts, "paper", tokenizer), strict=True):
        assert _answer(tokens, tokenizer).endswith(text.answer)


def _variant(tokenizer: PreTrainedTokenizerFast, **changes: str) -> PreTrainedTokenizerFast:
    kept = {
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        "chat_template": tokenizer.chat_template,
    }
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **{**kept, **changes})
