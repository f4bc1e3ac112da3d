"""`dualtune verify resume` and `dualtune estimate`."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from launch.estimate import device, show_estimate
from launch.verify import compare
from pipeline.cli import main
from pipeline.config import RunConfig
from pipeline.model import build_model
from pipeline.run_folder import RunFolder
from pipeline.train.config import ZeroConfig
from pipeline.train.engine import Engine
from pipeline.train.estimate import measure, memory

STORIES = Path(__file__).parents[1] / "fixtures" / "stories260K"


def config_of(kind: str = "full", method: str = "bitune", **training: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"name": str(STORIES), "precision": "fp32"},
            "method": method,
            "tuning": {"kind": kind},
            "data": {"sources": [{"path": "x.jsonl"}]},
            "training": training,
        }
    )


def run_folder(root: Path, losses: list[float], weights: bytes = b"same") -> RunFolder:
    folder = RunFolder(root)
    folder.metrics.parent.mkdir(parents=True)
    rows = [
        {"step": step, "loss": loss, "learning_rate": 0.1, "gradient_norm": 1.0, "samples": [step]}
        for step, loss in enumerate(losses, 1)
    ]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder.model.mkdir()
    (folder.model / "model.safetensors").write_bytes(weights)
    return folder


def test_equal_runs_have_no_differences(tmp_path: Path) -> None:
    assert compare(run_folder(tmp_path / "a", [2.0, 1.0]), run_folder(tmp_path / "b", [2.0, 1.0])) == []


def test_every_difference_is_told(tmp_path: Path) -> None:
    found = compare(run_folder(tmp_path / "a", [2.0, 1.0, 0.5]), run_folder(tmp_path / "b", [2.0, 1.1], b"other"))
    assert found == [
        "step 2: loss 1.0 straight, 1.1 resumed",
        "3 steps logged straight, 2 resumed",
        "model.safetensors differs",
    ]


@pytest.mark.parametrize("kind", ["full", "lora", "dora", "ia3", "vera"])
@pytest.mark.parametrize("method", ["causal", "bitune"])
def test_counts_without_memory_are_those_of_the_model(kind: str, method: str) -> None:
    config = config_of(kind, method)
    size = measure(config)
    model = build_model(config.model, config.method, config.tuning, config.seed)
    assert size.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert size.trained == sum(parameter.numel() for parameter in Engine(config, model, 1).parameters.values())


def test_stages_share_out_what_they_say() -> None:
    size = measure(config_of())
    plans = [memory(size, ZeroConfig(stage=stage), processes=4, tokens=100, recomputes=False) for stage in range(4)]
    assert plans[0].held == 16 * size.trained
    assert [plan.gradients for plan in plans] == [4 * size.trained] * 2 + [size.trained] * 2
    assert plans[3].held == pytest.approx(16 * size.trained / 4, abs=8)


def test_what_is_printed() -> None:
    output = io.StringIO()
    show_estimate(config_of("lora"), processes=2, gib=0.0001, tflops=1, console=Console(file=output, width=200))
    text = output.getvalue()
    assert "stage 3, optimizer on CPU" in text
    assert "plan: nothing fits on these" in text
    assert "1 of them" not in text and "2 of them" in text


def test_a_device_by_name_and_how_many_of_them_fit(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    values = {"model": {"name": str(STORIES)}, "data": {"sources": [{"path": "rows.jsonl"}]}, "tuning": "full"}
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(values))
    assert main(["estimate", str(config), "--gpu", "a100-80"]) == 0
    text = capsys.readouterr().out
    assert "fits 80 GiB" in text and "plan: stage 0 (DDP) is the fastest that fits" in text
    assert main(["estimate", str(config), "--gpu", "a100-80", "--memory", "40", "--tflops", "7"]) == 0
    assert "fits 40 GiB" in capsys.readouterr().out
    assert main(["estimate", str(config), "--gpu", "Voodoo"]) == 2
    assert "--gpu Voodoo: not known" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((None, None, None), (80, 300)),
        (("A100-40", None, None), (40, 0.4 * 312)),
        (("A100-40", 20, None), (20, 0.4 * 312)),
        (("A100-40", None, 7), (40, 7)),
        (("T4", None, None), (16, 300)),
    ],
)
def test_what_is_given_goes_before_the_data_sheet(given: Any, expected: Any) -> None:
    assert device(*given) == pytest.approx(expected)


def test_how_many_devices_it_takes() -> None:
    config = config_of(batch_size=1, micro_batch_size=1, micro_batch_tokens=8)
    size, output = measure(config), io.StringIO()
    zero = ZeroConfig(stage=3)
    enough = memory(size, zero, processes=8, tokens=8, recomputes=False).total
    less = memory(size, zero, processes=4, tokens=8, recomputes=False).total
    show_estimate(config, 2, (enough + less) / 2 / 2**30 / 0.9, 1, Console(file=output, width=200))
    assert "on CPU is the fastest that fits\n" in output.getvalue()
    assert "plan: stage 3 is the fastest that fits if there are 8 processes" in output.getvalue()
