"""Asking a base model under a method, with a system message, from a file, and beyond the length it was made for."""

from pathlib import Path

import pytest

from pipeline.answer import answer
from pipeline.cli import main
from pipeline.errors import UserError

STORIES = str(Path(__file__).parents[1] / "fixtures" / "stories260K")
PLAIN = {"max_new_tokens": 6, "temperature": 0.0, "seed": 0, "template": "paper"}


def test_a_base_model_reads_the_prompt_by_the_method_named() -> None:
    told = {name: answer(STORIES, ["Tell a story about a big dog."], **PLAIN, method=name) for name in (None, "causal")}
    assert told[None] == told["causal"]
    assert answer(STORIES, ["Tell a story about a big dog."], **PLAIN, method="slippery")[0]


def test_what_does_not_fit_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="method 'slipery' is unknown, did you mean 'slippery'"):
        answer(STORIES, ["Hi"], **PLAIN, method="slipery")
    with pytest.raises(UserError, match="template 'paper' has no place for a system message"):
        answer(STORIES, ["Hi"], **PLAIN, system="Be brief.")
    assert main(["generate", STORIES]) == 2
    assert "no instruction: give --prompt or --prompt-file" in capsys.readouterr().err
    latin = tmp_path / "latin.txt"
    latin.write_bytes("né".encode("latin-1"))
    assert main(["generate", STORIES, "--prompt-file", str(latin)]) == 2
    assert f"{latin}: is not UTF-8 text" in capsys.readouterr().err


@pytest.mark.slow
def test_a_prompt_of_thirty_thousand_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = tmp_path / "long.txt"
    story.write_text("Once upon a time there was a dog. " * 3000, encoding="utf-8")
    command = ["generate", STORIES, "--prompt-file", str(story), "--method", "slippery", "--max-new-tokens", "2"]
    assert main(command) == 2
    refusal = capsys.readouterr().err
    assert "--max-length goes further" in refusal
    assert int(refusal.split("prompt has ")[1].split()[0]) >= 30_000
    assert main([*command, "--max-length", "100000"]) == 0
    assert "but the model was made for" in capsys.readouterr().err
