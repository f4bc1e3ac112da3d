"""Reading: opened sources become chunks of named rows, in the order in which they are prepared."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeVar

from pipeline.errors import UserError
from pipeline.prepare.config import Form
from pipeline.prepare.forms import detect_form
from pipeline.prepare.record import Record
from pipeline.prepare.sources import Source

CHUNK = 500
"""Rows prepared at once: what one process gets, and what one batch of rows.arrow holds at most."""
HEAD = 100
"""Rows in which the form of a source is looked for."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class NamedRecord:
    """A row of a source with the id it will have, `label:line`."""

    name: str
    source: int
    """Number of its source."""
    record: Record


@dataclass(frozen=True)
class OpenedSource:
    """A source whose form is known."""

    source: Source
    form: Form
    number: int
    _records: Iterator[Record]

    @classmethod
    def open(cls, source: Source, number: int) -> "OpenedSource":
        """Look at the first rows.

        Raises:
            UserError: the form can't be told.
        """
        records = source.records()
        head = list(islice(records, HEAD))
        form = source.config.form if source.config.form != "auto" else _detect(source, head)
        return cls(source, form, number, chain(head, records))

    def rows(self) -> Iterator[NamedRecord]:
        """All rows, once."""
        for name, record in _name(self.source.label, self._records):
            yield NamedRecord(name, self.number, record)


def chunks(items: Iterable[Item], size: int = CHUNK) -> Iterator[list[Item]]:
    """Lists of `size` items; the last may be shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _detect(source: Source, head: list[Record]) -> Form:
    rows = [record.values for record in head if record.values is not None]
    if head and not rows:
        raise UserError(f"{source.config.path}: no row can be read; the first, at line {head[0].line}: {head[0].fault}")
    return detect_form(rows, source.config.path)


def _name(label: str, records: Iterable[Record]) -> Iterator[tuple[str, Record]]:
    """Each row's unique name, `label:line`; further rows on one line (JSON without line breaks) are counted on."""
    last, count = "", 0
    for record in records:
        name = f"{label}/{record.file}:{record.line}" if record.file else f"{label}:{record.line}"
        count = count + 1 if name == last else 1
        last = name
        yield name + (f"/{count}" if count > 1 else ""), record
