"""From text to token ids: one tokenisation of the whole text, split where the answer starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tokenizers import Encoding
from transformers import PreTrainedTokenizerFast

from pipeline.prepare.record import Fault
from pipeline.prepare.templates import Rendered, Template, writes_special_tokens


@dataclass(frozen=True)
class Tokens:
    """A prepared row: `[BOS] prompt answer EOS`, and further turns `prompt answer EOS` where they are learnt."""

    input_ids: list[int]
    prompt_length: int
    """Number of leading prompt tokens, BOS included; of one turn the labels are `input_ids[prompt_length:]`."""
    merged: bool = False
    """A token reaches from the prompt into the answer. It counts as answer."""
    segments: tuple[int, ...] = ()
    """Prompt tokens with which a further segment starts."""
    turns: tuple[int, ...] = ()
    """Of each turn but the first: the place where its prompt starts, and the one where its answer does."""


class HasPrompt(Protocol):
    """A row whose labels are its answers' tokens."""

    @property
    def input_ids(self) -> Sequence[int]: ...
    @property
    def prompt_length(self) -> int: ...
    @property
    def turns(self) -> Sequence[int]: ...


def encode(texts: Sequence[Rendered], template: Template, tokenizer: PreTrainedTokenizerFast) -> list[Tokens]:
    """Token ids of prompts with their answers; exactly one BOS in front (where the tokenizer has one) and one
    EOS behind, placed by position: the tokenizer's own post-processor is not used.

    Special tokens in the text are plain text unless the template writes them, see `writes_special_tokens`.
    """
    return encode_turns([[text] for text in texts], template, tokenizer)


def encode_turns(
    rows: Sequence[Sequence[Rendered]], template: Template, tokenizer: PreTrainedTokenizerFast
) -> list[Tokens]:
    """The same of rows of one or several turns, each turn tokenised on its own: no token reaches over the end of an
    answer, as none does where the model has written it."""
    found = tokenizer(
        [turn.prompt + turn.answer for turns in rows for turn in turns],
        add_special_tokens=False,
        return_attention_mask=False,
        split_special_tokens=not writes_special_tokens(template),
    )
    encoded = zip(found["input_ids"], found.encodings or (), strict=True)
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id  # looked up slowly, so not for each row
    return [
        _join([_split(turn, *next(encoded), None if number else bos, eos) for number, turn in enumerate(turns)], eos)
        for turns in rows
    ]


def encode_prompt(
    prompt: str, template: Template, tokenizer: PreTrainedTokenizerFast, segments: Sequence[int] = ()
) -> tuple[list[int], tuple[int, ...]]:
    """Token ids of a prompt without answer, BOS in front, and the tokens with which its segments start."""
    found = tokenizer(prompt, add_special_tokens=False, split_special_tokens=not writes_special_tokens(template))
    ids = list(found["input_ids"])
    opening = _with_bos(ids, tokenizer.bos_token_id)
    assert found.encodings is not None
    return opening, tuple(_token_at(start, found.encodings[0]) + len(opening) - len(ids) for start in segments)


def _split(text: Rendered, ids: list[int], encoding: Encoding, bos: int | None, eos: int) -> Tokens:
    """Split at the first token that ends behind the prompt's last character.

    The end decides, not the start: some tokenizers leave the space out of a token's span.
    """
    boundary = len(text.prompt)
    split = _token_at(boundary, encoding)
    merged = split < len(ids) and _first_character(split, encoding) < boundary
    prompt = _with_bos(ids[:split], bos)
    segments = tuple(_token_at(start, encoding) + len(prompt) - split for start in text.segments)
    return Tokens([*prompt, *ids[split:], eos], len(prompt), merged, segments)


def _join(turns: list[Tokens], eos: int) -> Tokens:
    """One row of all turns. A chat template's later turns start with the EOS that the answer before them has."""
    row = turns[0]
    for turn in turns[1:]:
        repeated = int(turn.input_ids[0] == eos)
        end, start = len(row.input_ids), len(row.input_ids) - repeated
        row = Tokens(
            [*row.input_ids, *turn.input_ids[repeated:]],
            row.prompt_length,
            row.merged or turn.merged,
            (*row.segments, *(start + place for place in turn.segments)),
            (*row.turns, end, start + turn.prompt_length),
        )
    return row


def _token_at(character: int, encoding: Encoding) -> int:
    """The first token that ends behind a character."""
    found = encoding.char_to_token(character)
    if found is not None:
        return int(found)
    # in no token's span: only now are all spans worth listing
    return next((index for index, (_, end) in enumerate(encoding.offsets) if end > character), len(encoding))


def _first_character(token: int, encoding: Encoding) -> int:
    span = encoding.token_to_chars(token)
    return int(span[0]) if span else 0


def _with_bos(ids: list[int], bos: int | None) -> list[int]:
    """One BOS in front; a chat template may have written it already."""
    return ids if bos is None or ids[:1] == [bos] else [bos, *ids]


def answer_spans(row: HasPrompt) -> list[tuple[int, int]]:
    """Where the answers of a row start and end (EOS included) in its `input_ids`: the tokens that are labels."""
    bounds = [row.prompt_length, *row.turns, len(row.input_ids)]
    return list(zip(bounds[::2], bounds[1::2], strict=True))


def check_tokens(tokens: Tokens, max_tokens: int) -> None:
    """Raise a Fault for a row that can't be trained on; nothing is ever cut."""
    end = 0
    for start, stop in answer_spans(tokens):
        if start - end < 1:
            raise Fault("no prompt token in front of the answer")
        if stop - start < 2:
            raise Fault("no target: the answer has no token but EOS")
        labels, end = tokens.input_ids[start:stop], stop
        if labels.index(labels[-1]) < len(labels) - 1:  # a unigram vocabulary spells special tokens too
            raise Fault("the answer holds the EOS token")
    if len(tokens.input_ids) > max_tokens:
        raise Fault("longer than max_tokens", f"{len(tokens.input_ids)} tokens")


def hopelessly_long(text: Rendered, max_tokens: int, tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether tokenising can be spared: the text is far beyond what `max_tokens` tokens can hold.

    Only for texts of a megabyte and more, which take minutes and gigabytes.
    """
    characters = len(text.prompt) + len(text.answer)
    return characters > 1_000_000 and characters > 2 * max_tokens * max(map(len, tokenizer.get_vocab()))
