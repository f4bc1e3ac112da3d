"""Drawings of patterns: the terminal's, the picture, and what is said when they can't be made."""

import sys
from pathlib import Path

import pytest

from pipeline.cli import main
from pipeline.errors import UserError
from pipeline.model.patterns import PATTERNS
from pipeline.model.picture import sample_mask, save_png


def test_slippery_is_drawn_as_it_sees(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "pattern", "slippery", "--length", "4", "--answer", "2"]) == 0
    drawing = capsys.readouterr().out.replace("██", "x").replace("▒▒", "o").replace("··", ".").split()
    assert drawing == ["x.....", "xx....", "xxx...", "x.xx..", "ooooo.", "oooooo"]
    assert main(["show", "pattern", "slippery", "--length", "3", "--answer", "3", "--scope", "input"]) == 0
    drawing = capsys.readouterr().out.replace("██", "x").replace("▒▒", "o").replace("··", ".").split()
    assert drawing == ["x.....", "xx....", "xxx...", "o.oo..", "o..oo.", "oooooo"]


def test_segments_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "pattern", "segment", "--length", "3", "--segments", "1", "--answer", "1"]) == 0
    drawing = capsys.readouterr().out.replace("██", "x").replace("▒▒", "o").replace("··", ".").split()
    assert drawing == ["x...", "xxx.", "xxx.", "oooo"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["slipery"], "pattern = 'slipery': must be one of 'causal', 'bidirectional',"),
        (["causal", "--sinks", "2"], "the pattern 'causal' has no sinks: that is a key of slippery"),
        (["slippery", "--window", "-1"], "window = -1: must be at least 0"),
    ],
)
def test_mistakes_are_named(capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    assert main(["show", "pattern", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: {expected}")


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_as_a_picture(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    save_png(sample_mask(name, {}, 6, 2), 6, name, tmp_path / "mask.png")
    assert (tmp_path / "mask.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[plots\]'"):
        save_png(sample_mask("causal", {}, 3, 1), 3, "causal", tmp_path / "mask.png")
