"""Runs of two processes whose weights or optimizer states lie on NVMe against runs in memory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from rank_runs import estimated, name, start, total
from safetensors.torch import load_file
from torch.utils.cpp_extension import _get_build_directory

from pipeline.run_folder import RunFolder

pytestmark = pytest.mark.slow

OFFLOADED: dict[str, tuple[list[str], list[str]]] = {
    "to nvme": (["cpu", "cpu"], ["nvme", "nvme"]),
    "from nvme": (["nvme", "none"], ["cpu", "cpu"]),
    "on nvme": (["nvme", "nvme"], ["nvme", "nvme"]),
    "weights on nvme": (["cpu", "nvme"], ["cpu", "nvme"]),
}
"""Where optimizer states and weights are at first, and after going on from a checkpoint."""


def is_built(name: str) -> bool:
    """For this environment: by another one's build it would be built again, in the test's time."""
    folder = Path(_get_build_directory(name, verbose=False))
    build = folder / "build.ninja"
    is_ours = build.exists() and str(Path(torch.__file__).parent) in build.read_text(encoding="utf-8")
    return is_ours and (folder / f"{name}.so").exists()


@pytest.fixture(scope="module")
def offloaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if not (is_built("async_io") and is_built("pin_memory")):
        pytest.skip("DeepSpeed's module async_io is not built on this machine, which takes minutes: docs/scale.md")
    folder = tmp_path_factory.mktemp("offloaded")
    (folder / "nvme").mkdir()
    places = {"offload_optimizer": "nvme", "offload_parameters": "nvme", "nvme_path": str(folder / "nvme")}
    names = [name("offloaded", {"first": first, "then": then}) for first, then in OFFLOADED.values()]
    found = start(folder, 2, [*names, name("trained", places)], timeout=900)
    return dict(zip([*OFFLOADED, "trained"], found.values(), strict=True))


@pytest.mark.parametrize("case", OFFLOADED)
def test_nvme_equals_memory_bit_by_bit(offloaded: dict[str, Any], case: str, tmp_path: Path) -> None:
    """Straight, and gone on with from a checkpoint; nothing is left of the files but the runs."""
    found, expected = offloaded[case], offloaded["to nvme"]
    assert found["losses"] == expected["losses"]
    assert found["losses"][3:6] == found["losses"][6:]
    assert {*found["weights"]} == {*expected["weights"]} and len({*found["weights"]}) == 1
    assert found["left"] == ["runs"]
    for places, held, size in zip(OFFLOADED[case], found["held"], found["sizes"], strict=True):
        assert (size > 1_000_000) == ("nvme" in places)
        for rank in held:
            assert total(rank) == pytest.approx(estimated(tmp_path, 3, "full", "bitune", 2, places=places), rel=0.1)


def test_run_on_nvme_equals_run_in_memory(offloaded: dict[str, Any], tmp_path: Path) -> None:
    in_memory = start(tmp_path, 2, ["trained"], timeout=600)
    folders = [RunFolder(Path(found["trained"])) for found in (offloaded, in_memory)]
    for file in ("model.safetensors", "prompt_branch.safetensors"):
        first, second = (load_file(folder.model / file) for folder in folders)
        assert first.keys() == second.keys()
        assert all(torch.allclose(first[key], second[key], atol=1e-5) for key in first)
    assert not list((folders[0].root.parent.parent / "nvme").iterdir())
