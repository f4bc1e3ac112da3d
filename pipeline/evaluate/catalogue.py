"""The project's own tasks, by name: one YAML file each, in the form of lm-eval."""

from pathlib import Path

FOLDER = Path(__file__).parent / "tasks"

TASKS = {file.stem: file for file in sorted(FOLDER.glob("*.yaml"))}
"""Name -> file. These names win over equal ones of the harness: `mmlu` is the paper's."""
