"""The expected tables, checked against arithmetic that shares nothing with the report: each number of every table."""

import math
import re
from decimal import Decimal
from pathlib import Path

import pytest

from pipeline.report import Layout, load_layout
from pipeline.report.layout import shipped

GOLDEN = Path(__file__).parent / "golden"
NUMBER = re.compile(
    r"(?P<mark>\*\*|<ins>)?(?P<value>[\d.]+)(?:\*\*|</ins>)?(?: ± (?P<std>[\d.]+))?(?: \((?P<change>[+-][\d.]+) \?\))?"
)
TWO_SEEDS = "Gemma-2B"
COSTS = {"tokens/s": "250", "peak GB": "2.00", "trained M": "10.00", "prefill s": "0.250", "generation s": "60.50"}


class Expected:
    """Row i, task j, seed k scored 0.50 + 0.02 i + 0.001 j + 0.01 k; training took 1.50 + 0.02 i + 0.01 k hours."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.labels = layout, list(layout.rows or {})

    def seeds(self, block: str, label: str) -> int:
        trained = (self.layout.rows or {})[label].get("tuning.kind") != "none"
        return 2 if trained and block == TWO_SEEDS else 1

    def mean(self, block: str, label: str, heading: str) -> Decimal:
        """In percent (or hours), unrounded."""
        i, half = self.labels.index(label), Decimal(self.seeds(block, label) - 1) / 2
        if heading == "device h":
            return Decimal("1.5") + Decimal("0.02") * i + Decimal("0.01") * half
        tasks = list(self.layout.columns or {})
        j = Decimal(tasks.index(heading)) if heading in tasks else Decimal(len(tasks) - 1) / 2
        return 50 + 2 * i + j / 10 + half

    def check(self, text: str, block: str, label: str, heading: str) -> None:
        found = NUMBER.fullmatch(text)
        assert found, text
        if heading in COSTS:
            assert found["value"] == COSTS[heading]
            return
        assert_rounded(found["value"], self.mean(block, label, heading))
        pair = self.seeds(block, label) == 2 and self.layout.spread == "std"
        assert (found["std"] is not None) == pair
        if pair:  # of two values that lie 1 point (0.01 hours) apart
            assert_rounded(found["std"], Decimal("0.01" if heading == "device h" else "1") / Decimal(math.sqrt(2)))
        if found["change"]:
            assert_rounded(found["change"], self.change(block, label, heading))
        assert found["mark"] == self.mark(label, heading)

    def change(self, block: str, label: str, heading: str) -> Decimal:
        assert self.layout.baseline and label != self.layout.baseline
        return self.mean(block, label, heading) - self.mean(block, self.layout.baseline, heading)

    def mark(self, label: str, heading: str) -> str | None:
        """Later rows are better, in every column."""
        best = self.labels[::-1][: self.layout.highlight] if heading != "device h" and len(self.labels) > 1 else []
        return dict(zip(best, ("**", "<ins>"), strict=False)).get(label)


def assert_rounded(text: str, exact: Decimal) -> None:
    """A tie may go either way: as a binary fraction it is none."""
    shown = Decimal(text)
    assert abs(shown - exact) <= Decimal(1).scaleb(int(shown.as_tuple().exponent)) / 2, f"{text} for {exact}"


def lines_of(name: str) -> tuple[list[str], list[list[str]]]:
    text = (GOLDEN / f"{name}.md").read_text(encoding="utf-8")
    head, _, *rows = [
        [re.sub(r"\\(.)", r"\1", part.strip()) for part in line.strip("|").split(" |")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return head, rows


@pytest.mark.parametrize("name", shipped())
def test_every_measured_number_is_the_arithmetics(name: str) -> None:
    layout = load_layout(name)
    expected, (head, rows), checked = Expected(layout), lines_of(name), 0
    for row in (row for row in rows if not any(text.endswith(" (paper)") for text in row)):
        named = dict(zip(head, row, strict=True))
        block, label = named.pop("model", ""), named.pop("method", "")
        for heading, text in named.items():
            if heading in layout.marks:
                assert (text == "•") == (label in layout.marks[heading])
            elif heading.startswith("Δ "):
                assert (text == "") == (label == layout.baseline)
                if text:
                    assert_rounded(text.removesuffix(" ?"), expected.change(block, label, layout.average or ""))
            elif text != "-":
                where = {"models": (heading, label, "mean"), "methods": (block, heading, "mean")}
                expected.check(text, *where.get(layout.arrange, (block, label, heading)))
                checked += 1
    columns = 1 if layout.arrange != "tasks" else len(layout.columns or {}) + bool(layout.average) + len(layout.cost)
    assert checked == 2 * len(expected.labels) * columns, "a number of one of the two models is not there"


@pytest.mark.parametrize("name", shipped())
def test_every_published_number_stands_in_its_own_place(name: str) -> None:
    layout = load_layout(name)
    head, rows = lines_of(name)
    found: dict[tuple[str, str, str], str] = {}
    for row in (row for row in rows if any(text.endswith(" (paper)") for text in row)):
        named = dict(zip(head, (text.removesuffix(" (paper)") for text in row), strict=True))
        block, label = named.pop("model", ""), named.pop("method", "")
        for heading, text in named.items():
            if heading in layout.marks or heading.startswith("Δ ") or text == "-":
                continue
            average = layout.average or ""
            where = {"models": (heading, label, average), "methods": (block, heading, average)}
            found[where.get(layout.arrange, (block, label, heading))] = text
    assert found == {
        (block, label, heading): str(value)
        for block, labels in layout.reference.items()
        for label, values in labels.items()
        for heading, value in values.items()
    }
