"""When is training complete? Judged by its result alone; imports nothing heavy."""

from pathlib import Path
from typing import Any

from pipeline.config import RunConfig, signature
from pipeline.errors import UserError
from pipeline.files import read_json
from pipeline.run_folder import RunFolder

RESULT_KEYS = ("signature", "prepared_key", "steps", "final_loss", "model_files")


def is_complete(config: RunConfig, folder: RunFolder) -> bool:
    """Whether the run has a valid result and its whole model. A run that trains nothing is complete from the start."""
    return config.tuning.kind == "none" or read_result(config, folder) is not None


def read_result(config: RunConfig, folder: RunFolder) -> dict[str, Any] | None:
    """train/result.json if it is whole, of this configuration, and the model folder has the files it lists."""
    result = read_json(folder.train_result)
    if not isinstance(result, dict) or not all(key in result for key in RESULT_KEYS):
        return None
    expected = result["model_files"]
    if result["signature"] != signature(config) or not isinstance(expected, dict) or not expected:
        return None
    found = model_files(folder.model)
    return result if all(found.get(name) == size for name, size in expected.items()) else None


def trained_already(folder: RunFolder) -> UserError:
    """Why a complete training can't go on from a checkpoint."""
    return UserError(f"--resume: {folder.root} is trained already; to train it anew, remove its train/")


def model_files(folder: Path) -> dict[str, int]:
    """Name -> size in bytes of the files of a model folder."""
    return {path.name: path.stat().st_size for path in sorted(folder.glob("*")) if path.is_file()}
