"""The GPUs of this machine, dealt out to runs that go side by side."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence


def visible_gpus(variables: Mapping[str, str]) -> list[str]:
    """What CUDA_VISIBLE_DEVICES allows, else all that nvidia-smi lists; [] on a machine without."""
    allowed = variables.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return [device.strip() for device in allowed.split(",") if device.strip() not in ("", "-1", "NoDevFiles")]
    if shutil.which("nvidia-smi") is None:
        return []
    words = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split() if done.returncode == 0 else []


def deal(gpus: Sequence[str], hands: int) -> list[str | None]:
    """CUDA_VISIBLE_DEVICES of each of so many runs: an equal part of the GPUs, or one that several runs share where
    there are too few; None: leave it as it is, for a single run or a machine without GPUs."""
    if not gpus or hands == 1:
        return [None] * hands
    each = max(1, len(gpus) // hands)
    return [",".join(gpus[(hand * each + number) % len(gpus)] for number in range(each)) for hand in range(hands)]
