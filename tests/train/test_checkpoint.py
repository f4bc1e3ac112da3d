from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

from pipeline.errors import StageError
from pipeline.train.checkpoint import MANIFEST, Checkpoints

IDENTITY = {"signature": "abc", "prepared_key": "def", "processes": 1}


def write(folder: Path) -> None:
    (folder / "weights").write_bytes(b"0123456789")
    (folder / "state.json").write_text("{}")


def filled(folder: Path, *steps: int, keep: int = 9) -> Checkpoints:
    checkpoints = Checkpoints(folder, IDENTITY, keep)
    for step in steps:
        checkpoints.save(step, write)
    return checkpoints


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_latest_is_the_highest_step(tmp_path: Path) -> None:
    checkpoint, skipped = filled(tmp_path, 2, 10, 4).latest()
    assert (checkpoint.step, checkpoint.path.name, skipped) == (10, "step-000010", [])


def test_more_steps_than_digits_still_sort(tmp_path: Path) -> None:
    assert filled(tmp_path, 999_999, 1_000_000).latest()[0].step == 1_000_000


def test_no_checkpoint(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none", IDENTITY, 1).latest() == (None, [])


def damage_file(path: Path) -> None:
    (path / "weights").write_bytes(b"0123456780")


def truncate_file(path: Path) -> None:
    (path / "weights").write_bytes(b"01234")


def remove_file(path: Path) -> None:
    (path / "weights").unlink()


def truncate_manifest(path: Path) -> None:
    text = (path / MANIFEST).read_text()
    (path / MANIFEST).write_text(text[: len(text) // 2])


def damage_manifest(path: Path) -> None:
    text = (path / MANIFEST).read_text()
    (path / MANIFEST).write_text(text.replace("abc", "abd"))


def empty_manifest(path: Path) -> None:
    (path / MANIFEST).write_text("")


def manifest_of_another(path: Path) -> None:
    (path / MANIFEST).write_text((path.parent / "step-000002" / MANIFEST).read_text())


DAMAGE = {
    damage_file: "weights is damaged",
    truncate_file: "weights is damaged",
    remove_file: "weights is missing",
    truncate_manifest: "manifest.json is missing or not whole",
    damage_manifest: "manifest.json is damaged",
    empty_manifest: "manifest.json is missing or not whole",
    manifest_of_another: "manifest.json is that of step 2",
}


@pytest.mark.parametrize("damage, message", DAMAGE.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_damaged_checkpoint_is_skipped_and_named(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    checkpoints = filled(tmp_path, 2, 4)
    damage(tmp_path / "step-000004")
    checkpoint, skipped = checkpoints.latest()
    assert checkpoint.step == 2
    assert skipped == [f"{tmp_path / 'step-000004'}: {message}"]


def test_all_damaged_means_a_new_start(tmp_path: Path) -> None:
    checkpoints = filled(tmp_path, 2, 4)
    for step in ("step-000002", "step-000004"):
        damage_file(tmp_path / step)
    checkpoint, skipped = checkpoints.latest()
    assert checkpoint is None
    assert len(skipped) == 2


@pytest.mark.parametrize("key", IDENTITY)
def test_checkpoint_of_another_run_is_refused(tmp_path: Path, key: str) -> None:
    filled(tmp_path, 2)
    other = Checkpoints(tmp_path, IDENTITY | {key: "other"}, 1)
    with pytest.raises(StageError, match=f"step-000002: written with {key} .*'other'"):
        other.latest()


def test_rotation_keeps_the_last(tmp_path: Path) -> None:
    filled(tmp_path, 2, 4, 6, 8, keep=2)
    assert names(tmp_path) == ["step-000006", "step-000008"]


def test_rotation_keeps_the_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, IDENTITY, keep=1)
    for step, loss in ((2, 0.5), (4, 0.25), (6, None), (8, 0.25), (10, 0.75), (12, None)):
        checkpoints.save(step, write, loss)
        assert checkpoints.latest()[0].step == step
    assert names(tmp_path) == ["step-000004", "step-000012"]
    assert checkpoints.best().step == 4
    truncate_manifest(tmp_path / "step-000004")
    assert checkpoints.best() is None


def test_a_chosen_checkpoint_must_be_whole_and_of_this_run(tmp_path: Path) -> None:
    checkpoints = filled(tmp_path, 2, 4)
    assert checkpoints.chosen(tmp_path / "step-000002").step == 2
    damage_file(tmp_path / "step-000002")
    with pytest.raises(StageError, match="step-000002: weights is damaged"):
        checkpoints.chosen(tmp_path / "step-000002")
    with pytest.raises(StageError, match=r"step-000003: there is no such folder"):
        checkpoints.chosen(tmp_path / "step-000003")
    with pytest.raises(StageError, match="step-000004: written with processes 1, this run has 2"):
        Checkpoints(tmp_path, IDENTITY | {"processes": 2}, 1).chosen(tmp_path / "step-000004")


def test_rotation_deletes_nothing_before_the_new_one_is_complete(tmp_path: Path) -> None:
    checkpoints = filled(tmp_path, 2, keep=1)

    def full_disk(folder: Path) -> None:
        write(folder)
        raise SafetensorError("No space left on device")

    with pytest.raises(StageError, match=r"step-000004: cannot be written \(No space left"):
        checkpoints.save(4, full_disk)
    assert names(tmp_path) == ["step-000002"]
    assert checkpoints.latest()[0].step == 2


def test_clean_removes_strays_and_newer_damaged_ones_only(tmp_path: Path) -> None:
    checkpoints = filled(tmp_path, 2, 4, 6)
    damage_file(tmp_path / "step-000006")
    (tmp_path / ".step-000008.x").mkdir()
    (tmp_path / ".step-000008.x" / "weights").write_bytes(b"0")
    checkpoint, _ = checkpoints.latest()
    checkpoints.clean(checkpoint)
    assert names(tmp_path) == ["step-000002", "step-000004"]


def test_damaged_newer_one_cannot_push_out_a_good_one(tmp_path: Path) -> None:
    checkpoints = filled(tmp_path, 2, 8, keep=1)
    damage_file(tmp_path / "step-000008")
    checkpoint, _ = checkpoints.latest()
    checkpoints.clean(checkpoint)
    checkpoints.save(4, write)
    assert checkpoints.latest()[0].step == 4


def test_remove_all(tmp_path: Path) -> None:
    filled(tmp_path / "checkpoints", 2).remove_all()
    assert names(tmp_path) == []
    Checkpoints(tmp_path / "checkpoints", IDENTITY, 1).remove_all()
