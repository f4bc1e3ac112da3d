"""What lies in the cache of prepared data, who uses it, and removing it."""

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pipeline.errors import UserError
from pipeline.files import read_json
from pipeline.prepare.locks import Busy, unused, writing

MANIFEST = "manifest.json"
Kind = Literal["rows", "damaged", "shares", "left over"]


@dataclass(frozen=True)
class Entry:
    """A folder in the cache."""

    path: Path
    key: str
    kind: Kind
    """`rows`: whole; `damaged`: prepared anew when wanted; `shares`: not joined yet; `left over` by a kill."""
    rows: int | None
    size: int
    """In bytes."""
    changed: datetime
    runs: tuple[str, ...]
    """Names of the run folders whose rows these are."""


def entries(cache: Path, runs: Path) -> list[Entry]:
    """All folders of prepared data, newest first.

    Args:
        cache: `paths.cache`.
        runs: `paths.runs`, whose manifests say which rows a run uses.
    """
    users = _users(runs)
    folders = [path for path in (cache / "prepared").glob("*") if path.is_dir()]
    return sorted((_entry(path, users) for path in folders), key=lambda entry: entry.changed, reverse=True)


def _users(runs: Path) -> dict[str, list[str]]:
    users: dict[str, list[str]] = {}
    for file in sorted(runs.glob("*/prepare.json")):
        manifest = read_json(file)
        if isinstance(manifest, dict):
            users.setdefault(str(manifest.get("key")), []).append(file.parent.name)
    return users


def _entry(path: Path, users: dict[str, list[str]]) -> Entry:
    key = path.name.removeprefix(".").split(".")[0]
    manifest = read_json(path / MANIFEST)
    kind: Kind = "rows"
    if path.name.startswith("."):
        kind = "left over"
    elif path.suffix == ".shares":
        kind = "shares"
    elif not isinstance(manifest, dict) or manifest.get("key") != key:
        kind = "damaged"
    files = [file.stat() for file in path.rglob("*") if file.is_file()]
    changed = max((file.st_mtime for file in files), default=path.stat().st_mtime)
    return Entry(
        path,
        key,
        kind,
        manifest["rows"]["kept"] if kind == "rows" and isinstance(manifest, dict) else None,
        sum(file.st_size for file in files),
        datetime.fromtimestamp(changed, UTC),
        tuple(users.get(key, ())) if kind == "rows" else (),
    )


def removable(found: Iterable[Entry], keys: Iterable[str]) -> list[Entry]:
    """The entries of these keys; of no keys, those that no run uses, without shares that may yet be joined.

    Raises:
        UserError: a key that isn't there.
    """
    found, wanted = list(found), set(keys)
    missing = wanted - {entry.key for entry in found}
    if missing:
        raise UserError(f"not in the cache: {', '.join(sorted(missing))}; `dualtune data list` shows what is")
    if wanted:
        return [entry for entry in found if entry.key in wanted]
    return [entry for entry in found if not entry.runs and entry.kind != "shares"]


def remove(entry: Entry) -> str | None:
    """Remove an entry, unless a live process writes or uses it.

    Returns:
        Why it was kept, or None.
    """
    try:
        with writing(entry.path.with_name(entry.key), None), unused(entry.path / MANIFEST) as is_free:
            if not is_free:
                return "a process uses it"
            _remove(entry.path)
    except Busy:
        return "a process is preparing it"
    return None


def _remove(path: Path) -> None:
    """At once for whoever looks for it, then file by file."""
    aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name.lstrip('.')}.old."))
    path.replace(aside)
    shutil.rmtree(aside, ignore_errors=True)
