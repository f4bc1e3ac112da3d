import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def mixing_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.model.mixing._mix", lambda a, b, alpha: (1 - alpha.double()) * a + alpha.double() * b)
