"""Which code and libraries made a result, and which versions of them were tested."""

import platform
import re
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

from pipeline import __version__

LIBRARIES = ("torch", "transformers", "accelerate", "peft", "datasets", "lm-eval", "submitit", "deepspeed")


@cache
def versions() -> dict[str, str]:
    """Versions of Python, of this code (with the git commit when run from a checkout) and of the libraries.

    Reads package metadata only: nothing heavy is imported.
    """
    found = {name: installed(name) for name in LIBRARIES}
    return {
        "python": platform.python_version(),
        "dualtune": __version__,
        "commit": commit(),
        **{name: version for name, version in found.items() if version},
    }


def installed(library: str) -> str:
    """The installed version, or "" when the library is absent."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""


def commit() -> str:
    """The git commit of the checkout this code runs from, `+changes` when files differ from it, else ""."""
    root = Path(__file__).resolve().parent.parent
    if (root / "COMMIT").is_file():  # a copy, made for jobs
        return (root / "COMMIT").read_text(encoding="utf-8")
    if not (root / ".git").exists():
        return ""
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        return head + ("+changes" if _git(root, "status", "--porcelain", "-uno", "--", "pipeline", "launch") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(root: Path, *arguments: str) -> str:
    answer = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=10
    )
    return answer.stdout.strip()


@cache
def tested_ranges() -> dict[str, str]:
    """Library -> the range of versions this release was tested with, from the installed package's metadata."""
    try:
        requirements = metadata.requires("dualtune") or []
    except metadata.PackageNotFoundError:
        return {}
    parsed = (re.match(r"([A-Za-z0-9_.-]+)\s*([^;]*)", requirement) for requirement in requirements)
    return {match[1]: match[2].strip() for match in parsed if match and match[1] in LIBRARIES}
