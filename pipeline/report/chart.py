"""Diagrams as inline SVG: lines and points in the colours of the page's style sheet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

WIDTH, HEIGHT = 640, 330
LEFT, RIGHT, TOP, BOTTOM = 84, 14, 12, 46
COLOURS, DASHES = 8, 3
"""Classes c0 to c7 and d0 to d2 of the style sheet."""

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
    """A point for each series, with its standard deviation as a vertical line (0: none) and its label beside it."""
    if not series:
        return ""
    points = [one.points[0] for one in series]
    heights = [(px, py + sign * error) for (px, py), error in zip(points, errors, strict=True) for sign in (-1, 1)]
    across, up = _axes([*points, *heights])
    marks = [_mark(one, error, across, up, len(series) <= 12) for one, error in zip(series, errors, strict=True)]
    return _svg(title, x, y, across, up, marks)


def _mark(one: Series, error: float, across: Axis, up: Axis, labelled: bool) -> str:
    (px, py), style = one.points[0], f"c{one.place % COLOURS}"
    x, y = across(px), up(py)
    bar = f'<path class="line {style}" d="M{x:.1f} {up(py - error):.1f}V{up(py + error):.1f}"/>' if error else ""
    anchor, shift = ("end", -9) if x > WIDTH * 0.7 else ("start", 9)
    text = (
        f'<text x="{x + shift:.1f}" y="{y - 7:.1f}" text-anchor="{anchor}">{escape(one.row)}</text>' if labelled else ""
    )
    dot = f'<circle class="dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{escape(one.label)}</title></circle>'
    return f"<g data-row={quoteattr(one.row)}>{bar}{dot}{text}</g>"


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
