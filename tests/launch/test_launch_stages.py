"""What is left behind in a run folder: permissions, leftovers of kills, records of failures."""

import errno
import os
from pathlib import Path

import pytest
from launch_inputs import tiny_grid, write_grid

from pipeline import stages
from pipeline.config import RunConfig, load_config
from pipeline.files import atomic_folder, write_json
from pipeline.run_folder import RunFolder


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """A run whose folders lie in the temporary folder."""
    return load_config(write_grid(tmp_path, tiny_grid({}, paths={"runs": str(tmp_path / "runs")})["config"]))


def test_results_are_readable_for_whom_the_umask_allows(tmp_path: Path) -> None:
    write_json(tmp_path / "file.json", {})
    with atomic_folder(tmp_path / "folder") as temporary:
        (temporary / "weights").touch(mode=0o600)
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "file").touch()
    assert (tmp_path / "file.json").stat().st_mode == (plain / "file").stat().st_mode
    assert (tmp_path / "folder" / "weights").stat().st_mode == (plain / "file").stat().st_mode
    assert (tmp_path / "folder").stat().st_mode == plain.stat().st_mode


def test_what_a_killed_save_left_is_removed(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.of(config)
    leftover = folder.root / ".model.abcdefgh"
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_bytes(b"half")
    monkeypatch.setattr(stages, "state", lambda *_: stages.State(True, "complete"))
    told: list[str] = []
    stages.run_missing(config, folder, told.append)
    assert told == [f"{stage}: complete, skipped" for stage in stages.STAGES]
    assert not leftover.exists()


def test_a_file_system_without_locks_is_only_warned_of(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(stages.fcntl, "flock", refuse)
    told: list[str] = []
    with stages.exclusive(RunFolder.of(config), told.append):
        assert len(told) == 1 and "cannot be locked" in told[0]


def test_success_clears_the_record_of_a_failure(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.of(config)
    stages.record_failure(folder, "train", "no\nspace")
    assert stages.failure(folder) == "train: no\nspace"
    monkeypatch.setattr(stages, "state", lambda *_: stages.State(True, "complete"))
    stages.run_missing(config, folder, print)
    assert stages.failure(folder) == ""


def test_a_stop_by_signal_is_no_failure(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.train.signals import Interrupted

    def stop(*_: object) -> None:
        raise Interrupted(15, "stopped")

    monkeypatch.setattr(stages, "import_module", lambda name: type("Stage", (), {"train": stop}))
    with pytest.raises(Interrupted):
        stages.run_stage("train", config, RunFolder.of(config))
    assert not RunFolder.of(config).failure.exists()


def test_a_run_without_tasks_or_training_needs_fewer_stages(config: RunConfig) -> None:
    def needed(**values: object) -> tuple[str, ...]:
        return stages.stages_of(RunConfig.model_validate({**config.model_dump(), **values}))

    assert needed() == ("prepare", "train", "evaluate")
    assert needed(evaluation={}) == ("prepare", "train")
    assert needed(tuning={"kind": "none"}) == ("evaluate",)


def test_data_that_changed_since_the_training_are_noticed(tmp_path: Path) -> None:
    folder, data = RunFolder(tmp_path / "run"), tmp_path / "data.jsonl"
    data.write_text("old", encoding="utf-8")
    content = "c8f13a0f8b2d7e4b"
    source = {"source": "data.jsonl", "sha256": content}
    write_json(folder.prepare_manifest, {"key": "k", "sources": [source], "paths": {"data.jsonl": str(data)}})
    write_json(folder.train_result, {"prepared_key": "k"})
    assert stages.changed_data(folder) == [str(data)]
    os.unlink(data)
    assert stages.changed_data(folder) == []
    write_json(folder.train_result, {"prepared_key": "other"})
    assert stages.changed_data(folder) == ["the data"]
