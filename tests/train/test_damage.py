"""Checkpoints of a real run with each of their files damaged in each way, and a disk that is full."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file
from test_stage_train import config_of
from train_runs import make_loop, run_config, run_loop, same, samples, weights

from pipeline.config import RunConfig, to_yaml
from pipeline.errors import StageError
from pipeline.run_folder import RunFolder
from pipeline.train import train
from pipeline.train.checkpoint import Checkpoints
from pipeline.train.loop import TrainingLoop

FILES = ("manifest.json", "state.json", "weights.safetensors", "optimizer.safetensors", "random-00000.safetensors")


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 2)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def fill(file: Path) -> None:
    """As after a crash of the file system: the length is right, the content is zeros."""
    file.write_bytes(bytes(file.stat().st_size))


def remove(file: Path) -> None:
    file.unlink()


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def make_dangling(file: Path) -> None:
    file.unlink()
    file.symlink_to("gone")


DAMAGES = (flip, truncate, empty, fill, remove, make_folder, make_dangling)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainingLoop:
    """Nine updates, with the checkpoints of updates 8 and 9 left."""
    return run_loop(run_config(tmp_path_factory.mktemp("trained")), samples(9))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_damaged_file_is_named(
    trained: TrainingLoop, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    shutil.copytree(trained.checkpoints.folder, tmp_path, dirs_exist_ok=True)
    checkpoints = Checkpoints(tmp_path, trained.checkpoints.identity, keep=2)
    damage(tmp_path / "step-000009" / name)
    found, (message,) = checkpoints.latest()
    assert found and found.step == 8
    assert message.startswith(f"{tmp_path / 'step-000009'}: {name} is ")
    with pytest.raises(StageError, match=f"step-000009: {name} is "):
        checkpoints.chosen(tmp_path / "step-000009")
    checkpoints.clean(found)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000008"]


def test_what_does_not_belong_there_stops_nothing(trained: TrainingLoop, tmp_path: Path) -> None:
    """A file or link in the place of a checkpoint, hidden files, copies under other names, folders inside."""
    runs = tmp_path / "runs"
    shutil.copytree(trained.folder.root, RunFolder.of(run_config(runs)).root)
    loop = make_loop(run_config(runs), samples(9))
    folder = loop.checkpoints.folder
    shutil.copytree(folder / "step-000009", folder / "step-000009.bak")
    shutil.rmtree(folder / "step-000009")
    (folder / "step-000009").write_bytes(b"a file")
    (folder / "step-000007").symlink_to("nowhere")
    (folder / ".DS_Store").touch()
    (folder / "step-000008" / "lost+found").mkdir()
    loop.resume()
    assert loop.position.step == 8
    loop.run()
    assert same(weights(loop), weights(trained))
    assert sorted(path.name for path in folder.iterdir()) == ["step-000008", "step-000009", "step-000009.bak"]


MOUNTED = """mount -t tmpfs -o "$1" none "$2" || exit 99
"$3" -m pipeline.cli train "$4"; status=$?
cp -r "$2/." "$5"; exit $status"""


def train_on(tmp_path: Path, disk: str, config: RunConfig) -> subprocess.CompletedProcess:
    """The command with the folder `runs` on a disk of its own, with these mount options; what is there is copied to
    `kept` in the end."""
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("needs root and unshare, to mount a disk")
    for name in ("runs", "kept"):
        (tmp_path / name).mkdir()
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    places = [tmp_path / "runs", sys.executable, tmp_path / "config.yaml", tmp_path / "kept"]
    command = ["unshare", "-m", "bash", "-c", MOUNTED, "-", disk, *map(str, places)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    if ended.returncode == 99:
        pytest.skip(f"cannot mount: {ended.stderr}")
    assert ended.returncode == 1 and "Traceback" not in ended.stderr, ended.stderr
    return ended


@pytest.mark.slow
def test_full_disk_in_a_save_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    """9 MiB hold one checkpoint of 5 MiB. With more space, the run goes on and ends as one that had it."""
    options = {"checkpoint_every": 1, "max_steps": 3, "trackers": []}
    config, straight = (config_of(tmp_path / name, "full", **options) for name in ("runs", "straight"))
    ended = train_on(tmp_path, "size=9m", config)
    assert "step-000002: cannot be written" in ended.stderr and "No space left on device" in ended.stderr
    kept = next((tmp_path / "kept").iterdir())
    assert [path.name for path in (kept / "train" / "checkpoints").iterdir()] == ["step-000001"]
    shutil.copytree(kept, tmp_path / "runs" / kept.name)
    for each in (config, straight):
        train(each, RunFolder.of(each))
    models = [load_file(RunFolder.of(each).model / "model.safetensors") for each in (config, straight)]
    assert same(*models)


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    config = config_of(tmp_path / "runs")
    assert f"{RunFolder.of(config).root}: Read-only file system" in train_on(tmp_path, "ro", config).stderr
