"""Where the numbers of a page come from: one fact sheet for each number, and one for each run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config import RunConfig
from pipeline.report.cell import Cell
from pipeline.report.comparison import CONFIDENCE
from pipeline.report.differences import flat
from pipeline.report.entry import Entry, Table
from pipeline.report.record import Measurement, Record
from pipeline.report.statistics import DDOF

Place = tuple[str, str]
"""Block and row."""


class Origins:
    """Fact sheets as plain values; runs and differences of configurations are stored once and referred to by number."""

    def __init__(self, configs: Mapping[Path, RunConfig | None], baseline: str | None) -> None:
        self.configs = configs
        self.baseline = baseline
        self.runs: list[dict[str, Any]] = []
        self.settings: list[list[list[str]]] = []
        self._runs: dict[Path, int] = {}
        self._settings: dict[tuple[str, str], int] = {}

    def sheet(self, table: Table, entry: Entry, title: str) -> dict[str, Any]:
        """What the page shows of one number."""
        records = sorted(entry.records, key=lambda record: (record.seed or 0, record.task))
        return {
            "title": title,
            "facts": [fact for fact in _facts(entry, table) if fact[1]],
            "runs": [[self._run(record), record.task, _exact(record, entry)] for record in records],
            "missing": [[str(m.seed) if m.seed is not None else "", m.task, m.reason] for m in entry.missing],
            "settings": self._settings_of(records[0]) if records else None,
        }

    def _run(self, record: Measurement) -> int:
        if record.folder not in self._runs:
            self._runs[record.folder] = len(self.runs)
            versions = record.facts.get("versions", {})
            self.runs.append({
                "name": " ".join(filter(None, [record.group, record.row])),
                "seed": "-" if record.seed is None else str(record.seed),
                "file": _evaluations(record),
                "signature": record.facts.get("signature", ""),
                "commit": str(versions.get("commit") or "unrecorded"),
            })  # fmt: skip
        return self._runs[record.folder]

    def _settings_of(self, record: Measurement) -> int:
        """Number of the list of settings in which the row differs from the baseline's."""
        place = record.group, record.row
        if place not in self._settings:
            self._settings[place] = len(self.settings)
            self.settings.append(self._compared(record))
        return self._settings[place]

    def _compared(self, record: Measurement) -> list[list[str]]:
        own, base = self.configs.get(record.folder), self._baseline_config(record)
        if own is None or base is None or own is base:
            return []
        mine, theirs = flat(own), flat(base)
        keys = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
        return [[key, mine.get(key, "-"), theirs.get(key, "-")] for key in keys]

    def _baseline_config(self, record: Measurement) -> RunConfig | None:
        return self._baselines.get(record.group)

    def remember_baselines(self, cells: Sequence[Cell]) -> None:
        """The configuration of the baseline's first run in each block."""
        self._baselines: dict[str, RunConfig] = {}
        for cell in cells:
            config = self.configs.get(cell.folder.root)
            if cell.row == self.baseline and config is not None:
                self._baselines.setdefault(cell.group, config)


def _evaluations(record: Measurement) -> str:
    """Its file, with the task left open."""
    return (record.file.parent / "TASK.json").as_posix() if isinstance(record, Record) else record.file.as_posix()


def _exact(record: Measurement, entry: Entry) -> str:
    return f"{entry.unit.scale * record.value:.6g}"


def _facts(entry: Entry, table: Table) -> list[tuple[str, str]]:
    scale, summary, unit = entry.unit.scale, entry.summary, entry.unit.name
    facts = [
        ("Value", f"{scale * summary.mean:.6g} {unit}".strip() if summary else "none"),
        ("Deviation over seeds", f"{scale * summary.std:.4g} (ddof = {DDOF})" if summary and summary.std else ""),
        ("Runs", f"{entry.n} of {entry.expected}" if entry.expected else ""),
        (f"{CONFIDENCE:.0%} interval", _interval(entry.interval, scale)),
    ]
    return facts + (_comparison(entry, table, scale) if entry.difference is not None else [])


def _comparison(entry: Entry, table: Table, scale: float) -> list[tuple[str, str]]:
    found = entry.comparison
    facts = [(f"Difference to {table.baseline}", entry.change)]
    if found is None:
        return [*facts, ("Test", "none: the documents' records are not there, or the number is incomplete")]
    adjusted = found.adjusted if found.adjusted is not None else found.p
    return [
        *facts,
        ("its interval, of documents and seeds", _interval(found.interval, scale)),
        ("p; after Holm", f"{found.p:.3g}; {adjusted:.3g}{' (within noise)' if found.within_noise else ''}"),
        ("Paired bootstrap over documents", f"{_interval(found.bootstrap, scale)}, p = {found.bootstrap_p:.3g}"),
        ("McNemar, by pair of runs", ", ".join(f"p = {p:.3g}" for p in found.mcnemar)),
        ("Paired t test over seeds", f"p = {found.seeds_p:.3g}" if found.seeds_p is not None else ""),
        ("Documents; pairs of runs", f"{found.documents}; {found.pairs}"),
    ]


def _interval(interval: tuple[float, float] | None, scale: float) -> str:
    return f"[{scale * interval[0]:.4g}, {scale * interval[1]:.4g}]" if interval else ""
