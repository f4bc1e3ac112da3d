"""Data prepared by a job array on a real Slurm: the rows of one process, and only what is missing when called again."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from launch_inputs import DATA, ask, needs_slurm, tiny_grid, wait_for_an_empty_queue

from pipeline.cli import main
from pipeline.config import load_config
from pipeline.prepare.cache import PreparedData
from pipeline.prepare.stage import prepare
from pipeline.run_folder import RunFolder

SHARES = 3


def write(folder: Path) -> Path:
    source = {"path": str(DATA / "commonsense_qa_train.jsonl"), "count": 1200}  # three chunks
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(tiny_grid({})["config"] | {"data": {"sources": [source]}}))
    return path


@pytest.fixture
def submit(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The command, in this process, and what it says."""

    def run(*words: str, status: int = 0) -> str:
        found = main(["data", "submit", "run.yaml", "--shares", str(SHARES), *words])
        said = "".join(capfd.readouterr())
        assert found == status, said
        return said

    return run


def content(prepared: PreparedData) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in prepared.path.iterdir()}


@pytest.mark.slow
@needs_slurm
def test_an_array_makes_the_rows_of_one_process(
    slurm_folder: Path, submit: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(write(slurm_folder))
    monkeypatch.chdir(slurm_folder)
    ask("scontrol", "update", "nodename=node[1-2]", "state=drain", "reason=test")  # jobs stay in the queue
    try:
        told = submit("--dry-run")
        assert "3 shares: 0 prepared, 0 in the queue, 3 to do" in told and "#SBATCH --array=1-3" in told
        assert not ask("squeue", "-h") and not (slurm_folder / "runs").exists()
        assert "shares 1-3" in submit()
        assert "0 prepared, 3 in the queue, 0 to do" in (told := submit()) and "already" in told
        first = ask("squeue", "-h", "-o", "%F", "-S", "i").split()[0]
        ask("scancel", f"{first}_2")
        assert "shares 2\n" in submit()
    finally:
        ask("scontrol", "update", "nodename=node[1-2]", "state=resume")
    wait_for_an_empty_queue()

    logs = sorted(slurm_folder.glob("runs/.submissions/*/logs/*"))
    assert len(logs) == SHARES + 1, "each share was prepared once, and joined once"
    told = "".join(log.read_text() for log in logs)
    (key,) = (path.name for path in config.paths.cache.glob("prepared/*"))
    assert "nothing to do: the rows are in" in submit(), told
    joined = prepare(config, RunFolder.of(config))
    config = config.model_copy(update={"paths": config.paths.model_copy(update={"cache": slurm_folder / "other"})})
    alone = prepare(config, RunFolder.of(config))
    assert alone.path.name == key and content(alone) == content(joined), told


def test_without_a_cluster_it_says_what_to_do(
    tmp_path: Path, submit: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "`dualtune prepare CONFIG --num-proc N`" in submit(status=2)
