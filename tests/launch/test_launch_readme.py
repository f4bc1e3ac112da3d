"""The commands of the documents exist and do what is said: all are parsed, the cheap ones are run."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from launch_inputs import MODEL, ROOT, dualtune, tiny_grid, write_grid

from launch.grid import load_grid
from launch.profile import load_profile

DOCUMENTS = ("README.md", "CONTRIBUTING.md", "slurm/README.md", *(f"docs/{name}" for name in (
    "configuration.md", "evaluation.md", "grids.md", "methods.md", "preparation.md", "slippery.md",
    "tasks.md")))  # fmt: skip
GROUPS = ("grid", "config", "data", "lm-eval", "show")
"""Commands that have commands of their own."""
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS}


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language in all documents."""
    found = (re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL) for text in TEXTS.values())
    return [block for part in found for block in part]


def commands(program: str) -> list[list[str]]:
    """The words of each command of a program, in blocks and in running text, without comments."""
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    inline = [text for name in DOCUMENTS for text in re.findall(r"`(dualtune [^`]+)`", TEXTS[name])]
    words = [shlex.split(line, comments=True) for line in [*lines, *inline]]
    return [found for found in words if found[:1] == [program]]


def identifier(words: list[str]) -> str:
    """The command as a test's name."""
    return " ".join(words)


@pytest.mark.parametrize("words", commands("dualtune"), ids=identifier)
def test_a_command_and_its_options_exist(words: list[str]) -> None:
    path = [word for word in words[1:3] if re.fullmatch(r"[a-z-]+", word)] if words[1] in GROUPS else words[1:2]
    done = dualtune(*path, "--help", folder=ROOT)
    assert done.returncode == 0, done.stderr
    for option in (word for word in words if word.startswith("--")):
        assert option in done.stdout
    for file in (word for word in words if word.endswith(".yaml")):
        if file.startswith("configs/clusters/"):
            load_profile(ROOT / file)
            continue
        assert load_grid(ROOT / file, [word for word in words if "=" in word]).cells


def test_targets_of_make_and_scripts_exist() -> None:
    for words in commands("make"):
        for target in (word for word in words[1:] if "=" not in word):
            done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    for words in [*commands("sbatch"), *commands("slurm/cluster.sh"), *commands(".venv/bin/python")]:
        assert all((ROOT / word).is_file() for word in words if re.search(r"\.(sh|py|sbatch|yaml)$", word)), words


@pytest.mark.slow
def test_doctor_and_generate_answer() -> None:
    doctor = dualtune("doctor", folder=ROOT)
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert all(word in doctor.stdout for word in ("python", "torch", "device", "Slurm", "disk", "hub"))
    told = dualtune("generate", str(MODEL), "--prompt", "Once upon a time", "--max-new-tokens", "8", folder=ROOT)
    assert told.returncode == 0 and told.stdout.strip(), told.stderr


@pytest.mark.slow
def test_the_stages_and_the_line_of_python_work(tmp_path: Path) -> None:
    config = tiny_grid({})["config"]
    config["evaluation"]["limit"] = 2
    path = str(write_grid(tmp_path, {**config, "method": "bitune"}))
    stages = dualtune("run", path, "--no-report", folder=tmp_path)
    assert stages.returncode == 0, stages.stderr
    for stage in ("prepare", "train", "evaluate"):
        done = dualtune(stage, path, folder=tmp_path)
        assert done.returncode == 0 and f"{stage}: complete" in done.stderr, done.stderr
    folder = done.stdout.strip()
    by_file = dualtune("report", path, folder=tmp_path).stdout
    by_folder = dualtune("report", folder, folder=tmp_path).stdout
    assert "csqa_full" in by_file and "csqa_full" in by_folder
    for snippet in blocks("python"):
        exec(snippet.replace("runs/RUN", str(tmp_path / folder)).partition("results =")[0], {})
    answered = dualtune("generate", f"{folder}/model", "--prompt", "Hello", "--max-new-tokens", "4", folder=tmp_path)
    assert answered.returncode == 0, answered.stderr
    assert dualtune("generate", folder, "--prompt", "Hello", folder=tmp_path).returncode == 2
