"""The command line: exit statuses, one line for an error, quick help."""

import subprocess
import sys
from pathlib import Path

import pytest
from launch_inputs import ROOT, tiny_grid, write_grid

from pipeline import cli, stages
from pipeline.errors import StageError


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A valid run configuration, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUALTUNE_DEBUG", "")
    return str(write_grid(tmp_path, tiny_grid({})["config"]))


def error_of(capsys: pytest.CaptureFixture[str], arguments: list[str], status: int) -> str:
    """The one line of an error."""
    assert cli.main(arguments) == status
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["trian"], "trian"),
        (["train"], "CONFIG"),
        (["train", "CONFIG", "--epochs", "3"], "--epochs"),
        (["train", "absent.yaml"], "absent.yaml"),
        (["train", "CONFIG", "training.epoch=3"], "training.epoch"),
        (["train", "CONFIG", "trainig.epochs=3"], "trainig"),
        (["train", "CONFIG", "training.epochs=many"], "many"),
        (["train", "CONFIG", "epochs"], "epochs"),
        (["run", "CONFIG", "--jobs", "0"], "--jobs"),
        (["config", "show", "CONFIG", "method=bitun"], "bitun"),
        (["config", "shwo"], "shwo"),
        (["report", "absent"], "absent"),
        (["generate", "absent"], "--prompt"),
    ],
)
def test_mistakes_exit_with_2_and_one_line(
    capsys: pytest.CaptureFixture[str], config: str, arguments: list[str], named: str
) -> None:
    assert named in error_of(capsys, [config if word == "CONFIG" else word for word in arguments], 2)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("failure", "status", "words"),
    [
        (StageError("the loss is nan"), 1, "the loss is nan"),
        (OSError(28, "No space left on device", "model.safetensors"), 1, "model.safetensors: No space left on device"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), 1, "No space left on device"),
        (ZeroDivisionError("oh"), 1, "unexpected ZeroDivisionError: oh"),
    ],
)
def test_failures_exit_with_1_and_are_recorded(
    capsys: pytest.CaptureFixture[str],
    config: str,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    status: int,
    words: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    module = type("Stage", (), {"is_complete": bool, "train": fail, "check_trackers": lambda *_: None})
    monkeypatch.setattr(stages, "import_module", lambda name: module)
    monkeypatch.setattr(stages, "state", lambda *_: stages.State(False, "to do"))
    assert words in error_of(capsys, ["train", config], status)
    (folder,) = Path("runs").iterdir()
    assert words in (folder / "failed.json").read_text(encoding="utf-8")


def test_an_interrupt_exits_with_130_and_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stages, "run_missing", interrupt)
    assert cli.main(["train", config]) == 130
    assert "goes on where it stopped" in capsys.readouterr().err


def test_debugging_shows_the_stack_trace(
    capsys: pytest.CaptureFixture[str], config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUALTUNE_DEBUG", "1")
    assert cli.main(["train", config, "training.epoch=3"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_show_is_resolved_and_can_be_read_back(capsys: pytest.CaptureFixture[str], config: str) -> None:
    assert cli.main(["config", "show", config, "method=bitune", "seed=7"]) == 0
    shown = capsys.readouterr().out
    Path("again.yaml").write_text(shown, encoding="utf-8")
    signatures = []
    for arguments in ([config, "method=bitune", "seed=7"], ["again.yaml"]):
        assert cli.main(["config", "signature", *arguments]) == 0
        signatures.append(capsys.readouterr().out)
    assert "theta_init: 0.01" in shown
    assert signatures[0] == signatures[1] != ""


def test_help_and_show_import_nothing_heavy(config: str) -> None:
    code = (
        "import sys; from pipeline import cli; cli.main(['--help']); cli.main(['config', 'show', sys.argv[1]]); "
        "cli.main(['run', sys.argv[1], '--dry-run']); "
        "heavy = {'torch', 'transformers', 'datasets', 'lm_eval', 'accelerate', 'peft'} & set(sys.modules); "
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    command = [sys.executable, "-c", code, config]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_tasks_are_listed_with_what_they_measure(capsys: pytest.CaptureFixture[str]) -> None:
    from pipeline.evaluate.catalogue import TASKS

    assert cli.main(["tasks"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert list(lines) == list(TASKS)
    assert all(line.endswith(".") and len(line) > 20 for line in lines.values())
    assert lines["piqa_cot"].startswith("cot") and lines["piqa_full"].startswith("paper")


@pytest.mark.parametrize("command", ["prepare", "train", "evaluate", "run", "report", "generate"])
def test_help_teaches_with_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert cli.main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Example" in shown and f"dualtune {command}" in shown
