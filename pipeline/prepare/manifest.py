"""The manifest: what was read, what was kept, and why the rest was not."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import StageError, UserError
from pipeline.prepare.piece import Piece, lengths_of

EXAMPLES = 3
"""Locations given for each reason; all are in rejects.jsonl."""
BINS = 24
"""Ranges of a histogram of lengths."""


@dataclass
class Tally:
    """Counts, while pieces come by. Every row read is kept, rejected (it can't be used) or dropped (by a filter).

    Lengths are counted, not listed: what this holds does not grow with the rows.
    """

    read: int = 0
    rejected: dict[str, dict[str, Any]] = field(default_factory=dict)
    dropped: dict[str, dict[str, Any]] = field(default_factory=dict)
    ended_early: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of the rejects, those behind which a file can't be read on: one row each, however many are missing."""
    whole: Counter[int] = field(default_factory=Counter)
    prompt: Counter[int] = field(default_factory=Counter)
    answer: Counter[int] = field(default_factory=Counter)
    boundary_merges: int = 0
    overlaps: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, piece: Piece) -> None:
        prompt, answer = lengths_of(piece.rows)
        self.whole.update((prompt + answer).tolist())
        self.prompt.update(prompt.tolist())
        self.answer.update(answer.tolist())
        self.read += piece.read
        self.boundary_merges += piece.merged
        for reject in piece.rejects:
            _count(self.dropped if reject.dropped else self.rejected, reject.reason, reject.name)
            if reject.ends_file:
                _count(self.ended_early, reject.reason, reject.name)
        for name, evaluation_set in piece.overlaps:
            _count(self.overlaps, evaluation_set, name)

    def as_dict(self) -> dict[str, Any]:
        return {
            "rows": {"read": self.read, "kept": self.whole.total(), "rejected": _total(self.rejected),
                     "dropped": _total(self.dropped)},
            "rejected": self.rejected,
            "dropped": self.dropped,
            "ended_early": self.ended_early,
            "tokens": {"total": _sum(self.whole), "prompt": _sum(self.prompt), "answer": _sum(self.answer),
                       "per_row": _spread(self.whole)},
            "lengths": {"prompt": histogram(self.prompt), "answer": histogram(self.answer)},
            "boundary_merges": self.boundary_merges,
            "overlaps": self.overlaps,
        }  # fmt: skip


def _count(entries: dict[str, dict[str, Any]], key: str, name: str) -> None:
    entry = entries.setdefault(key, {"count": 0, "examples": []})
    entry["count"] += 1
    if len(entry["examples"]) < EXAMPLES:
        entry["examples"].append(name)


def _total(reasons: dict[str, dict[str, Any]]) -> int:
    return sum(entry["count"] for entry in reasons.values())


def _sum(lengths: Counter[int]) -> int:
    return sum(length * count for length, count in lengths.items())


def _spread(lengths: Counter[int]) -> dict[str, Any]:
    """The least, the median and the greatest length; of an even number the mean of the middle two."""
    if not lengths:
        return {}
    middle = [_at(lengths, (lengths.total() - 1) // 2), _at(lengths, lengths.total() // 2)]
    return {"min": min(lengths), "median": sum(middle) / 2, "max": max(lengths)}


def _at(lengths: Counter[int], place: int) -> int:
    """The length at a place of the sorted list, from 0."""
    for length in sorted(lengths):
        place -= lengths[length]
        if place < 0:
            return length
    raise IndexError(place)


def histogram(lengths: Counter[int]) -> list[dict[str, int]]:
    """Counts in `BINS` ranges of equal width, from 0 to the greatest length; both ends belong to the range."""
    if not lengths:
        return []
    width = max(lengths) // BINS + 1
    bins: Counter[int] = Counter()
    for length, count in lengths.items():
        bins[length // width] += count
    return [{"from": n * width, "to": (n + 1) * width - 1, "count": bins[n]} for n in range(max(bins) + 1)]


def reasons(manifest: dict[str, Any]) -> str:
    """The reasons with their counts and first places, most frequent first."""
    return counted([*manifest["rejected"].items(), *manifest["dropped"].items()])


def counted(entries: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Entries with their counts and first places, most frequent first."""
    ordered = sorted(entries, key=lambda item: -item[1]["count"])
    return "; ".join(f"{reason}: {entry['count']} ({', '.join(entry['examples'])})" for reason, entry in ordered)


def check_loss(manifest: dict[str, Any], max_dropped_percent: float, rejects: Path) -> None:
    """Refuse data of which nothing, or less than the user allows, is left.

    Raises:
        UserError: no row is left.
        StageError: more than `max_dropped_percent` of the rows can't be used, or nobody knows how many because a file
            ends early; 100 allows that too.
    """
    rows = manifest["rows"]
    lost = rows["rejected"] + rows["dropped"]
    if not rows["kept"]:
        raise UserError(f"data: none of the {rows['read']} rows can be used: {reasons(manifest)}; all in {rejects}")
    if manifest["ended_early"] and max_dropped_percent < 100:
        raise StageError(
            f"data: files can't be read to their end, and nothing tells how many rows are missing: "
            f"{counted(manifest['ended_early'].items())}; mend them, or set data.max_dropped_percent = 100 to use what "
            f"stands before; all in {rejects}"
        )
    if 100 * lost > max_dropped_percent * rows["read"]:
        raise StageError(
            f"data: {lost} of {rows['read']} rows ({100 * lost / rows['read']:.1f}%) can't be used, more than "
            f"data.max_dropped_percent = {max_dropped_percent:g} allows: {reasons(manifest)}; all in {rejects}"
        )
