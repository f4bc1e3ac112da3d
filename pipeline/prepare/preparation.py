"""The preparation of a run's rows: which sources, template and tokenizer, and the pieces that come of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text
from transformers import PreTrainedTokenizerFast

from pipeline.config import RunConfig
from pipeline.errors import UserError
from pipeline.model import load_tokenizer
from pipeline.model.config import ModelConfig
from pipeline.prepare.chunk import ChunkPreparer
from pipeline.prepare.config import DataConfig
from pipeline.prepare.filters import Filters
from pipeline.prepare.forms import check_columns
from pipeline.prepare.identity import prepared_key, tokenizer_hash
from pipeline.prepare.piece import Piece
from pipeline.prepare.pool import in_order
from pipeline.prepare.reading import OpenedSource, chunks
from pipeline.prepare.sources import Source, open_sources
from pipeline.prepare.templates import check_template, template_hash
from pipeline.share import Share
from pipeline.versions import versions


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
class Preparation:
    """All that the rows of a run depend on."""

    data: DataConfig
    sources: list[Source]
    tokenizer: PreTrainedTokenizerFast
    tokenizer_content: str
    """Its hash."""
    filters: Filters
    path: Path
    """Of the prepared rows in the cache; its last part is their key."""
    console: Console

    @classmethod
    def of(cls, config: RunConfig) -> "Preparation":
        """Open and hash the sources.

        Raises:
            UserError: a source, its columns, a filter or the tokenizer can't be used.
        """
        if config.data is None:
            raise UserError("data is missing: there is nothing to prepare without data.sources")
        tokenizer = usable_tokenizer(config.model, config.data)
        for source in config.data.sources:
            check_columns(source)
        filters = Filters.open(config.data.filters, config.evaluation)
        sources = open_sources(config.data.sources)
        content = tokenizer_hash(tokenizer)
        path = config.paths.cache / "prepared" / prepared_key(config.data, sources, tokenizer, content, filters)
        console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
        return cls(config.data, sources, tokenizer, content, filters, path, console)

    def opened(self) -> list[OpenedSource]:
        """The sources with their forms.

        Raises:
            UserError: a form can't be told.
        """
        return [OpenedSource.open(source, number) for number, source in enumerate(self.sources)]

    def pieces(self, opened: list[OpenedSource], processes: int, share: Share = Share()) -> Iterator[Piece]:  # noqa: B008
        """The prepared rows, chunk by chunk in the order of the sources; of a share, only its own chunks."""
        forms = [(one.form, one.source.config) for one in opened]
        prepare = ChunkPreparer(self.data, forms, self.tokenizer, self.filters)
        rows = chain.from_iterable(one.rows() for one in opened)
        own = islice(chunks(rows), share.number - 1, None, share.count)
        with _RowProgress(self.console) as advance:
            for piece in in_order(prepare, own, processes):
                yield piece
                advance(piece.read)

    def facts(self, opened: list[OpenedSource]) -> dict[str, Any]:
        """What the manifest says of the rows besides counts."""
        return {
            "key": self.path.name,
            "sources": [{"source": one.source.label, "sha256": one.source.content, "form": one.form} for one in opened],
            "template": self.data.model_dump(include={"template"})["template"],
            "template_hash": template_hash(self.data.template, self.tokenizer),
            "tokenizer_hash": self.tokenizer_content,
            "max_tokens": self.data.max_tokens,
            "filters": self.filters.identity(),
            "evaluation_sets": self.filters.sets.sizes if self.filters.sets else {},
            "versions": versions(),
        }


class _RowProgress:
    """Rows so far and rows a second, in a terminal only. How many will come is not known before they are read."""

    def __init__(self, console: Console) -> None:
        columns = (SpinnerColumn(), TextColumn("prepare: {task.completed} rows"), _Rate(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    def __enter__(self) -> Callable[[int], None]:
        self._bar.start()
        task = self._bar.add_task("prepare", total=None)
        return lambda rows: self._bar.advance(task, rows)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} rows/s" if task.speed else "")
