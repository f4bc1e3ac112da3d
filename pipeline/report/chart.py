"""Diagrams as inline SVG: lines and points in the colours of the page's style sheet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from xml.sax.saxutils import escape, quoteattr

from pipeline.report.text import shortened

WIDTH, HEIGHT = 640, 330
LEFT, RIGHT, TOP, BOTTOM = 84, 14, 12, 46
COLOURS, DASHES = 8, 3
"""Classes c0 to c7 and d0 to d2 of the style sheet."""
LABELS = 12
"""Points of a diagram that are named in it; those of more are told by the legend."""
LETTER, LINE = 11, 18
"""Width and height of a letter of the largest size in the style sheet."""
DOT, GAP = 5, 9
"""Radius of a point, and how far from its middle its name begins."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One line or one point. `row` is what the page's filter looks at, `place` picks colour and dashes."""

    label: str
    row: str
    points: Sequence[Point]
    place: int
    dashed: bool = False

    @property
    def style(self) -> str:
        dash = DASHES - 1 if self.dashed else self.place // COLOURS % DASHES
        return f"c{self.place % COLOURS} d{dash}"


@dataclass(frozen=True)
class Axis:
    """From data to picture."""

    low: float
    high: float
    start: float
    end: float
    counts: bool = False
    """Its values are whole numbers, as layers and updates are."""

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float, counts: bool = False) -> "Axis":
        """An axis that holds all values."""
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        margin = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
        return cls(low if low == 0 else low - margin, high + margin, start, end, counts)

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Round numbers, about five."""
        raw = (self.high - self.low) / 5
        raw, factors = (max(raw, 1.0), (1, 2, 5, 10)) if self.counts else (raw, (1, 2, 2.5, 5, 10))
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * factor for factor in factors if power * factor >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [step * index for index in range(first, math.floor(self.high / step + 1e-9) + 1)]


def line_chart(series: Sequence[Series], title: str, x: str, y: str) -> str:
    """Lines over a common x axis of whole numbers. "" where there is nothing to draw."""
    drawn = [one for one in series if one.points]
    if not drawn:
        return ""
    across, up = _axes([point for one in drawn for point in one.points], counts=True)
    paths = [
        f'<path class="line {one.style}" data-row={quoteattr(one.row)} d="{_path(one.points, across, up)}">'
        f"<title>{escape(one.label)}</title></path>"
        for one in drawn
    ]
    return _svg(title, x, y, across, up, paths)


def scatter(series: Sequence[Series], title: str, x: str, y: str, errors: Sequence[float]) -> str:
    """A point for each series, with its standard deviation as a vertical line (0: none); its name beside it if they are
    few."""
    if not series:
        return ""
    points = [one.points[0] for one in series]
    heights = [(px, py + sign * error) for (px, py), error in zip(points, errors, strict=True) for sign in (-1, 1)]
    across, up = _axes([*points, *heights])
    marks = [_mark(one, error, across, up) for one, error in zip(series, errors, strict=True)]
    return _svg(title, x, y, across, up, [*marks, *(_labels(series, across, up) if len(series) <= LABELS else [])])


def _mark(one: Series, error: float, across: Axis, up: Axis) -> str:
    (px, py), style = one.points[0], f"c{one.place % COLOURS}"
    x, y = across(px), up(py)
    bar = f'<path class="line {style}" d="M{x:.1f} {up(py - error):.1f}V{up(py + error):.1f}"/>' if error else ""
    dot = f'<circle class="dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="{DOT}"><title>{escape(one.label)}</title></circle>'
    return f"<g data-row={quoteattr(one.row)}>{bar}{dot}</g>"


@dataclass(frozen=True)
class Label:
    """A row's name beside its point: where the text starts (on the left of its point: ends), and its line's height."""

    row: str
    text: str
    x: float
    y: float
    is_left: bool

    @classmethod
    def around(cls, row: str, x: float, y: float) -> list["Label"]:
        """On the right and on the left, where it fits; where it fits nowhere, cut on the side that has more room."""
        rooms = {x + GAP: WIDTH - x - GAP, x - GAP: x - GAP - LEFT}
        found = [cls(row, shortened(row, max(1, int(room // LETTER))), start, y - 7, start < x)
                 for start, room in rooms.items()]  # fmt: skip
        longest = max(len(label.text) for label in found)
        return [label for label in found if len(label.text) == longest]

    @property
    def ends(self) -> tuple[float, float]:
        """As wide as it is on a phone."""
        start = self.x - self.is_left * len(self.text) * LETTER
        return start, start + len(self.text) * LETTER

    def covers(self, other: "Label") -> bool:
        """Whether two texts would lie on one another."""
        (start, end), (other_start, other_end) = self.ends, other.ends
        return max(start, other_start) < min(end, other_end) and abs(self.y - other.y) < LINE

    def hides(self, dot: Point) -> bool:
        """Whether it would lie on a point."""
        (start, end), middle = self.ends, self.y - LINE / 4
        return start - DOT <= dot[0] <= end + DOT and abs(dot[1] - middle) <= LINE / 2 + DOT

    @property
    def svg(self) -> str:
        anchor = "end" if self.is_left else "start"
        return (
            f'<text data-row={quoteattr(self.row)} x="{self.x:.1f}" y="{self.y:.1f}" text-anchor="{anchor}">'
            f"{escape(self.text)}</text>"
        )


def _labels(series: Sequence[Series], across: Axis, up: Axis) -> list[str]:
    """Names beside their points, or as near to them as nothing else is."""
    dots = [(across(x), up(y)) for one in series for x, y in one.points]
    placed: list[Label] = []
    for one, dot in zip(series, dots, strict=True):
        placed.append(_moved_clear(Label.around(one.row, *dot), placed, dots))
    return [label.svg for label in placed]


def _moved_clear(labels: Sequence[Label], placed: Sequence[Label], dots: Sequence[Point]) -> Label:
    """One of them, up or down within the diagram until it covers no other and no point; the first as it is if there is
    no such place."""
    ways = (sign * step * LINE / 2 for step in range(2 * HEIGHT // LINE) for sign in (1, -1))
    moved = (replace(label, y=label.y + way) for way in ways for label in labels)
    inside = (one for one in moved if TOP <= one.y <= HEIGHT - BOTTOM)
    clear = (one for one in inside if not any(map(one.covers, placed)) and not any(map(one.hides, dots)))
    return next(clear, labels[0])


def _axes(points: Sequence[Point], counts: bool = False) -> tuple[Axis, Axis]:
    across = Axis.around([x for x, _ in points], LEFT, WIDTH - RIGHT, counts)
    return across, Axis.around([y for _, y in points], HEIGHT - BOTTOM, TOP)


def _path(points: Sequence[Point], across: Axis, up: Axis) -> str:
    """In whole tenths of a unit; L is implied after M."""
    return "M" + " ".join(f"{across(x):.0f} {up(y):.1f}" for x, y in points)


def _svg(title: str, x: str, y: str, across: Axis, up: Axis, content: Sequence[str]) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    grid = [f'<path class="grid" d="M{LEFT} {up(tick):.1f}H{right}"/>'
            f'<text x="{LEFT - 7}" y="{up(tick) + 4:.1f}" text-anchor="end">{_number(tick, up.ticks)}</text>'
            for tick in up.ticks]  # fmt: skip
    below = [f'<path class="axis" d="M{across(tick):.1f} {bottom}v5"/>'
             f'<text x="{across(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{_number(tick, across.ticks)}</text>'
             for tick in across.ticks]  # fmt: skip
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label={quoteattr(title)}>'
        f'{"".join(grid)}<path class="axis" d="M{LEFT} {bottom}H{right}"/>{"".join(below)}'
        f'<text x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x)}</text>'
        f'<text transform="translate(15 {(TOP + bottom) / 2:.0f}) rotate(-90)" text-anchor="middle">{escape(y)}</text>'
        f"{''.join(content)}</svg>"
    )


def _number(value: float, ticks: Sequence[float]) -> str:
    """With as many digits as the ticks need to differ."""
    largest = max(map(abs, ticks)) if ticks else 0
    if largest and largest < 1e-3:
        return f"{value:.2g}".replace("e-0", "e-")
    step = ticks[1] - ticks[0] if len(ticks) > 1 else largest or 1
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    decimals += step * 10**decimals % 1 > 1e-6
    return f"{value + 0.0:.{decimals}f}" if decimals < 5 else f"{value:.3g}"
