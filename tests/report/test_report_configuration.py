"""The configuration of a run folder as it is read: quickly, with nothing lost, in bounded time and memory."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.report import Cell
from pipeline.report.collect import collect
from pipeline.report.record import Missing, Record
from pipeline.yaml_file import read_sections, read_yaml

MakeRun = Callable[..., Cell]


def test_equal_sections_of_many_configurations_are_read_as_the_whole_file_is(tmp_path: Path) -> None:
    texts = [
        "name: a\nmodel:\n  name: m\n# note\nseed: 3\n",
        'name: "a\n b"\ndata:\n- x: 1\n',
        "{name: a, seed: 3}",
        "base: &b\n  x: 1\nmore: *b\n",
        "a:\n  b:\n    c: 1\n    yes: 2\n  d: null\n",
        "a:\n  b: |\n    c: 1\n  d: 2\n",
        "a:\n  b: 'x\n  c: 3'\n",
        "a:\n    b: 1\n    c:\n    - d: 1\n      e: 2\n",
        "a:\n  plain\n  text\n",
        "1:\n  2: 3\n",
        "a:\r\n  b: 1\r\n  c: 2\r\n",
        "a:\n  b: 1\n  # c: 2\n  d: 3",
        "a:\n  b: &x 1\n  c: *x\n",
    ]
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        assert read_sections(path) == read_yaml(path)


@pytest.mark.parametrize("text", ["name: a\nname: b\n", "a: [1\n", "a: &x [*x]\n", "nothing", "? b\n: c\na: 1\na: 2\n",
                                  "a:\n  b: 1\n  b: 2\n", "a:\n  b: 1\n c: 2\n", "a:\n  b: 1\n    c: 2\n"])  # fmt: skip
def test_a_broken_configuration_is_refused_in_either_way(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as whole:
        read_yaml(path)
    with pytest.raises(UserError, match=re.escape(str(whole.value))):
        read_sections(path)


def bomb(levels: int) -> str:
    """Ten aliases of ten aliases of ..."""
    lines = ["l0: &l0 [" + ", ".join(["x"] * 10) + "]"]
    lines += [f"l{n}: &l{n} [" + ", ".join([f"*l{n - 1}"] * 10) + "]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


MERGED = "m0: &m0 {a: 1}\n" + "".join(
    f"m{n}: &m{n} {{<<: [" + ", ".join([f"*m{n - 1}"] * 10) + "]}\n" for n in range(1, 12)
)
NESTED = "n0: &n0 [x]\n" + "".join(f"n{n}: &n{n} [*n{n - 1}]\n" for n in range(1, 200))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (bomb(30), "with its aliases written out it is larger than 1,000,000 characters"),
        (MERGED, "with its aliases written out it is larger than 1,000,000 characters"),
        (NESTED, "more than 100 lists and groups of keys within each other"),
        ("a: " + "[" * 500 + "]" * 500 + "\n", "more than 100 lists and groups of keys within each other"),
        ("a: " + "[" * 100_000, "not valid YAML"),
        ("- " * 50_000, "not valid YAML"),
        ("a: &x [*x]\n", "an alias refers to the very thing that holds it"),
        ("a: x\n" * 200_001, "is larger than 1,000,000 bytes"),
        ("? [a]\n: b\n", "not valid YAML"),
    ],
)
def test_no_configuration_takes_endless_time_or_memory(make_run: MakeRun, text: str, words: str) -> None:
    whole, damaged = make_run("A", 42, {"piqa": 0.5}), make_run("A", 43, {"piqa": 0.5})
    damaged.folder.config.write_text(text)
    kept, gap = collect([whole, damaged])
    assert isinstance(kept, Record) and isinstance(gap, Missing)
    assert gap.reason.startswith("config.yaml") and words in gap.reason


def test_a_pipe_in_the_place_of_a_configuration_is_not_waited_for(make_run: MakeRun) -> None:
    cell = make_run("A", 42, {"piqa": 0.5})
    cell.folder.config.unlink()
    os.mkfifo(cell.folder.config)
    (gap,) = collect([cell])
    assert isinstance(gap, Missing) and gap.reason == "config.yaml: is not a file"
