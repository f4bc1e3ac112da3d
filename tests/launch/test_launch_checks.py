"""What can't run is refused before anything is started or written; complete runs have records that are up to date."""

from pathlib import Path

import pytest
from launch_inputs import DATA, MODEL, tiny_grid, write_grid

from pipeline import cli
from pipeline.config import load_config, to_yaml
from pipeline.run_folder import RunFolder
from pipeline.stages import record_failure, refresh


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A valid run configuration, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUALTUNE_DEBUG", "")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return str(write_grid(tmp_path, tiny_grid({})["config"]))


REFUSED = [
    (f"model={MODEL.parent / 'nope'}", "nope': no such folder"),
    ("data.sources=[{path: gone.jsonl}]", "gone.jsonl: no such file"),
    ("data.sources=[{path: some/where/gone}]", "some/where/gone: no such file"),
    ("data.sources=[{path: '*.parquet'}]", "holds no file of '*.parquet'"),
    ("evaluation.data.csqa_full=gone.jsonl", "evaluation.data.csqa_full: there is no file or folder gone.jsonl"),
    ("evaluation.tasks=[csqa_cot]", "csqa_cot asks in the template cot, but data.template is paper"),
    ("evaluation.chat_template=true", "evaluation.chat_template: csqa_full"),
    ("evaluation.tasks=[piqa_full]", "the questions of piqa_full are baber/piqa of the hub, which is not in the cache"),
    pytest.param("evaluation.tasks=[csqa_ful]", "'csqa_ful', did you mean 'csqa_full'", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("command", ["run", "run --dry-run", "prepare", "train", "evaluate"])
@pytest.mark.parametrize(("override", "words"), REFUSED)
def test_what_cannot_run_is_refused_and_no_run_folder_is_touched(
    capsys: pytest.CaptureFixture[str], config: str, command: str, override: str, words: str
) -> None:
    if command == "evaluate" and override.startswith("data."):
        pytest.skip("an evaluation reads no training data")
    folder = RunFolder.of(load_config(Path(config), [override]))
    folder.root.mkdir(parents=True)
    folder.config.write_text("as it was")
    name, *options = command.split()
    assert cli.main([name, config, override, *options]) == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in folder.root.iterdir()] == ["config.yaml"]
    assert folder.config.read_text() == "as it was"


def test_questions_that_were_fetched_before_need_no_internet(config: str) -> None:
    Path("cache", "baber___piqa").mkdir(parents=True)
    assert cli.main(["run", config, "evaluation.tasks=[piqa_full]", "--dry-run"]) == 0


def test_a_grid_is_refused_before_its_first_run(capsys: pytest.CaptureFixture[str], config: str) -> None:
    rows = {"LoRA": {}, "Other": {"data": {"sources": [{"path": str(DATA / "gone.jsonl")}]}}}
    for options in ([], ["--dry-run"]):
        assert cli.main(["run", str(write_grid(Path(), tiny_grid(rows))), *options]) == 2
        assert "gone.jsonl: no such file" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_complete_run_gets_its_configuration_back_and_loses_the_record_of_a_failure(config: str) -> None:
    before, after = (load_config(Path(config), [f"evaluation.tasks=[{task}]"]) for task in ("csqa_ful", "csqa_full"))
    folder = RunFolder.of(after)
    folder.create(before)
    record_failure(folder, "evaluate", "unknown task 'csqa_ful'")
    refresh(after, folder, print)
    assert folder.config.read_text() == to_yaml(after) and not folder.failure.exists()
    changed = folder.config.stat().st_mtime_ns
    refresh(after, folder, print)
    assert folder.config.stat().st_mtime_ns == changed
