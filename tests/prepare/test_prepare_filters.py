"""Each filter against a plain reference, its count and examples in the manifest, and its part in the key."""

import gzip
import json
import random
import time
from pathlib import Path
from typing import Any

import datasets
import pytest
from prepare_inputs import DATA, MakeRun

from pipeline.config import parse_config, signature
from pipeline.errors import StageError, UserError
from pipeline.evaluate.config import EvaluationConfig
from pipeline.prepare import PreparedData, prepare
from pipeline.prepare.evaluation_sets import EvaluationSets, set_configs
from pipeline.prepare.example import Example, Rendered
from pipeline.prepare.preparation import Preparation
from pipeline.prepare.record import Fault
from pipeline.prepare.text_filters import visible_answer
from pipeline.prepare.words import ngrams


def _source(folder: Path, *rows: dict[str, Any], name: str = "x.jsonl") -> Path:
    (folder / name).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return folder / name


def _row(question: str, answer: str) -> dict[str, str]:
    return {"prompt": question, "completion": answer}


def _lines(prepared: PreparedData) -> list[int]:
    """The lines that are kept."""
    return [int(row.id.rpartition(":")[2]) for row in prepared.rows()]


def _dropped(prepared: PreparedData) -> dict[str, list[int]]:
    return {reason: [int(name.rpartition(":")[2]) for name in entry["examples"]]
            for reason, entry in prepared.manifest["dropped"].items()}  # fmt: skip


@pytest.mark.parametrize("what", ["whole", "prompt", "answer"])
def test_numbers_of_tokens(make_run: MakeRun, what: str) -> None:
    everything = list(prepare(*make_run(DATA / "alpaca.json")).rows())
    measure = {
        "whole": lambda row: len(row.input_ids),
        "prompt": lambda row: row.prompt_length,
        "answer": lambda row: len(row.input_ids) - row.prompt_length,
    }[what]
    lengths = sorted(map(measure, everything))
    low, high = lengths[len(lengths) // 4], lengths[len(lengths) // 2]
    prepared = prepare(*make_run(DATA / "alpaca.json", filters={f"{what}_tokens": {"min": low, "max": high}}))
    assert list(prepared.rows()) == [row for row in everything if low <= measure(row) <= high]
    name = "row" if what == "whole" else what
    assert {f"{name} of fewer than {low} tokens", f"{name} of more than {high} tokens"} <= {
        *prepared.manifest["dropped"]
    }


def test_a_range_upside_down_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(UserError, match=r"data.filters.answer_tokens.*min 5 is more than max 4"):
        make_run(DATA / "alpaca.json", filters={"answer_tokens": {"min": 5, "max": 4}})


@pytest.mark.parametrize(
    ("answer", "is_dropped"), [("\u200b\u00a0\u2003", True), ("\x07", True), (" .", False), ("é", False)]
)
def test_answers_that_show_nothing(answer: str, is_dropped: bool) -> None:
    try:
        visible_answer(Example("q", answer), Rendered("q", answer))
    except Fault:
        assert is_dropped
    else:
        assert not is_dropped


def test_invisible_answers_are_dropped_unless_wanted(tmp_path: Path, make_run: MakeRun) -> None:
    path = _source(tmp_path, _row("a", "\u200b\u200b"), _row("b", "B."))
    assert _dropped(prepare(*make_run(path))) == {"the answer has no visible character": [1]}
    assert _lines(prepare(*make_run(path, filters={"empty_answers": False}))) == [1, 2]


def test_scripts(tmp_path: Path, make_run: MakeRun) -> None:
    rows = [_row("What is it?", "A dog."), _row("Что это?", "Собака."), _row("1 + 1 = ?", "2"),
            _row("Say dog in Russian, please", "да"), _row("これは何?", "犬です")]  # fmt: skip
    path = _source(tmp_path, *rows)

    def kept(*scripts: str, **more: Any) -> list[int]:
        return _lines(prepare(*make_run(path, filters={"language": {"scripts": list(scripts), **more}})))

    assert kept("Latin") == [1, 3, 4]
    assert kept("Latin", min_share=0.95) == [1, 3]
    assert kept("Cyrillic") == [2, 3]
    assert kept("Han", "Hiragana") == [3, 5]
    with pytest.raises(UserError, match=r"language.scripts = 'Klingon': not a script of Unicode, such as Latin"):
        kept("Klingon")


def test_patterns(tmp_path: Path, make_run: MakeRun) -> None:
    path = _source(tmp_path, _row("Visit http://a.b", "No."), _row("Hi", "See http://a.b"), _row("Hi", "Yes."))

    def kept(**pattern: str) -> list[int]:
        return _lines(prepare(*make_run(path, filters={"patterns": [{"pattern": r"https?://\w+", **pattern}]})))

    assert kept() == [3]
    assert kept(where="answer") == [1, 3]
    assert kept(where="prompt", drop="missing") == [1]
    with pytest.raises(UserError, match=r"patterns.pattern = '\(\?=x\)': not a pattern of RE2.*invalid perl operator"):
        kept(pattern="(?=x)")


def test_a_catastrophic_pattern_does_not_hang(tmp_path: Path, make_run: MakeRun) -> None:
    path = _source(tmp_path, _row("Hi", "a" * 30_000 + "!"), _row("Hi", "b"))
    started = time.monotonic()
    run = make_run(path, filters={"patterns": [{"pattern": "(a|a|aa)+$"}]}, max_tokens=100_000)
    assert _lines(prepare(*run)) == [1, 2]
    assert time.monotonic() - started < 60, "a backtracking engine takes longer than the universe"


def test_function_of_a_file(tmp_path: Path, make_run: MakeRun) -> None:
    code = "def keep(example):\n    return True if 'x' in example.answer else {}\n"
    (tmp_path / "mine.py").write_text(code.format("'no x'"))
    path = _source(tmp_path, _row("a", "x"), _row("b", "y"), _row("c", "xyz"))
    run = make_run(path, filters={"function": f"{tmp_path}/mine.py:keep"})
    first = prepare(*run)
    assert _dropped(first) == {"function mine.py:keep: no x": [2]}
    (tmp_path / "mine.py").write_text(code.format("False"))
    second = prepare(*run)
    assert _dropped(second) == {"function mine.py:keep": [2]}
    assert first.key != second.key, "its source is part of the key"
    (tmp_path / "mine.py").write_text(code.format("1"))
    with pytest.raises(StageError, match="must return True, False or text, not int"):
        prepare(*run)
    (tmp_path / "mine.py").write_text("def keep(example):\n    return 1 / 0\n")
    with pytest.raises(StageError, match=r"mine.py:keep': raised ZeroDivisionError: division by zero"):
        prepare(*run, processes=2)


@pytest.mark.parametrize(("reference", "words"), [
    ("nowhere.py:keep", "there is no file nowhere.py"), ("no_module:keep", "can't be imported: ModuleNotFoundError"),
    ("json:nothing", "json has no function nothing"),
])  # fmt: skip
def test_function_that_can_not_be_had(make_run: MakeRun, reference: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        prepare(*make_run(DATA / "alpaca.json", filters={"function": reference}))


def test_overlap_with_evaluation_sets(tmp_path: Path, make_run: MakeRun) -> None:
    test = "The quick brown fox jumps over the lazy dog at noon?"
    _source(tmp_path, {"question": test, "answer": "1"}, {"question": "Too short", "answer": "2"}, name="test.jsonl")
    _source(tmp_path, {"text": ["other", {"deep": "one two three four five six seven eight"}]}, name="more.jsonl")
    rows = [
        _row("He said: the QUICK brown, fox jumps over the lazy dog.", "So?"), _row("The quick brown fox", "ran."),
        _row("Count.", "One, two, three, four, five, six, seven, eight!"),
        _row("the quick brown fox jumps", "over the lazy dog at noon"),  # not across fields
    ]  # fmt: skip
    path = _source(tmp_path, *rows)
    overlap = {"ngram": 8, "files": [str(tmp_path / "more.jsonl")]}
    evaluation = {"tasks": ["csqa_full"], "data": {"csqa_full": str(tmp_path / "test.jsonl")}}

    def run(mode: str) -> PreparedData:
        config, folder = make_run(path, filters={"overlap": {**overlap, "mode": mode}})
        values = config.model_dump(mode="json") | {"evaluation": evaluation}
        return prepare(parse_config(values, "test"), folder)

    reported, dropped, ignored = run("report"), run("drop"), run("ignore")
    assert reported.manifest["overlaps"] == {
        "csqa_full": {"count": 1, "examples": ["x.jsonl:1"]}, "more.jsonl": {"count": 1, "examples": ["x.jsonl:3"]},
    }  # fmt: skip
    assert reported.manifest["evaluation_sets"]["csqa_full"] == {"documents": 2, "too_short": 1}
    assert _lines(reported) == _lines(ignored) == [1, 2, 3, 4]
    assert _dropped(dropped) == {"overlaps evaluation set csqa_full": [1], "overlaps evaluation set more.jsonl": [3]}
    assert len({reported.key, dropped.key, ignored.key}) == 3
    _source(tmp_path, {"question": "Changed.", "answer": "1"}, name="test.jsonl")
    assert run("report").key != reported.key, "their content is part of the key"


@pytest.mark.parametrize(
    ("task", "split"),
    [("csqa_full", "validation"), ("arc_full", "test"), ("piqa", "validation"), ("boolq", "validation")],
)
def test_of_a_saved_folder_the_split_is_compared_that_is_scored(tmp_path: Path, task: str, split: str) -> None:
    splits = {name: datasets.Dataset.from_list([{"question": name}]) for name in ("train", "validation", "test")}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "folder"))
    evaluation = EvaluationConfig.model_validate({"tasks": [task], "data": {task: str(tmp_path / "folder")}})
    assert [*EvaluationSets.open(set_configs(evaluation, []), n=1).grams] == [split]


@pytest.mark.parametrize(("name", "content", "place"), [
    ("x.jsonl", b'{"question": "a"}\n{"question": ', "x.jsonl:2: broken JSON"),
    ("x.json", b'[{"question": "a"},\n', "x.json:2: the list of rows is not closed"),
    ("x.jsonl.gz", gzip.compress(b'{"question": "a"}\n', mtime=0)[:-9], r"x.jsonl.gz:\d+: the compressed data"),
])  # fmt: skip
def test_an_evaluation_set_that_is_not_read_whole_is_refused(
    tmp_path: Path, make_run: MakeRun, name: str, content: bytes, place: str
) -> None:
    (tmp_path / name).write_bytes(content)
    overlap = {"mode": "report", "files": [str(tmp_path / name)]}
    with pytest.raises(UserError, match=f"evaluation set {name}: .*{place}"):
        prepare(*make_run(DATA / "alpaca.json", filters={"overlap": overlap}))


@pytest.mark.parametrize("n", range(1, 10))
def test_overlap_is_that_of_all_ngrams(n: int) -> None:
    chance = random.Random(n)

    def text() -> str:
        return " ".join(chance.choices("abc", k=chance.randrange(15)))

    grams = {gram: "set" for _ in range(4) for gram in ngrams(text(), n)}
    sets = EvaluationSets(n, {}, grams, {})
    for _ in range(200):
        one = text()
        shared = [("set", gram) for gram in ngrams(one, n) if gram in grams]
        assert sets.overlap(iter([one])) == (shared[0] if shared else None)


def test_overlap_finds_copied_documents_of_the_real_sets(tmp_path: Path, make_run: MakeRun) -> None:
    documents = [json.loads(line) for line in (DATA / "arc_easy_test.jsonl").read_text(encoding="utf-8").splitlines()]
    questions = [row["question"] for row in documents]
    path = _source(tmp_path, *[_row(f"Please answer. {question}", "Sure.") for question in questions])
    filters = {"overlap": {"mode": "drop", "files": [str(DATA / "arc_easy_test.jsonl")]}}
    prepared = prepare(*make_run(path, filters=filters))
    long_enough = sum(any(ngrams(question, 8)) for question in questions)
    assert prepared.manifest["rows"]["dropped"] >= long_enough > 50


def test_a_task_whose_documents_are_not_at_hand_is_named(make_run: MakeRun) -> None:
    config, folder = make_run(DATA / "alpaca.json", filters={"overlap": {"mode": "report"}})
    values = config.model_dump(mode="json") | {"evaluation": {"tasks": ["hellaswag"]}}
    with pytest.raises(UserError, match=r"the documents of hellaswag are lm-eval's: give a file"):
        prepare(parse_config(values, "test"), folder)


FILTERS: list[dict[str, Any]] = [
    {}, {"whole_tokens": {"min": 9}}, {"prompt_tokens": {"min": 9}}, {"answer_tokens": {"max": 99}},
    {"empty_answers": False}, {"language": {"scripts": ["Latin"]}},
    {"language": {"scripts": ["Latin"], "min_share": 0.5}},
    {"patterns": [{"pattern": "x"}]}, {"patterns": [{"pattern": "x", "where": "answer"}]}, {"function": "json:dumps"},
    {"duplicates": {"exact": True}}, {"duplicates": {"near": 0.8}}, {"duplicates": {"near": 0.8, "ngram": 4}},
    {"overlap": {"mode": "report", "files": [str(DATA / "arc_easy_test.jsonl")]}},
    {"overlap": {"mode": "report", "files": [str(DATA / "piqa_validation.jsonl")]}},
    {"overlap": {"mode": "report", "ngram": 9, "files": [str(DATA / "arc_easy_test.jsonl")]}},
]  # fmt: skip
IDLE: list[dict[str, Any]] = [{"language": {"min_share": 0.5}}, {"duplicates": {"ngram": 5}}, {"overlap": {"ngram": 9}}]


def test_the_key_has_each_filter_and_no_setting_of_a_filter_that_is_off(make_run: MakeRun) -> None:
    keys = [Preparation.of(make_run(DATA / "alpaca.json", filters=values)[0]).path.name for values in FILTERS]
    assert len(set(keys)) == len(keys)
    for values in IDLE:
        assert Preparation.of(make_run(DATA / "alpaca.json", filters=values)[0]).path.name == keys[0]


def test_default_filters_do_not_change_the_signature_of_a_run(make_run: MakeRun) -> None:
    plain, _ = make_run(DATA / "alpaca.json")
    spelled, _ = make_run(DATA / "alpaca.json", filters={"empty_answers": True})
    other, _ = make_run(DATA / "alpaca.json", filters={"empty_answers": False})
    assert signature(plain) == signature(spelled) != signature(other)
