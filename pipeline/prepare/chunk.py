"""The work on one chunk of rows, which depends on no other: render, tokenise, set aside what can't be trained on."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast

from pipeline.prepare.config import DataConfig, Form, SourceConfig
from pipeline.prepare.forms import FORMS, rename
from pipeline.prepare.piece import Piece, Reject, batch_of
from pipeline.prepare.reading import NamedRecord
from pipeline.prepare.record import Fault
from pipeline.prepare.templates import Rendered, render
from pipeline.prepare.tokens import Tokens, check_tokens, encode, hopelessly_long


@dataclass(frozen=True)
class Sample:
    """A rendered row on its way to tokens."""

    name: str
    place: int
    """In its chunk."""
    text: Rendered


@dataclass(frozen=True)
class ChunkPreparer:
    """A chunk of rows in, a piece of prepared rows out; the same piece in any process.

    Args:
        sources: form and configuration of each source, by its number.
    """

    data: DataConfig
    sources: Sequence[tuple[Form, SourceConfig]]
    tokenizer: PreTrainedTokenizerFast

    def __call__(self, chunk: Sequence[NamedRecord]) -> Piece:
        rejects: list[Reject] = []
        samples: list[Sample] = []
        for place, row in enumerate(chunk):
            try:
                text = self._render(row)
            except Fault as fault:
                rejects.append(Reject.of(row.name, fault, place, dropped=False))
                continue
            try:
                self._check_text(text)
            except Fault as fault:
                rejects.append(Reject.of(row.name, fault, place, dropped=True))
                continue
            samples.append(Sample(row.name, place, text))
        return self._tokenise(samples, rejects, len(chunk))

    def _render(self, row: NamedRecord) -> Rendered:
        if row.record.fault or row.record.values is None:
            raise row.record.fault or Fault("not an object")
        form, source = self.sources[row.source]
        example = FORMS[form].read(rename(row.record.values, source.columns))
        return render(example, self.data.template, self.tokenizer)

    def _check_text(self, text: Rendered) -> None:
        if hopelessly_long(text, self.data.max_tokens, self.tokenizer):
            raise Fault("longer than max_tokens")

    def _tokenise(self, samples: list[Sample], rejects: list[Reject], read: int) -> Piece:
        names: list[str] = []
        rows: list[Tokens] = []
        texts = [sample.text for sample in samples]
        encoded = encode(texts, self.data.template, self.tokenizer) if texts else []
        for sample, tokens in zip(samples, encoded, strict=True):
            try:
                check_tokens(tokens, self.data.max_tokens)
            except Fault as fault:
                rejects.append(Reject.of(sample.name, fault, sample.place, dropped=True))
                continue
            names.append(sample.name)
            rows.append(tokens)
        rejects.sort(key=lambda reject: reject.place)
        return Piece(batch_of(names, rows), read, sum(tokens.merged for tokens in rows), rejects)
