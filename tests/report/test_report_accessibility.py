"""The page without a mouse and for weak eyes: headers, labels, order of the focus, contrast as WCAG 2 computes it."""

import io
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.report import Cell, report
from pipeline.report.page import WEB

MakeRun = Callable[..., Cell]
CSS = (WEB / "page.css").read_text(encoding="utf-8")
FOCUSABLE = {"a", "button", "input", "select", "summary"}


class Page(HTMLParser):
    """Every opening tag with its attributes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def page(demo_cells: list[Cell], make_run: MakeRun, tmp_path: Path) -> Page:
    missing = make_run(
        "Worse", 42, {"piqa": 0.2, "arc": None}, method="no_mixing", tasks=("piqa", "arc"), reason="lost"
    )
    report([*demo_cells, missing], "T", "LoRA", tmp_path / "out", Console(file=io.StringIO()))
    return Page((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))


def test_headers_of_tables_have_a_scope(page: Page) -> None:
    scopes = [attributes.get("scope") for attributes in page.all("th")]
    assert set(scopes) == {"col", "row"}
    assert scopes.count("row") == 4 + 4 + 1  # results, cost, what is missing
    assert all("aria-labelledby" in attributes for attributes in page.all("table"))


def test_every_field_and_reference_has_its_target(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    fields = [attributes["id"] for tag in ("input", "select") for attributes in page.all(tag)]
    assert set(fields) <= {attributes["for"] for attributes in page.all("label")} and "filter" in fields
    references = [attributes[name] for _, attributes in page.tags for name in ("aria-labelledby", "aria-describedby")
                  if name in attributes]  # fmt: skip
    links = [attributes["href"].removeprefix("#") for attributes in page.all("a")]
    assert {*references, *links} <= set(ids)
    assert page.all("html") == [{"lang": "en"}] and [tag for tag, _ in page.tags].count("h1") == 1


def test_the_focus_follows_the_text(page: Page) -> None:
    """No tabindex above 0 changes the order; the first stop leads past the navigation."""
    assert {attributes["tabindex"] for _, attributes in page.tags if "tabindex" in attributes} == {"0"}
    stops = [attributes for tag, attributes in page.tags if tag in FOCUSABLE or "tabindex" in attributes]
    assert stops[0]["class"] == "skip" and stops[0]["href"] == "#results"
    scrolled = [attributes for _, attributes in page.tags if attributes.get("class") == "scroll"]
    assert scrolled and all("tabindex" in attributes for attributes in scrolled), "a keyboard must be able to scroll"
    assert ":focus-visible { outline:" in CSS and "outline: none" not in CSS and "outline: 0" not in CSS


def colours(css: str) -> dict[str, str]:
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{3,6});", css))


LIGHT = colours(CSS[: CSS.index("@media")])
DARK = colours(CSS[CSS.index("@media (prefers-color-scheme: dark)") : CSS.index("* { box-sizing")])
THEMES = [pytest.param(LIGHT, id="light"), pytest.param(DARK, id="dark")]


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    digits = colour.removeprefix("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_by_known_values() -> None:
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("theme", THEMES)
def test_text_stands_out(theme: dict[str, str]) -> None:
    """4.5 : 1 for text (level AA), on the ground and under the pointer; 3 : 1 for lines of figures and the focus."""
    for text, ground in product(("text", "soft"), ("ground", "raised", "line")):
        assert contrast(theme[text], theme[ground]) >= 4.5, f"{text} on {ground}"
    assert contrast(theme["accent"], theme["ground"]) >= 4.5
    for series in (f"c{number}" for number in range(8)):
        assert contrast(theme[series], theme["ground"]) >= 3, series
