"""Two users of one machine: their jobs on one node of a real Slurm, and a cache that one of them has made."""

import fcntl
import json
import os
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from launch_inputs import ROOT, ask, needs_slurm, tiny_grid, wait_for_an_empty_queue

pytestmark = [pytest.mark.slow, needs_slurm]

COMMON = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders in which all users of a node may write."""
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin"
PACKAGES = os.pathsep.join([str(ROOT), *site.getsitepackages()])


@dataclass(frozen=True)
class User:
    """A throw-away user with a folder that nobody else can enter."""

    name: str
    number: int
    group: int
    home: Path
    python: str

    def start(self, *words: str, umask: int = 0o022) -> subprocess.Popen[str]:
        """A command in the user's folder, as after logging in."""
        own = {"HOME": str(self.home), "USER": self.name, "LOGNAME": self.name, "PATH": PATH, "PYTHONPATH": PACKAGES}
        kept = {name: os.environ[name] for name in ("SLURM_CONF", "LANG") if name in os.environ}
        return subprocess.Popen(
            words, cwd=self.home, user=self.number, group=self.group, extra_groups=[], umask=umask, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**kept, **own, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip

    def dualtune(self, *words: str, umask: int = 0o022) -> subprocess.Popen[str]:
        return self.start(self.python, "-m", "pipeline.cli", *words, umask=umask)

    def can(self, *words: str) -> bool:
        try:
            process = self.start(*words)
        except PermissionError:
            return False
        process.communicate(timeout=60)
        return process.returncode == 0


def ended(process: subprocess.Popen[str], status: int = 0) -> str:
    """What it said, once it has ended as expected."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == status, errors
    return output + errors


@pytest.fixture(scope="module")
def users() -> Iterator[list[User]]:
    """Two users of one group."""
    if shutil.which("useradd", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("there is no useradd")
    place = Path(f"/tmp/dualtune-users-{os.getpid()}")  # tmp_path is for root alone
    names = [f"dualtune{os.getpid()}{letter}" for letter in "ab"]
    place.mkdir(mode=0o755)
    try:
        yield [_made(name, place / name) for name in names]
    finally:
        for name in names:
            subprocess.run(["userdel", name], timeout=60)
            shutil.rmtree(f"/tmp/torchinductor_{name}", ignore_errors=True)
        shutil.rmtree(place)


def _made(name: str, home: Path) -> User:
    subprocess.run(["useradd", "-M", "-N", "-g", "users", "-d", str(home), name], check=True, timeout=60)
    number, group = (int(ask("id", option, name)) for option in ("-u", "-g"))
    home.mkdir(mode=0o700)
    os.chown(home, number, group)
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        user = User(name, number, group, home, python)
        if user.can(python, "-c", "import bz2, ctypes, lzma, pipeline, sqlite3, torch.version"):
            return user
    pytest.skip("other users can't read Python or this code")


def test_jobs_of_two_users_on_one_node_share_nothing(
    users: list[User], cluster: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, cluster[name])
    grid = tiny_grid({"Bitune": {"method": "bitune"}}, training={"max_steps": 2}, evaluation={"tasks": []})
    profile = {"job": {"memory": "500M"}, "train": {"tasks_per_node": 2}}
    for user in users:
        (user.home / "grid.yaml").write_text(yaml.safe_dump(grid))
        (user.home / "cluster.yaml").write_text(yaml.safe_dump(profile))
    ask("scontrol", "update", "nodename=node[1-2]", "state=drain", "reason=test")
    try:
        command = ("grid", "submit", "grid.yaml", "--cluster", "cluster.yaml", "--executor", "slurm")
        try:
            for process in [user.dualtune(*command) for user in users]:
                ended(process)
        finally:
            ask("scontrol", "update", "nodename=node1", "state=resume")  # both start now
        wait_for_an_empty_queue()
    finally:
        ask("scontrol", "update", "nodename=node2", "state=resume")

    runs = [next(user.home.glob("runs/stories*")) for user in users]
    told = "\n".join(path.read_text() for user in users for path in user.home.glob("runs/.submissions/*/logs/*"))
    assert all((run / "train" / "result.json").exists() for run in runs), told
    attempts = [[json.loads(line) for line in (run / "attempts.jsonl").read_text().splitlines()] for run in runs]
    assert [[line["event"] for line in lines] for lines in attempts] == [["begin", "complete"]] * 2
    assert {lines[0]["host"] for lines in attempts} == {"node1"}
    assert max(lines[0]["time"] for lines in attempts) <= min(lines[1]["time"] for lines in attempts), "not at once"
    met = [json.loads(next(run.glob("train/rendezvous/*.json")).read_text()) for run in runs]
    assert met[0]["port"] != met[1]["port"]
    for user, run in zip(users, runs, strict=True):
        assert {path.stat().st_uid for path in run.rglob("*")} == {user.number}
        assert all(path.endswith(f"_{user.name}") for path in left(user)), "others may want the same"


def left(user: User) -> list[str]:
    """What a user has left in the folders of all: there are such as `torchinductor_NAME`."""
    words = ["find", *COMMON, "-xdev", "-maxdepth", "1", "-user", user.name, "-newer", str(user.home.parent)]
    return ask(*words).splitlines()


def test_a_cache_that_another_user_has_made(users: list[User]) -> None:
    first, second = users
    place = first.home.parent / "shared"
    place.mkdir()
    place.chmod(0o2777)
    cache = place / "cache"
    for user in users:
        config = tiny_grid({"LoRA": {}})["config"] | {"paths": {"cache": str(cache)}}
        (user.home / "run.yaml").write_text(yaml.safe_dump(config))
    ended(first.dualtune("prepare", "run.yaml"))  # umask 022: nobody else can write in there
    (rows,) = (cache / "prepared").iterdir()
    before = files(cache)

    # While the first one works, the second waits, though it can't write what the lock says.
    aside = rows.replace(place / "aside")
    with (cache / "locks" / rows.name).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = second.dualtune("prepare", "run.yaml")
        assert waiting.stderr is not None
        assert "is preparing these rows, waiting" in waiting.stderr.readline()
        aside.replace(rows)
    assert "reused from" in ended(waiting)

    refused = ended(second.dualtune("prepare", "run.yaml", "data.max_tokens=77"), status=1)
    assert refused.startswith(f"error: {cache}/prepared/") and "Permission denied" in refused
    assert len(refused.splitlines()) == 1
    assert files(cache) == before, "nothing is half-written"


def test_a_cache_of_a_group(users: list[User]) -> None:
    first, second = users
    place = first.home.parent / "group"
    place.mkdir()
    os.chown(place, first.number, first.group)
    place.chmod(0o2775)
    for user in users:
        config = tiny_grid({"LoRA": {}})["config"] | {"paths": {"cache": str(place / "cache")}}
        (user.home / "run.yaml").write_text(yaml.safe_dump(config))
    told = [
        user.dualtune("prepare", "run.yaml", f"data.max_tokens={tokens}", umask=0o002)
        for user, tokens in ((first, 500), (second, 501))
    ]
    for process in told:
        assert "written to" in ended(process)


def files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
