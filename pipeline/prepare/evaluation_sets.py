"""The evaluation sets of a run, and which training rows share word n-grams with them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import UserError
from pipeline.evaluate.catalogue import TASKS, scored_split
from pipeline.evaluate.config import EvaluationConfig
from pipeline.files import expanded
from pipeline.prepare.config import SourceConfig
from pipeline.prepare.record import Record
from pipeline.prepare.sources import Source, open_sources
from pipeline.prepare.words import ngrams, runs, texts_of, words_of


def set_configs(evaluation: EvaluationConfig, files: Sequence[str]) -> dict[str, SourceConfig]:
    """Where the documents of each evaluation set lie, by the set's name: a task, or a file of its own.

    Raises:
        UserError: a task of lm-eval's without a local file.
    """
    found: dict[str, SourceConfig] = {}
    for task in evaluation.tasks:
        if task in evaluation.data:
            found[task] = _local_set(task, evaluation)
        elif task in TASKS:
            found[task] = _hub_set(task)
        else:
            raise UserError(
                f"data.filters.overlap: the documents of {task} are lm-eval's: give a file of them as "
                f"evaluation.data.{task}, or leave the task out and name it under data.filters.overlap.files"
            )
    return found | {Path(file).name: SourceConfig(path=file) for file in files}


def _local_set(task: str, evaluation: EvaluationConfig) -> SourceConfig:
    path = evaluation.data[task].test
    return SourceConfig(path=path, split=scored_split(_definition(task, evaluation, path)))


def _hub_set(task: str) -> SourceConfig:
    values = _own_definition(task)
    return SourceConfig(path=values["dataset_path"], subset=values.get("dataset_name"), split=scored_split(values))


def _definition(task: str, evaluation: EvaluationConfig, path: str) -> dict[str, Any]:
    """The task's file, as far as its local data have splits: the harness takes seconds to find one of its own."""
    if task in TASKS:
        return _own_definition(task)
    if not expanded(path).is_dir():
        return {}
    from pipeline.evaluate.suite import definition_of, manager

    return definition_of(manager(evaluation), task)


def _own_definition(task: str) -> dict[str, Any]:
    return dict(yaml.load(TASKS[task].read_text(encoding="utf-8"), _TaskLoader))


def _documents(name: str, source: Source) -> Iterator[Record]:
    for record in source.records():
        if record.fault:
            file = f"{source.config.path}/{record.file}" if record.file else source.config.path
            raise UserError(f"evaluation set {name}: {file}:{record.line}: {record.fault}")
        yield record


class _TaskLoader(yaml.SafeLoader):
    """Reads a task's file without importing its functions."""


_TaskLoader.add_multi_constructor("!", lambda loader, tag, node: None)


@dataclass(frozen=True)
class EvaluationSets:
    """The n-grams of evaluation sets."""

    n: int
    sources: dict[str, Source]
    grams: dict[str, str]
    """n-gram -> the first set that has it."""
    sizes: dict[str, dict[str, int]]
    """Documents of each set, and how many of them have too few words to be compared."""

    @classmethod
    def open(cls, configs: dict[str, SourceConfig], n: int) -> "EvaluationSets":
        """Read all documents; what is held grows with the evaluation sets, not with the training rows.

        Raises:
            UserError: a set, or a row of one, can't be read: what it holds could not be compared.
        """
        sources = dict(zip(configs, open_sources(configs.values()), strict=True))
        grams: dict[str, str] = {}
        sizes: dict[str, dict[str, int]] = {}
        for name, source in sources.items():
            documents = short = 0
            for record in _documents(name, source):
                found = [gram for text in texts_of(record.values) for gram in ngrams(text, n)]
                for gram in found:
                    grams.setdefault(gram, name)
                documents, short = documents + 1, short + (not found)
            sizes[name] = {"documents": documents, "too_short": short}
        return cls(n, sources, grams, sizes)

    def identity(self) -> list[list[str]]:
        """Names and contents, for the key of prepared data."""
        return [[name, source.content] for name, source in self.sources.items()]

    def overlap(self, texts: Iterator[str]) -> tuple[str, str] | None:
        """The first evaluation set that shares an n-gram with one of the texts, and that n-gram."""
        for text in texts:
            words = words_of(text)
            if any(half in self._halves for half in runs(words, self._half, self._half)):
                for gram in runs(words, self.n):
                    if gram in self.grams:
                        return self.grams[gram], gram
        return None

    @property
    def _half(self) -> int:
        """Of any n words in a row, this many start at a multiple of it: most texts need one look at every so many."""
        return (self.n + 1) // 2

    @cached_property
    def _halves(self) -> frozenset[str]:
        return frozenset(half for gram in self.grams for half in runs(gram.split(" "), self._half))
