"""The audit counts what is odd in the rows themselves, fails at its thresholds, and shows hostile texts harmlessly."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import AutoTokenizer

from pipeline.audit.config import AuditConfig, MaxPercentConfig
from pipeline.audit.measure import measure
from pipeline.audit.samples import sample_of, visible
from pipeline.audit.stage import audit
from pipeline.audit.view import View
from pipeline.cli import main
from pipeline.config import parse_config, signature
from pipeline.files import write_json
from pipeline.prepare import Row
from pipeline.prepare.cache import PreparedData, Writer, load
from pipeline.prepare.piece import Piece, batch_of
from pipeline.prepare.tokens import Tokens
from pipeline.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
STORIES = ROOT / "tests" / "fixtures" / "stories260K"
BOS, EOS = 1, 2
HOSTILE = (
    "</mark></div><script>alert('x')</script><img src=https://evil.example/a.png onerror=alert(1)>\x1b[31m\u202eabc"
)
GOOD = {"prompt": "What is it?", "completion": "It is a good dog."}


def _run(folder: Path, rows: list[dict[str, Any]], **values: Any) -> View:
    (folder / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    base: dict[str, Any] = {
        "model": {"name": str(STORIES)},
        "data": {"sources": [{"path": str(folder / "x.jsonl")}], "max_dropped_percent": 1},
        "paths": {"runs": str(folder / "runs"), "cache": str(folder / "cache")},
    }
    config = parse_config(base | values, "test")
    return audit(config, RunFolder.of(config), Console(file=io.StringIO()), folder / "page.html")


def _handmade(folder: Path, rows: list[tuple[list[int], int]], max_tokens: int) -> PreparedData:
    """Rows as a faulty tokenisation would have left them."""
    path = folder / "0123456789abcdef"
    path.mkdir()
    names = [f"x:{number}" for number in range(len(rows))]
    with Writer(path) as writer:
        writer.put(Piece(batch_of(names, [Tokens(ids, length) for ids, length in rows]), len(rows)))
    manifest = {"key": path.name, "rows": {"read": len(rows), "kept": len(rows), "rejected": 0, "dropped": 0},
                "max_tokens": max_tokens, "ended_early": {}, "overlaps": {}, "boundary_merges": 1}  # fmt: skip
    return PreparedData(path, manifest, io.BytesIO())


def test_oddities_are_counted_on_the_rows(tmp_path: Path) -> None:
    rows = [
        ([BOS, 5, 6, 7, EOS], 3), ([BOS, 5, 6, 7, EOS], 3),  # good, and its duplicate
        ([BOS, 5, 6, EOS], 3),  # no target
        ([BOS, 5, 6, 7, 8], 3),  # no EOS
        ([BOS, 5, 6, 7, 8, 9, 10, 11], 3),  # cut at max_tokens
        ([BOS, BOS, 6, 7, EOS], 3),  # two BOS
    ]  # fmt: skip
    measures = measure(_handmade(tmp_path, rows, max_tokens=8), AutoTokenizer.from_pretrained(STORIES), None, seed=1)
    assert measures.counts == {
        "lost": 0, "no_target": 1, "missing_eos": 2, "cut_answers": 1, "double_bos": 1, "boundary_merges": 1,
        "duplicates": 1, "overlaps": 0,
    }  # fmt: skip
    assert [sample.tokens for sample in measures.longest] == [8, 5, 5, 5, 5, 4]
    assert [sample.id for sample in measures.random] == [f"x:{number}" for number in range(6)]
    assert measures.passed(MaxPercentConfig()) == [
        "no_target", "cut_answers", "missing_eos", "double_bos", "boundary_merges", "duplicates",
    ]  # fmt: skip
    assert measures.passed(MaxPercentConfig.model_validate(dict.fromkeys(MaxPercentConfig.model_fields))) == []


def test_good_rows_pass_and_ten_are_shown(tmp_path: Path) -> None:
    view = _run(tmp_path, [{**GOOD, "prompt": f"What is {'very ' * (number % 15)}{number}?"} for number in range(40)])
    assert not view.failed
    assert len(view.longest) == len(view.random) == 10
    assert sum(one["count"] for one in view.lengths["prompt"]) == 40


def test_lost_rows_are_shown_even_where_preparation_would_stop(tmp_path: Path) -> None:
    view = _run(tmp_path, [GOOD, {**GOOD, "completion": ""}, {**GOOD, "completion": "a " * 900}])
    assert [finding.name for finding in view.failed] == ["lost"]
    assert {loss.reason for loss in view.losses} == {"empty field 'completion'", "longer than max_tokens"}
    nothing = _run(tmp_path, [{**GOOD, "completion": ""}], audit={"max_percent": {"lost": None}})
    assert [finding.name for finding in nothing.failed] == ["lost"], "no row is left"


@pytest.mark.parametrize(("limit", "failed"), [(20, ["lost"]), (100, []), (None, [])])
def test_a_file_that_ends_early_is_lost_rows(tmp_path: Path, limit: float | None, failed: list[str]) -> None:
    rows = ",\n".join(json.dumps({**GOOD, "prompt": f"What is {number}?"}) for number in range(40))
    (tmp_path / "x.json").write_text(f"[{rows},\n")
    data = {"sources": [{"path": str(tmp_path / "x.json")}]}
    view = _run(tmp_path, [], data=data, audit={"max_percent": {"lost": limit}})
    assert [finding.name for finding in view.failed] == failed
    assert "follows it: 1 (x.json:41)" in view.notes[0]


def test_overlap_with_local_evaluation_sets(tmp_path: Path) -> None:
    question = "Which of these very long words stands in both of the sets?"
    (tmp_path / "test.jsonl").write_text(json.dumps({"question": question, "answer": "1"}))
    evaluation = {"tasks": ["csqa_full", "arc_full"], "data": {"csqa_full": str(tmp_path / "test.jsonl")}}
    view = _run(tmp_path, [GOOD, {**GOOD, "prompt": question}], evaluation=evaluation)
    assert view.overlaps == {"csqa_full": 1}
    assert [finding.name for finding in view.failed] == ["overlaps"]
    assert view.notes == ["not compared, for want of a file in evaluation.data: arc_full"]


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_hostile_texts_are_shown_and_do_nothing(tmp_path: Path) -> None:
    rows = [{"prompt": HOSTILE, "completion": HOSTILE}, {"prompt": HOSTILE, "completion": 7}]
    _run(tmp_path, rows, name="hostile")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    tags = _Tags()
    tags.feed(page)
    assert not tags.tags & {"script", "img", "iframe", "a"}
    assert tags.links == ["data:,"], "no network"
    assert "default-src 'none'" in page
    assert "<script>alert" in "".join(tags.texts)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", page)


def test_the_page_draws_a_bar_for_rows_and_none_for_no_rows(tmp_path: Path) -> None:
    view = _run(tmp_path, [GOOD, {**GOOD, "prompt": "What is it? " * 9}, {**GOOD, "completion": ""}])
    counts = [one["count"] for bins in view.lengths.values() for one in bins]
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert 0 in counts and page.count('class="bar"') == sum(count > 0 for count in counts)
    assert "empty field &#39;completion&#39;" in page and "such as x.jsonl:3" in page


def test_terminal_gets_no_control_characters(tmp_path: Path) -> None:
    assert visible("a\x1b[31mb\u202ec\x7f\td") == "a␛[31mb[U+202E]c[U+007F]\td"


def test_trained_tokens_are_told_from_the_others() -> None:
    tokenizer = AutoTokenizer.from_pretrained(STORIES)
    prompt, answer = ([*tokenizer.encode(text, add_special_tokens=False)] for text in ("Who is it?", " A dog"))
    sample = sample_of(Row("x:1", [BOS, *prompt, *answer, EOS], len(prompt) + 1, []), tokenizer)
    assert [part.is_trained for part in sample.parts] == [False, True]
    assert "dog" in sample.parts[1].text and "Who" in sample.parts[0].text
    assert sample.trained == len(answer) + 1
    assert "".join(part.text for part in sample.parts) == tokenizer.decode([BOS, *prompt, *answer, EOS])


def test_thresholds_do_not_change_the_signature(tmp_path: Path) -> None:
    base = {"model": {"name": "x"}, "tuning": {"kind": "none"}}
    assert signature(parse_config(base, "a")) == signature(
        parse_config({**base, "audit": {"max_percent": {"lost": 1}}}, "b")
    )
    assert AuditConfig().max_percent.lost == 20


def test_exit_status_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.jsonl").write_text("\n".join([json.dumps(GOOD)] * 3))
    values = {"model": {"name": str(STORIES)}, "data": {"sources": [{"path": str(tmp_path / "x.jsonl")}]},
              "paths": {"runs": str(tmp_path / "runs"), "cache": str(tmp_path / "cache")}}  # fmt: skip
    write_json(tmp_path / "run.yaml", values)
    assert main(["audit", str(tmp_path / "run.yaml")]) == 1
    told = capsys.readouterr()
    assert "exact duplicates: 2 rows (66.67%), more than audit.max_percent.duplicates allows" in told.err
    assert "What is it?" in told.out
    assert main(["audit", str(tmp_path / "run.yaml"), "audit.max_percent.duplicates=null"]) == 0
    config = parse_config(values, "test")
    assert RunFolder.of(config).audit.is_file()
    assert load(next((tmp_path / "cache" / "prepared").iterdir())) is not None
