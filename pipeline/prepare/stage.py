"""The stage: sources -> prepared rows in the cache, with a manifest in the run folder."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from transformers import PreTrainedTokenizerFast

from pipeline.config import RunConfig
from pipeline.errors import UserError
from pipeline.files import write_json
from pipeline.model import load_tokenizer
from pipeline.model.config import ModelConfig
from pipeline.prepare.cache import REJECTS, PreparedData, Writer, load, publish
from pipeline.prepare.config import DataConfig, Form
from pipeline.prepare.forms import FORMS, check_columns, detect_form
from pipeline.prepare.identity import prepared_key, tokenizer_hash
from pipeline.prepare.manifest import Tally, check_loss, reasons
from pipeline.prepare.record import Fault, Record
from pipeline.prepare.sources import Source, open_sources
from pipeline.prepare.templates import Rendered, check_template, render, template_hash
from pipeline.prepare.tokens import check_tokens, encode, hopelessly_long
from pipeline.run_folder import RunFolder
from pipeline.versions import versions

CHUNK = 256
"""Rows tokenised at once."""
HEAD = 100
"""Rows in which the form of a source is looked for."""

Item = TypeVar("Item")


def prepare(config: RunConfig, folder: RunFolder) -> PreparedData:
    """Prepare the run's data, or find them in the cache.

    Returns:
        Rows in the order of the sources; a row that can't be used is counted in `.manifest` and listed in
        rejects.jsonl beside the rows.

    Raises:
        UserError: a source, its form, its columns or the tokenizer can't be used, or no row is left.
        StageError: more rows than `data.max_dropped_percent` are lost, or the cache can't be written.
    """
    if config.data is None:
        raise UserError("data is missing: there is nothing to prepare without data.sources")
    tokenizer = usable_tokenizer(config.model, config.data)
    for source in config.data.sources:
        check_columns(source)
    sources = open_sources(config.data.sources)
    path = config.paths.cache / "prepared" / prepared_key(config.data, sources, tokenizer)
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    found = load(path)
    prepared = found or publish(path, _Preparation(config.data, sources, tokenizer, path.name, console).write)
    write_json(folder.prepare_manifest, {**prepared.manifest, "paths": {s.label: s.config.path for s in sources}})
    console.print(_summary(prepared, reused=found is not None))
    check_loss(prepared.manifest, config.data.max_dropped_percent, prepared.path / REJECTS)
    return prepared


def usable_tokenizer(model: ModelConfig, data: DataConfig) -> PreTrainedTokenizerFast:
    """The model's tokenizer, once it is known to serve the template.

    Raises:
        UserError: no such model, no fast tokenizer, no EOS, or no usable chat template.
    """
    tokenizer = load_tokenizer(model)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UserError(f"model.name = {model.name!r}: has no fast tokenizer (tokenizer.json)")
    check_template(data.template, tokenizer)
    return tokenizer


@dataclass(frozen=True)
class _Preparation:
    data: DataConfig
    sources: list[Source]
    tokenizer: PreTrainedTokenizerFast
    key: str
    console: Console

    def write(self, writer: Writer) -> dict[str, Any]:
        """Put all rows into the writer; the manifest of what was put."""
        tally, used = Tally(), []
        columns = (
            SpinnerColumn(),
            TextColumn("prepare {task.description}: {task.completed} rows"),
            TimeElapsedColumn(),
        )
        quiet = not self.console.is_terminal
        with Progress(*columns, console=self.console, transient=True, disable=quiet) as progress:
            for source in self.sources:
                task = progress.add_task(source.label, total=None)
                form, chunks = self._open(source)
                for chunk in chunks:
                    self._chunk(chunk, writer, tally)
                    progress.advance(task, len(chunk))
                used.append({"source": source.label, "sha256": source.content, "form": form})
        return self._manifest(tally, used)

    def _manifest(self, tally: Tally, used: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "key": self.key,
            **tally.as_dict(),
            "sources": used,
            "template": self.data.template,
            "template_hash": template_hash(self.data.template, self.tokenizer),
            "tokenizer_hash": tokenizer_hash(self.tokenizer),
            "max_tokens": self.data.max_tokens,
            "versions": versions(),
        }

    def _open(self, source: Source) -> tuple[Form, Iterator[list["_Named"]]]:
        """The form of a source, and its rows in chunks."""
        records = source.records()
        head = list(islice(records, HEAD))
        form = source.config.form if source.config.form != "auto" else _detect(source, head)
        named = _name(source.label, chain(head, records))
        return form, _chunks((_Named(name, self._render(form, source, record)) for name, record in named), CHUNK)

    def _render(self, form: Form, source: Source, record: Record) -> Rendered | Fault:
        if record.fault or record.values is None:
            return record.fault or Fault("not an object")
        try:
            example = FORMS[form].read(record.values)
            return render(example, self.data.template, self.tokenizer)
        except Fault as fault:
            return fault

    def _chunk(self, chunk: list["_Named"], writer: Writer, tally: Tally) -> None:
        tally.read += len(chunk)
        usable: list[tuple[str, Rendered]] = []
        for row in chunk:
            if isinstance(row.content, Fault):
                _set_aside(row.name, row.content, writer, tally, dropped=False)
            elif hopelessly_long(row.content, self.data.max_tokens, self.tokenizer):
                _set_aside(row.name, Fault("longer than max_tokens"), writer, tally, dropped=True)
            else:
                usable.append((row.name, row.content))
        encoded = encode([text for _, text in usable], self.data.template, self.tokenizer) if usable else []
        for (name, _), tokens in zip(usable, encoded, strict=True):
            try:
                check_tokens(tokens, self.data.max_tokens)
            except Fault as fault:
                _set_aside(name, fault, writer, tally, dropped=True)
                continue
            writer.add(name, tokens)
            tally.keep(tokens)


@dataclass(frozen=True)
class _Named:
    name: str
    content: Rendered | Fault


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


def _chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _set_aside(name: str, fault: Fault, writer: Writer, tally: Tally, dropped: bool) -> None:
    tally.set_aside(name, fault, dropped)
    source, _, line = name.rpartition(":")
    writer.reject({"source": source, "line": line, "reason": fault.reason, "detail": fault.detail, "dropped": dropped})


def _summary(prepared: PreparedData, reused: bool) -> str:
    rows, tokens = prepared.manifest["rows"], prepared.manifest["tokens"]
    lost = f", {rows['rejected']} rejected, {rows['dropped']} dropped" if rows["read"] > rows["kept"] else ""
    if lost and not reused:
        lost += f" ({reasons(prepared.manifest)}; all in {prepared.path / REJECTS})"
    forms = ", ".join(sorted({source["form"] for source in prepared.manifest["sources"]}))
    return (
        f"prepare: {rows['kept']} of {rows['read']} rows kept{lost} ({forms}); {tokens['total']} tokens, "
        f"{tokens['answer']} of them answer; {'reused from' if reused else 'written to'} {prepared.path}"
    )
