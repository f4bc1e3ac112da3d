"""The manifest: what was read, what was kept, and why the rest was not."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pipeline.errors import StageError, UserError
from pipeline.prepare.record import Fault
from pipeline.prepare.tokens import Tokens

EXAMPLES = 3
"""Locations given for each reason; all are in rejects.jsonl."""


@dataclass
class Tally:
    """Counts, while rows come by. Every row read is kept, rejected (it can't be used) or dropped (by a filter)."""

    read: int = 0
    rejected: dict[str, dict[str, Any]] = field(default_factory=dict)
    dropped: dict[str, dict[str, Any]] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    boundary_merges: int = 0

    def keep(self, tokens: Tokens) -> None:
        self.lengths.append(len(tokens.input_ids))
        self.prompt_tokens += tokens.prompt_length
        self.boundary_merges += tokens.merged

    def set_aside(self, name: str, fault: Fault, dropped: bool) -> None:
        reasons = self.dropped if dropped else self.rejected
        entry = reasons.setdefault(fault.reason, {"count": 0, "examples": []})
        entry["count"] += 1
        if len(entry["examples"]) < EXAMPLES:
            entry["examples"].append(name)

    def as_dict(self) -> dict[str, Any]:
        return {
            "rows": {"read": self.read, "kept": len(self.lengths), "rejected": _total(self.rejected),
                     "dropped": _total(self.dropped)},
            "rejected": self.rejected,
            "dropped": self.dropped,
            "tokens": _tokens(self.lengths, self.prompt_tokens),
            "boundary_merges": self.boundary_merges,
        }  # fmt: skip


def _total(reasons: dict[str, dict[str, Any]]) -> int:
    return sum(entry["count"] for entry in reasons.values())


def _tokens(lengths: Sequence[int], prompt: int) -> dict[str, Any]:
    total = sum(lengths)
    per_row = {"min": min(lengths), "median": median(lengths), "max": max(lengths)} if lengths else {}
    return {"total": total, "prompt": prompt, "answer": total - prompt, "per_row": per_row}


def reasons(manifest: dict[str, Any]) -> str:
    """The reasons with their counts and first places, most frequent first."""
    entries = [*manifest["rejected"].items(), *manifest["dropped"].items()]
    entries.sort(key=lambda item: -item[1]["count"])
    return "; ".join(f"{reason}: {entry['count']} ({', '.join(entry['examples'])})" for reason, entry in entries)


def check_loss(manifest: dict[str, Any], max_dropped_percent: float, rejects: Path) -> None:
    """Refuse data of which nothing, or less than the user allows, is left.

    Raises:
        UserError: no row is left.
        StageError: more than `max_dropped_percent` of the rows can't be used.
    """
    rows = manifest["rows"]
    lost = rows["rejected"] + rows["dropped"]
    if not rows["kept"]:
        raise UserError(f"data: none of the {rows['read']} rows can be used: {reasons(manifest)}; all in {rejects}")
    if 100 * lost > max_dropped_percent * rows["read"]:
        raise StageError(
            f"data: {lost} of {rows['read']} rows ({100 * lost / rows['read']:.1f}%) can't be used, more than "
            f"data.max_dropped_percent = {max_dropped_percent:g} allows: {reasons(manifest)}; all in {rejects}"
        )
