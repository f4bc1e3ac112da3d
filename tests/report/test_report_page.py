"""The page and the CSV: content, escaping, size; and the page in a real browser."""

import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline.report import Cell, Layout, build_table, report
from pipeline.report.arrangement import arranged
from pipeline.report.chart import HEIGHT, LABELS, WIDTH, Axis, Label, Series, line_chart, scatter
from pipeline.report.curves import POINTS, read_curves
from pipeline.report.figures import draw
from pipeline.report.spreadsheet import render_csv
from pipeline.report.table import cost_table

MakeRun = Callable[..., Cell]
HOSTILE = "<script>window.hacked=1</script> \"&' </script><img src=x onerror=window.hacked=1>"


def log(cell: Cell, updates: int, layers: int = 0) -> None:
    """A made-up train/metrics.jsonl: loss 2 / step, ratios rising with layer and step."""
    lines = []
    for step in range(1, updates + 1):
        values: dict[str, Any] = {"step": step, "loss": 2 / step, "learning_rate": 1e-3, "tokens_per_second": 100.0,
                                  "peak_memory_bytes": 10**9}  # fmt: skip
        if layers and step % max(1, updates // 10) == 0:
            values["alphas"] = [{"key": 0.1 * (k + 1), "value": 0.5} for k in range(layers)]
        lines.append(json.dumps(values))
    cell.folder.metrics.write_text("\n".join(lines) + "\n")


@pytest.fixture
def cells(make_run: MakeRun) -> list[Cell]:
    def rights(count: int) -> list[int]:
        return [1] * count + [0] * (40 - count)

    found = [
        make_run("Pretrained", None, {"piqa": rights(20), "arc": rights(12)}),
        make_run("LoRA", 42, {"piqa": rights(20), "arc": rights(14)}),
        make_run("LoRA", 43, {"piqa": rights(22), "arc": rights(15)}),
        make_run("Bitune", 42, {"piqa": rights(36), "arc": rights(18)}, method="bitune"),
        make_run("Bitune", 43, {"piqa": rights(35), "arc": None}, method="bitune", reason="failed: disk is full"),
        make_run(HOSTILE, 42, {"piqa": rights(30), "arc": rights(10)}, method="no_mixing"),
    ]
    for cell in found[1:]:
        log(cell, 200, layers=3 if cell.row == "Bitune" else 0)
    return found


@pytest.fixture
def page(cells: list[Cell], tmp_path: Path) -> Path:
    report(cells, HOSTILE, "LoRA", tmp_path / "out", Console(file=io.StringIO()))
    return tmp_path / "out" / "report.html"


def data_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found.group(1))


def test_the_page_needs_nothing_else_and_escapes_names(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert HOSTILE not in text and "<img" not in text and text.count("<script") == 2
    assert all(link.startswith(("#", "data:,")) for link in re.findall(r'<[^>]* (?:src|href)="([^"]*)"', text))
    assert "url(" not in text and "@import" not in text
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}


def test_every_number_of_the_page_has_its_origin(page: Path, cells: list[Cell]) -> None:
    text = page.read_text(encoding="utf-8")
    data = data_of(text)
    assert sorted(map(int, re.findall(r'data-sheet="(\d+)"', text))) == list(range(len(data["sheets"])))
    sheet = next(sheet for sheet in data["sheets"] if sheet["title"] == "Bitune, piqa")
    assert [(data["runs"][run]["seed"], task, value) for run, task, value in sheet["runs"]] == [
        ("42", "piqa", "90"), ("43", "piqa", "87.5"),
    ]  # fmt: skip
    assert data["runs"][sheet["runs"][0][0]]["file"] == (cells[3].folder.root / "evaluate" / "TASK.json").as_posix()
    assert data["runs"][sheet["runs"][0][0]]["commit"] == "0123456789ab"
    assert ["method.name", '"bitune"', '"causal"'] in data["settings"][sheet["settings"]]
    average = next(sheet for sheet in data["sheets"] if sheet["title"] == "Pretrained, average")
    assert "Paired bootstrap over documents" in dict(average["facts"])


def test_what_is_missing_stands_on_the_page(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    section = text[text.index('id="failures"') :]
    assert "failed: disk is full" in section and '<th scope="row">Bitune</th><td>43</td><td>arc</td>' in section


def test_published_numbers_are_sorted_among_ours_in_every_unit(make_run: MakeRun, tmp_path: Path) -> None:
    perplexity = {"main_metric": "perplexity", "metrics": {"perplexity": 8.5}}
    cells = [make_run("A", 42, {"piqa": 0.5, "lambada": 0.5}, lambada=perplexity)]
    published = {"Blog": {"piqa": "52.5 ± 0.7", "lambada": "9.06", "device h": "1.5"}}
    layout = Layout(cost=("hours",))
    report(cells, "T", None, tmp_path, Console(file=io.StringIO()), layout, reference=published)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    rows = [re.findall(r'data-order="([^"]+)"', row) for row in re.findall(r"<tr data-row=.*?</tr>", text, re.DOTALL)]
    assert rows[:2] == [["0.5", "8.5", "3600"], ["0.525", "9.06", "5400"]]


def test_long_runs_are_thinned_out(make_run: MakeRun) -> None:
    cell = make_run("A", 42, {"piqa": 0.5}, method="bitune")
    log(cell, 1000, layers=2)
    with cell.folder.metrics.open("a") as file:
        file.write('{"step": 1001, "los')
    curves = read_curves(cell.folder.metrics)
    steps = [step for step, _ in curves.lines["loss"]]
    assert len(steps) == POINTS - 1 and steps[0] == 1 and steps == sorted(set(steps))  # the last line is not whole
    assert curves.lines["loss"][0][1] == 2.0 and curves.lines["peak_memory_bytes"][0][1] == 1.0
    assert len(curves.ratio_steps) == 10 and curves.ratios["key"][-1] == [0.1, 0.2]
    assert read_curves(cell.folder.root / "none").lines["loss"] == []


def cost_figure(cells: list[Cell], layout: Layout) -> str:
    table = build_table(cells, "T", layout=layout)
    figure = draw(arranged(cells, layout)[0], table, cost_table(cells, layout)).cost
    return figure.svg if figure else ""


@pytest.mark.parametrize("arrange", ["tasks", "models", "methods"])
def test_averages_stand_against_their_own_cost_in_every_arrangement(make_run: MakeRun, arrange: Any) -> None:
    layout = Layout(arrange=arrange, groups={"small": "Small", "large": "Large"})
    cells = [
        make_run(row, 42, {"piqa": 0.5 + 0.1 * n}, model=f"models/{model}", method=method,
                 result={"wall_seconds": 3600.0 * (n + 1)})
        for n, (row, model, method) in enumerate(
            [("LoRA", "small", "causal"), ("Bitune", "small", "bitune"), ("LoRA", "large", "causal")])
    ]  # fmt: skip
    svg = cost_figure(cells, layout)
    assert sorted(re.findall(r"<circle.*?<title>(.*?)</title>", svg)) == [
        "Large LoRA: 70.0, 3 h", "Small Bitune: 60.0, 2 h", "Small LoRA: 50.0, 1 h",
    ]  # fmt: skip
    assert 'aria-label="average against cost"' in svg
    ours = [row.is_published for row in build_table(cells, "T", layout=layout).rows]
    assert ours == [False] * len(ours), "a model without this method does not make a row another source's"


def test_costs_alone_are_not_drawn_against_cost(make_run: MakeRun) -> None:
    cells = [make_run("A", 42, {"piqa": 0.5})]
    assert cost_figure(cells, Layout(columns={}, cost=("hours", "memory"), average=None)) == ""
    assert "piqa against cost" in cost_figure(cells, Layout(cost=("hours",), average=None))


def labels_of(svg: str) -> list[Label]:
    found = re.findall(r'<text data-row="([^"]+)" x="([^"]+)" y="([^"]+)" text-anchor="(\w+)"', svg)
    return [Label(row, row, float(x), float(y), anchor == "end") for row, x, y, anchor in found]


def test_names_of_close_points_stay_apart() -> None:
    series = [Series("label", f"Method {n}", [(1.0, 50.0)], n) for n in range(LABELS)]
    labels = labels_of(scatter(series, "title", "x", "y", [0.0] * LABELS))
    assert len(labels) == LABELS and all(0 < label.y < HEIGHT for label in labels)
    assert not any(one.covers(other) for one, other in combinations(labels, 2))
    apart = [Series("label", f"Method {n}", [(n, n)], n) for n in range(2)]
    assert len({label.y for label in labels_of(scatter(apart, "t", "x", "y", [0, 0]))}) == 2


LONG = "Gemma-2B Bitune (Full FT)"


@pytest.mark.parametrize(("x", "row", "text", "sides"), [
    (440, LONG, LONG, "left"), (300, LONG, LONG, "right"), (600, "LoRA", "LoRA", "left"),
    (84, "LoRA", "LoRA", "right"), (300, "LoRA", "LoRA", "right left"),
    (300, "n" * 80, f"{'n' * 29}…", "right"), (500, "n" * 80, f"{'n' * 36}…", "left"),
])  # fmt: skip
def test_a_name_ends_within_the_chart(x: float, row: str, text: str, sides: str) -> None:
    labels = Label.around(row, x, 100)
    assert {label.text for label in labels} == {text}
    assert " ".join("left" if label.is_left else "right" for label in labels) == sides
    assert all(label.ends[0] >= 0 and label.ends[1] <= WIDTH for label in labels)


def test_names_stay_off_the_points() -> None:
    points = [(10.0, 50.0), (20.0, 50.5), (30.0, 50.0), (100.0, 60.0)]
    series = [Series("label", f"A method called {n}", [point], n) for n, point in enumerate(points)]
    svg = scatter(series, "title", "x", "y", [0.0] * 4)
    dots = [(float(x), float(y)) for x, y in re.findall(r'cx="([^"]+)" cy="([^"]+)"', svg)]
    labels = labels_of(svg)
    assert len(dots) == len(labels) == 4 and not any(label.hides(dot) for label in labels for dot in dots)


def test_axes_have_round_ticks() -> None:
    assert Axis(0, 10, 0, 100).ticks == [0, 2, 4, 6, 8, 10]
    assert Axis(0, 2, 0, 100, counts=True).ticks == [0, 1, 2]
    assert Axis(0, 12, 0, 100, counts=True).ticks == [0, 5, 10]
    assert [round(tick, 9) for tick in Axis(0.31, 0.52, 0, 100).ticks] == [0.35, 0.4, 0.45, 0.5]
    assert line_chart([Series("a", "a", [], 0)], "t", "x", "y") == ""
    one = line_chart([Series("a", "a", [(1, 5)], 0)], "t", "x", "y")
    assert "nan" not in one and one.count("<path") >= 3


def test_csv_holds_every_number_unrounded(cells: list[Cell]) -> None:
    table = build_table(cells, "T", "LoRA", Layout(differences="tasks"))
    lines = list(csv.DictReader(io.StringIO(render_csv(table))))
    assert len(lines) == 4 * 3
    found = next(line for line in lines if (line["method"], line["column"]) == ("Bitune", "piqa"))
    assert float(found["value"]) == pytest.approx((36 + 35) / 80) and found["n"] == found["planned"] == "2"
    assert float(found["difference"]) == pytest.approx((71 - 42) / 80) and found["seeds"] == "42 43"
    assert len(found["p_mcnemar"].split()) == 2 and all(float(p) < 0.05 for p in found["p_mcnemar"].split())
    assert float(found["p_bootstrap"]) < 0.05 and 0 < float(found["p_seeds"]) < 1
    average = next(line for line in lines if (line["method"], line["column"]) == ("Pretrained", "average"))
    assert average["p_bootstrap"] and average["p_mcnemar"] == ""  # the average of two tasks is neither right nor wrong
    assert found["within_noise"] == "False" and float(found["p_holm"]) < 0.05
    assert {line["method"] for line in lines} == {"Pretrained", "LoRA", "Bitune", HOSTILE}
    incomplete = next(line for line in lines if (line["method"], line["column"]) == ("Bitune", "arc"))
    assert incomplete["missing"] == "failed: disk is full" and incomplete["p"] == "" == incomplete["std"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: no browser was tested")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium and chromedriver are not installed: no browser was tested")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    folder = tmp_path_factory.mktemp("chromium")
    for argument in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--disable-background-networking", "--disable-component-update", "--disable-sync",
                     "--remote-debugging-pipe", f"--user-data-dir={folder}"):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    found.set_page_load_timeout(30)
    yield found
    found.quit()


def texts(browser: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].filter(e => e.offsetParent).map(e => e.textContent)"
    return browser.execute_script(script, selector)


@pytest.mark.slow
def test_the_page_in_a_browser(browser: Any, page: Path) -> None:
    browser.get(page.as_uri())
    assert browser.title == HOSTILE and browser.execute_script("return window.hacked") is None
    assert texts(browser, "#results tbody th") == ["Pretrained", "LoRA", "Bitune", HOSTILE]

    browser.find_element("css selector", "#results thead th:nth-child(2) button").click()
    assert texts(browser, "#results tbody th") == ["Bitune", HOSTILE, "LoRA", "Pretrained"]
    browser.find_element("css selector", "#results thead th:nth-child(2) button").click()
    assert texts(browser, "#results tbody th") == ["Pretrained", "LoRA", HOSTILE, "Bitune"]
    assert browser.find_element("css selector", "#results th:nth-child(2)").get_attribute("aria-sort") == "ascending"

    browser.find_element("id", "filter").send_keys("bit")
    assert texts(browser, "#results tbody th") == ["Bitune"] and texts(browser, "#shown") == ["1 of 4 rows"]
    lines = (
        "return [...document.querySelectorAll('#curves figure path[data-row]:not(.hidden)')].map(e => e.dataset.row)"
    )
    assert set(browser.execute_script(lines)) == {"Bitune"}

    browser.find_element("css selector", "#results tbody tr:not(.hidden) button.number").click()
    shown = browser.find_element("id", "origin").text
    assert all(
        word in shown for word in ("Bitune, piqa", "0123456789ab", "evaluate/piqa.json", "method.name", "2 of 2")
    )
    browser.find_element("css selector", "dialog form button").click()
    assert not browser.execute_script("return document.getElementById('origin').open")

    assert browser.execute_script("return document.querySelectorAll('#heat rect').length") == 2 * (10 * 3 + 50)
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.slow
def test_the_page_is_readable_in_the_dark_and_on_a_phone(
    browser: Any, page: Path, make_run: MakeRun, tmp_path: Path
) -> None:
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                            {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True})  # fmt: skip
    grounds = []
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get(page.as_uri())
        grounds.append(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    endless = make_run("n" * 5000, 42, {"piqa": 0.5, "arc": None}, method="bitune", reason="r" * 500)
    log(endless, 20, layers=2)
    report([endless], "n" * 5000, None, tmp_path / "endless", Console(file=io.StringIO()))
    browser.get((tmp_path / "endless" / "report.html").as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert grounds == ["rgb(255, 255, 255)", "rgb(21, 24, 28)"]


@pytest.mark.slow
def test_a_screen_reader_gets_names_for_everything(browser: Any, page: Path) -> None:
    """Chromium's own accessibility tree: no button, table, picture or field without a name."""
    browser.get(page.as_uri())
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = {
        "button",
        "table",
        "image",
        "img",
        "searchbox",
        "combobox",
        "dialog",
        "region",
        "navigation",
        "columnheader",
    }
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes
             if not node.get("ignored") and node["role"]["value"] in roles]  # fmt: skip
    unnamed = [role for role, name in named if not name.strip()]
    assert not unnamed and {"button", "table", "columnheader", "searchbox", "combobox"} <= {role for role, _ in named}


@pytest.mark.slow
def test_the_page_with_the_keyboard_alone(browser: Any, page: Path) -> None:
    """The focus goes from top to bottom, opens the origin of a number, and comes back to it."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    def press(*keys: str) -> Any:
        ActionChains(browser).send_keys(*keys).perform()
        return browser.switch_to.active_element

    browser.get(page.as_uri())
    assert press(Keys.TAB).get_attribute("class") == "skip"
    seen = [press(Keys.TAB) for _ in range(12)]
    heights = [browser.execute_script("return arguments[0].getBoundingClientRect().top + scrollY", e) for e in seen]
    assert heights == sorted(heights) and "filter" in [element.get_attribute("id") for element in seen]

    number = browser.find_element("css selector", "#results button.number")
    browser.execute_script("arguments[0].focus()", number)
    press(Keys.ENTER)
    opened = "return document.getElementById('origin').open"
    inside = "return document.getElementById('origin').contains(document.activeElement)"
    assert browser.execute_script(opened) and browser.execute_script(inside)
    assert press(Keys.ESCAPE) == number and not browser.execute_script(opened)
