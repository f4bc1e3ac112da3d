"""Profiles, and the job scripts made of them."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch.profile import Profile, load_profile
from launch.script import margin, script
from pipeline.errors import UserError

PROFILES = sorted((Path(__file__).parents[2] / "configs" / "clusters").glob("*.yaml"))
HOSTILE = "a'b\"; touch hacked; $(touch hacked) `touch hacked` \\"


def profile_of(tmp_path: Path, **values: Any) -> Profile:
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(values))
    return load_profile(path)


def text_of(profile: Profile, job: Any = "train", indices: tuple[int, ...] = (0, 1, 2), cell: str = "") -> str:
    place = Path("/runs/.submissions/x")
    return script("x.train.1", job, 1, list(indices), profile.resources(job, cell), profile, place, Path("/work dir"))


def options(text: str) -> dict[str, str]:
    found = (shlex.split(line)[1] for line in text.splitlines() if line.startswith("#SBATCH"))
    return {name: value for name, _, value in (option.removeprefix("--").partition("=") for option in found)}


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_shipped_profiles_make_scripts(path: Path) -> None:
    profile = load_profile(path)
    for job in ("prepare", "train", "evaluate", "aggregate"):
        text = text_of(profile, job)
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        assert options(text)["time"] == profile.resources(job).time
    assert profile.resources("prepare").gpus_per_node == profile.resources("aggregate").gpus_per_node == 0


def test_a_stage_overrides_the_job_and_a_cell_overrides_the_stage(tmp_path: Path) -> None:
    special = [{"cells": "*70b*", "train": {"nodes": 4}}]
    job = {"gpus_per_node": 1, "time": "01:00:00", "memory": "8G"}
    profile = profile_of(tmp_path, job=job, train={"gpus_per_node": 8, "gpu_type": "a100"}, special=special)
    large = options(text_of(profile, cell="Bitune, 70b, seed 1"))
    assert (large["nodes"], large["ntasks-per-node"], large["gpus-per-node"]) == ("4", "8", "a100:8")
    assert profile.resources("train", "Bitune, 7b").nodes == 1
    assert options(text_of(profile, "evaluate"))["gpus-per-node"] == "1"
    assert profile.resources("train", "70b").gpu_hours == 32


def test_an_array_says_what_slurm_needs(tmp_path: Path) -> None:
    found = options(text_of(profile_of(tmp_path, max_parallel=2), indices=(0, 1, 2, 7)))
    assert found["array"] == "0-2,7%2"
    assert found["output"] == "/runs/.submissions/x/logs/1-%A_%a.log"
    assert found["chdir"] == "/work dir"
    assert (found["kill-on-invalid-dep"], found["requeue"], found["open-mode"]) == ("yes", "", "append")
    assert found["signal"] == f"B:USR1@{margin(3600):.0f}"
    assert "wckey" not in found


def test_nothing_but_setup_lines_reaches_the_shell_unquoted(tmp_path: Path) -> None:
    values = {"job": {"partition": HOSTILE, "constraint": HOSTILE}, "modules": [HOSTILE], "environment": {"A": HOSTILE}}
    text = text_of(profile_of(tmp_path, **values, setup=['module() { echo "module:$2"; }'], python="/bin/true"))
    assert options(text)["partition"] == HOSTILE
    check = text.replace("exec /bin/true", 'echo "A:$A"; exec /bin/true')
    # the function that stands for `module` must be there before it is called
    lines = check.splitlines()
    lines.insert(1, next(line for line in lines if line.startswith("module()")))
    done = subprocess.run(["bash"], input="\n".join(lines), text=True, capture_output=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines() == [f"module:{HOSTILE}", f"A:{HOSTILE}"]
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"job": {"time": 43200}}, "in quotes"),
        ({"job": {"time": "00:00:00"}}, "longer than no time"),
        ({"job": {"partition": "gpu\n#SBATCH --uid=0"}}, "job.partition"),
        ({"job": {"gpus": 1}}, "job.gpus"),
        ({"train": {"node": 2}}, "node"),
        ({"evaluate": {"nodes": 2}}, "evaluate.nodes"),
        ({"special": [{"cells": "*", "train": {"nodes": 0}}]}, "nodes"),
        ({"environment": {"A B": "1"}}, "A B"),
        ({"partition": "gpu"}, "partition"),
    ],
)
def test_mistakes_name_the_key(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        profile_of(tmp_path, **values)


@pytest.mark.parametrize("path", ["a\nb", "a\\b", "a\x1bb"])
def test_a_path_that_slurm_cannot_take_is_refused(path: str) -> None:
    resources = Profile().resources("train")
    with pytest.raises(UserError, match="Slurm takes no path with"):
        script("x", "train", 1, [0], resources, Profile(), Path("/runs") / path, Path("/work"))


def test_short_time_limits_leave_time_to_train() -> None:
    assert margin(120) == 30
    assert margin(24 * 3600) == 300
