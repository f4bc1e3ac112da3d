"""Where the segments of a prompt start: in characters, in tokens."""

from itertools import pairwise

import pytest
from transformers import PreTrainedTokenizerFast

from pipeline.prepare.forms import Example
from pipeline.prepare.templates import render
from pipeline.prepare.tokens import encode, encode_prompt

KINDS = ("byte_bpe", "byte_bpe_without_bos")


def pieces(example: Example, template: str, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """The text of each segment of the prompt, decoded from the tokens of the row."""
    text = render(example, template, tokenizer)
    (tokens,) = encode([text], template, tokenizer)
    bounds = [0, *tokens.segments, tokens.prompt_length]
    found = [tokens.input_ids[start:end] for start, end in pairwise(bounds)]
    ids, segments = encode_prompt(text.prompt, template, tokenizer, text.segments)
    assert (ids, segments) == (tokens.input_ids[: tokens.prompt_length], tokens.segments)
    has_bos = tokenizer.bos_token_id is not None and found[0][0] == tokenizer.bos_token_id and template == "paper"
    return [tokenizer.decode(part[has_bos and index == 0 :]) for index, part in enumerate(found)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_input_is_a_segment_behind_its_instruction(
    tokenizers: dict[str, PreTrainedTokenizerFast], kind: str
) -> None:
    example = Example("Name the colour.", "Red.", input="A")  # an A is in "Answer:" too
    assert pieces(example, "paper", tokenizers[kind]) == ["Question: Name the colour.\n", "A\n\nAnswer:"]
    assert len(pieces(Example("Why?", "So."), "paper", tokenizers[kind])) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("question", ["Who?", "0 or 1?", "a", "user"])
def test_the_text_of_the_user_is_a_segment_behind_the_system_message(
    tokenizers: dict[str, PreTrainedTokenizerFast], kind: str, question: str
) -> None:
    system, user = pieces(Example(question, "Me.", system="Be brief."), "chat", tokenizers[kind])
    assert "Be brief." in system and user.startswith(question)
    assert len(pieces(Example(question, "Me."), "chat", tokenizers[kind])) == 1
