"""`dualtune verify resume` on a real run that is killed at random."""

import json
from pathlib import Path

import pytest

from pipeline.cli import main

STORIES = Path(__file__).parents[1] / "fixtures" / "stories260K"

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path: Path) -> Path:
    rows = [{"instruction": f"What is {number}?", "output": f"A number {number * 7}"} for number in range(30)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {
        "model": {"name": str(STORIES), "precision": "fp32"},
        "method": "bitune",
        "tuning": {"kind": "lora", "dropout": 0.1},
        "data": {"sources": [{"path": str(tmp_path / "rows.jsonl")}], "validation_fraction": 0.3},
        "training": {"batch_size": 4, "learning_rate": 1e-2, "validate_every": 3},
        "paths": {"runs": str(tmp_path / "runs"), "cache": str(tmp_path / "cache")},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(values))
    return tmp_path / "config.yaml"


def test_killed_three_times_equals_straight(config: Path, capfd: pytest.CaptureFixture) -> None:
    assert main(["verify", "resume", str(config), "--kills", "3"]) == 0
    output, messages = capfd.readouterr()
    assert output.strip().endswith("equal, bit by bit")
    assert messages.count("resumed after step") >= 2
    assert "kill 3 of 3: after step" in messages
    assert not (config.parent / "runs" / ".verify").exists()
