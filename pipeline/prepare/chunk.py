"""The work on one chunk of rows, which depends on no other: render, tokenise, set aside what can't be trained on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from transformers import PreTrainedTokenizerFast

from pipeline.prepare.config import DataConfig, Form, SourceConfig
from pipeline.prepare.example import Example, Rendered
from pipeline.prepare.filters import Filters
from pipeline.prepare.fingerprints import columns_for, digest_of, signatures
from pipeline.prepare.forms import FORMS
from pipeline.prepare.mapping import with_origin
from pipeline.prepare.piece import Piece, Reject, batch_of
from pipeline.prepare.reading import NamedRecord
from pipeline.prepare.record import Fault
from pipeline.prepare.templates import render, writes_special_tokens
from pipeline.prepare.tokens import Tokens, check_tokens, encode_turns, hopelessly_long
from pipeline.prepare.turns import learnt, names_of, turns_of
from pipeline.prepare.words import texts_of


@dataclass(frozen=True)
class Sample:
    """A rendered row on its way to tokens."""

    name: str
    place: int
    """Among the rows that its chunk makes."""
    example: Example
    turns: list[Rendered]
    """What is learnt of it."""
    overlap: str | None
    """The evaluation set that it shares words with."""


@dataclass(frozen=True)
class ChunkPreparer:
    """A chunk of rows in, a piece of prepared rows out; the same piece in any process.

    Args:
        sources: form and configuration of each source, by its number.
    """

    data: DataConfig
    sources: Sequence[tuple[Form, SourceConfig]]
    tokenizer: PreTrainedTokenizerFast
    filters: Filters

    def __call__(self, chunk: Sequence[NamedRecord]) -> Piece:
        rejects: list[Reject] = []
        samples: list[Sample] = []
        read = [one for row in chunk for one in self._read(row)]
        opening = str(self.tokenizer.eos_token) if writes_special_tokens(self.data.template) else ""
        for place, (name, example) in enumerate(read):
            try:
                if isinstance(example, Fault):
                    raise example
                text = render(example, self.data.template, self.tokenizer)
                turns = turns_of(text, self.data.turns, opening)
            except Fault as fault:
                rejects.append(Reject.of(name, fault, place, dropped=False))
                continue
            try:
                samples.append(self._sample(name, place, example, text, turns))
            except Fault as fault:
                rejects.append(Reject.of(name, fault, place, dropped=True))
        return self._tokenise(samples, rejects, len(read))

    def _read(self, row: NamedRecord) -> list[tuple[str, Example | Fault]]:
        """What the row makes, with names: examples, or why there is none."""
        try:
            examples = learnt(self._example(row), self.data.turns)
        except Fault as fault:
            return [(row.name, fault)]
        return list(zip(names_of(row.name, len(examples)), examples, strict=True))

    def _example(self, row: NamedRecord) -> Example:
        if row.record.fault or row.record.values is None:
            raise row.record.fault or Fault("not an object")
        form, config = self.sources[row.source]
        try:
            return FORMS[form].read(row.record.values)
        except Fault as fault:
            raise with_origin(fault, config) from None

    def _sample(self, name: str, place: int, example: Example, text: Rendered, turns: list[Rendered]) -> Sample:
        if hopelessly_long(text, self.data.max_tokens, self.tokenizer):
            raise Fault("longer than max_tokens")
        for turn in turns:
            self.filters.check_text(example, turn)
        return Sample(name, place, example, turns, self.filters.overlap(example))

    def _tokenise(self, samples: list[Sample], rejects: list[Reject], read: int) -> Piece:
        kept: list[Sample] = []
        rows: list[Tokens] = []
        turns = [sample.turns for sample in samples]
        encoded = encode_turns(turns, self.data.template, self.tokenizer) if turns else []
        for sample, tokens in zip(samples, encoded, strict=True):
            try:
                check_tokens(tokens, self.data.max_tokens)
                self.filters.check_tokens(tokens)
            except Fault as fault:
                rejects.append(Reject.of(sample.name, fault, sample.place, dropped=True))
                continue
            kept.append(sample)
            rows.append(tokens)
        rejects.sort(key=lambda reject: reject.place)
        overlaps = [(sample.name, sample.overlap) for sample in kept if sample.overlap]
        return Piece(self._batch(kept, rows), read, sum(tokens.merged for tokens in rows), rejects, overlaps)

    def _batch(self, samples: list[Sample], rows: list[Tokens]) -> pa.RecordBatch:
        """The rows, with the fingerprints by which duplicates are found."""
        batch = batch_of([sample.name for sample in samples], rows)
        config = self.filters.config.duplicates
        for field in columns_for(config):
            values: list[Any]
            if field.name == "place":
                values = [sample.place for sample in samples]
            elif field.name == "exact":
                values = [digest_of(tokens) for tokens in rows]
            else:
                values = signatures((" ".join(texts_of(sample.example)) for sample in samples), config)
            batch = batch.append_column(field, pa.array(values, field.type))
        return batch
