"""What the audit shows, for the terminal and the page alike."""

from dataclasses import dataclass
from typing import Any

from pipeline.audit.config import MaxPercentConfig
from pipeline.audit.measure import Measures
from pipeline.audit.samples import Sample, visible

WORDS = {
    "lost": "rejected or dropped", "no_target": "no target", "cut_answers": "cut answers",
    "missing_eos": "missing EOS", "double_bos": "double BOS", "boundary_merges": "merges over the boundary",
    "duplicates": "exact duplicates", "overlaps": "overlaps with evaluation sets",
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One line of the checks."""

    name: str
    words: str
    count: int
    percent: float
    limit: float | None
    is_passed: bool
    """The threshold is passed."""


@dataclass(frozen=True)
class Loss:
    """Rows set aside for one reason."""

    kind: str
    reason: str
    count: int
    examples: str


@dataclass(frozen=True)
class View:
    """All that is shown."""

    title: str
    counts: dict[str, int]
    tokens: dict[str, Any]
    findings: list[Finding]
    losses: list[Loss]
    overlaps: dict[str, int]
    notes: list[str]
    lengths: dict[str, list[dict[str, int]]]
    longest: list[Sample]
    random: list[Sample]

    @property
    def summary(self) -> str:
        rows = self.counts
        return (
            f"{rows['kept']} of {rows['read']} rows kept, {rows['rejected']} rejected, {rows['dropped']} dropped; "
            f"{self.tokens['total']} tokens, {self.tokens['answer']} of them trained"
        )

    @property
    def failed(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_passed]


def view_of(name: str, measures: Measures, limits: MaxPercentConfig, notes: list[str]) -> View:
    """Everything that comes from the data is made visible and safe for a terminal; a page must escape it as well."""
    manifest, passed = measures.manifest, measures.passed(limits)
    allowed = limits.model_dump()
    return View(
        title=f"Audit of {name}",
        counts=manifest["rows"],
        tokens=manifest["tokens"],
        findings=[
            Finding(key, words, measures.counts[key], measures.percent(key), allowed[key], key in passed)
            for key, words in WORDS.items()
        ],
        losses=_losses(manifest),
        overlaps={visible(name): count for name, count in measures.overlaps.items()},
        notes=notes,
        lengths=manifest["lengths"],
        longest=measures.longest,
        random=measures.random,
    )


def _losses(manifest: dict[str, Any]) -> list[Loss]:
    losses = [
        Loss(kind, visible(reason), entry["count"], visible(", ".join(entry["examples"])))
        for kind in ("rejected", "dropped")
        for reason, entry in manifest[kind].items()
    ]
    return sorted(losses, key=lambda loss: -loss.count)
