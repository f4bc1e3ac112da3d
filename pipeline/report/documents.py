"""What a run got right: the values of a metric document by document, which paired tests need."""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from pipeline.files import read_file
from pipeline.report.record import Record
from pipeline.report.statistics import LARGEST

Values = NDArray[np.float64]

LAST = re.compile(rb'"metrics": (\{[^{}\n]*\})\}\r?$', re.MULTILINE)
"""A line's metrics where they end it. Within a text the quotation marks would be escaped."""


def document_values(record: Record) -> Values | None:
    """Values of the record's metric, one for each document, in the order of the task; None if they don't make up the
    score.

    Runs of one column were scored on the same documents in the same order: the table has checked their task hash.
    A perplexity is no mean over documents, and a file may have been edited or removed: then nothing is tested.
    """
    found = read_values(record.file.with_suffix(".jsonl"), record.evaluation.main_metric)
    if found is None or len(found) != record.evaluation.documents:
        return None
    found = found / (record.evaluation.full_score or 1)
    return found if abs(float(found.mean()) - record.value) < 1e-6 else None


def read_values(path: Path, metric: str) -> Values | None:
    """The metric's column of a file of records; None where a line has no number there."""
    try:
        values = [found[metric] for found in _metrics(read_file(path))]
        numbers = np.array(values, dtype=np.float64) if {*map(type, values)} <= {int, float} else None
    except (OSError, ValueError, LookupError, TypeError, OverflowError):
        return None
    return numbers if numbers is not None and bool((np.abs(numbers) < LARGEST).all()) else None


def _metrics(content: bytes) -> list[dict[str, float]]:
    """The metrics of each line. They come last, so that the long texts before them need not be parsed."""
    tails, lines = LAST.findall(content), content.splitlines()
    if len(tails) == len(lines):
        return list(from_json(b"[" + b",".join(tails) + b"]"))
    return [from_json(line)["metrics"] for line in lines]  # some other writer's order of keys
