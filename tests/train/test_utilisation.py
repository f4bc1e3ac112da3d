"""Model FLOPs utilisation: known devices, and counts that agree with those of the estimate."""

from pathlib import Path

import pytest
from train_runs import make_model, run_config

from pipeline.hardware import peak_flops
from pipeline.train.estimate import measure
from pipeline.train.utilisation import Utilisation


@pytest.mark.parametrize(
    "device, tera",
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA H200", 989),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("Tesla V100-SXM2-32GB", None),
        ("NVIDIA A1000", None),
        ("CPU", None),
    ],
)
def test_peaks(device: str, tera: float | None) -> None:
    assert peak_flops(device) == (tera and tera * 10**12)


@pytest.mark.parametrize("kind, operations", [("full", 6), ("lora", 4)])
def test_share_of_the_peak(tmp_path: Path, kind: str, operations: int) -> None:
    config = run_config(tmp_path, {"kind": kind, "dropout": 0.0})
    config = config.model_copy(update={"model": config.model.model_copy(update={"precision": "bf16"})})
    found = Utilisation(config, make_model(config), "NVIDIA H200", 2)
    weights = measure(config).row_weights
    assert found.flops == pytest.approx(operations * weights, rel=0.01)
    assert found.of(rows=1000, seconds=0.5) == pytest.approx(found.flops * 1000 / 0.5 / (2 * 989e12))


def test_unknown_on_a_cpu_and_in_float32(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    model = make_model(config)
    assert Utilisation(config, model, "CPU", 1).of(10, 1.0) is None
    assert Utilisation(config, model, "NVIDIA H200", 1).of(10, 1.0) is None
