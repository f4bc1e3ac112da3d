"""What the prepared rows are like, measured on the rows themselves, whatever code wrote them."""

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa
from transformers import PreTrainedTokenizerFast

from pipeline.audit.config import MaxPercentConfig
from pipeline.audit.samples import Sample, decode, sample_of
from pipeline.prepare import PreparedData
from pipeline.prepare.duplicates import DuplicateFinder
from pipeline.prepare.evaluation_sets import EvaluationSets
from pipeline.prepare.filter_config import DuplicatesConfig
from pipeline.prepare.fingerprints import DIGEST, digest_of
from pipeline.prepare.piece import lengths_of
from pipeline.prepare.tokens import Tokens, answer_spans

SHOWN = 10
"""Longest rows, and random ones, that are shown."""
EXACT = DuplicatesConfig(exact=True)


@dataclass
class Measures:
    """Numbers of rows by what is odd about them, and the rows that are shown."""

    manifest: dict[str, Any]
    counts: dict[str, int] = field(default_factory=dict)
    """By the names of `MaxPercentConfig`."""
    overlaps: dict[str, int] = field(default_factory=dict)
    """Rows that share words with an evaluation set."""
    longest: list[Sample] = field(default_factory=list)
    random: list[Sample] = field(default_factory=list)

    def of(self, name: str) -> int:
        """The number of rows that a count is a share of."""
        return int(self.manifest["rows"]["read" if name == "lost" else "kept"])

    def percent(self, name: str) -> float:
        return 100 * self.counts[name] / self.of(name) if self.of(name) else 0.0

    def passed(self, limits: MaxPercentConfig) -> list[str]:
        """The names of thresholds that are passed."""
        values = limits.model_dump()
        names = [name for name, limit in values.items() if limit is not None and self.percent(name) > limit]
        return ["lost", *names] if "lost" not in names and self._are_uncounted_lost(limits.lost) else names

    def _are_uncounted_lost(self, limit: float | None) -> bool:
        """Whatever the share says: no row is left, or a file ends early, which only the threshold that allows all
        allows."""
        return not self.of("kept") or (bool(self.manifest["ended_early"]) and limit not in (None, 100))


def measure(data: PreparedData, tokenizer: PreTrainedTokenizerFast, sets: EvaluationSets | None, seed: int) -> Measures:
    """Read all rows once.

    Args:
        sets: evaluation sets to compare the decoded rows with. None: what the filter has counted.
        seed: of the choice of random rows.
    """
    rows = data.manifest["rows"]
    result = Measures(data.manifest, {"lost": rows["rejected"] + rows["dropped"]})
    reader = _Reader(tokenizer, data.manifest["max_tokens"], sets)
    with tempfile.TemporaryDirectory() as folder:
        finder = DuplicateFinder(Path(folder), EXACT)
        for batch in data.batches():
            reader.add(batch, finder)
        duplicates = int((finder.find()[0] >= 0).sum())
    filtered = {name: entry["count"] for name, entry in data.manifest["overlaps"].items()}
    result.overlaps = reader.overlaps if sets else filtered
    result.counts |= reader.counts | {
        "boundary_merges": data.manifest["boundary_merges"],
        "duplicates": duplicates,
        "overlaps": sum(result.overlaps.values()),
    }
    result.longest = [sample_of(data[number], tokenizer) for number in reader.longest()]
    chosen = sorted(random.Random(seed).sample(range(len(data)), min(SHOWN, len(data))))
    result.random = [sample_of(data[number], tokenizer) for number in chosen]
    return result


class _Reader:
    """Counts, while batches of rows come by."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, max_tokens: int, sets: EvaluationSets | None) -> None:
        self._tokenizer, self._max_tokens, self._sets = tokenizer, max_tokens, sets
        self.counts = dict.fromkeys(("no_target", "cut_answers", "missing_eos", "double_bos"), 0)
        self.overlaps: dict[str, int] = dict.fromkeys(sets.sources, 0) if sets else {}
        self._longest = numpy.zeros((0, 2), dtype=numpy.int64)
        self._rows = 0

    def add(self, batch: pa.RecordBatch, finder: DuplicateFinder) -> None:
        prompt, answer = lengths_of(batch)
        rows = batch["input_ids"].to_pylist()
        columns = rows, batch["prompt_length"].to_pylist(), batch["turns"].to_pylist()
        tokens = [Tokens(ids, length, turns=turns) for ids, length, turns in zip(*columns, strict=True)]
        eos, bos = self._tokenizer.eos_token_id, self._tokenizer.bos_token_id
        ends = [[ids[start:end] for start, end in answer_spans(row)] for ids, row in zip(rows, tokens, strict=True)]
        without_eos = numpy.array([any(labels[-1:] != [eos] for labels in own) for own in ends])
        self._count("missing_eos", without_eos)
        self._count("cut_answers", without_eos & (prompt + answer >= self._max_tokens))
        self._count("no_target", [any(labels in ([], [eos]) for labels in own) for own in ends])
        self._count("double_bos", [bos is not None and ids[:2] == [bos, bos] for ids in rows])
        digests = [digest_of(row) for row in tokens]
        finder.add(pa.record_batch([pa.array(digests, pa.binary(DIGEST))], names=["exact"]))
        self._compare(rows)
        self._keep_longest(prompt + answer)

    def _count(self, name: str, found: Sequence[bool] | numpy.ndarray) -> None:
        self.counts[name] += int(sum(found))

    def _compare(self, rows: list[list[int]]) -> None:
        for ids in rows if self._sets else ():
            assert self._sets is not None
            found = self._sets.overlap(iter([decode(ids, self._tokenizer)]))
            if found:
                self.overlaps[found[0]] += 1

    def _keep_longest(self, lengths: numpy.ndarray) -> None:
        numbers = numpy.arange(self._rows, self._rows + len(lengths))
        both = numpy.concatenate([self._longest, numpy.stack([-lengths, numbers], axis=1)])
        self._longest = both[numpy.lexsort((both[:, 1], both[:, 0]))][:SHOWN]
        self._rows += len(lengths)

    def longest(self) -> list[int]:
        """Numbers of the longest rows, longest first."""
        return self._longest[:, 1].tolist()
