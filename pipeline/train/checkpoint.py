"""Checkpoint folders: written whole, proven by checksums before they are read, rotated, and tied to one run.

CHECKPOINTS/step-NNNNNN/
  manifest.json   step, identity of the run, SHA-256 of every other file, and of the manifest itself
  ...             what `pipeline.train.state` writes

Several ranks write into one temporary folder, which rank 0 renames once all are done; checksums are shared out among
them. So the folder must be on a file system that all of them see.
"""

import hashlib
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from pipeline.config import digest
from pipeline.errors import StageError
from pipeline.files import atomic_folder, read_json, write_json
from pipeline.train.ranks import Ranks, shared

MANIFEST = "manifest.json"


class Damaged(Exception):
    """Why a checkpoint folder is no good."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    path: Path
    step: int


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run.

    `identity` says which run they belong to (signature, prepared data, number of processes); a checkpoint with
    another one is refused, not skipped: going on from it would be another run.
    """

    folder: Path
    identity: dict[str, Any]
    keep: int
    ranks: Ranks = field(default_factory=Ranks)

    def save(self, step: int, write: Callable[[Path], None], validation_loss: float | None = None) -> None:
        """Write a checkpoint with `write(folder)`, called on every rank; once it is complete, delete all but the
        last `keep` and the best one, by `validation_loss` at its step.

        Raises:
            StageError: on every rank, if one of them cannot write (full disk, permissions).
        """
        path = self.folder / f"step-{step:06d}"
        with ExitStack() as stack:
            temporary = self.ranks.first(lambda: stack.enter_context(atomic_folder(path)))
            self.ranks.together(lambda: _write(write, temporary, path))
            files = self._checksums(temporary)
            self.ranks.first(
                lambda: write_json(temporary / MANIFEST, _manifest(files, step, self.identity, validation_loss))
            )
            self.ranks.first(stack.close)  # renames
        self.ranks.first(self._rotate)

    def _checksums(self, folder: Path) -> dict[str, str]:
        """SHA-256 of every file; each rank does its share, whoever wrote them.

        Rank 0 says which they are: on a network file system the others may see an older list.
        """
        files = self.ranks.first(lambda: sorted(file.name for file in folder.iterdir() if file.is_file()))
        own = {name: _sha256(folder / name) for name in files[self.ranks.index :: self.ranks.count] if name != MANIFEST}
        found = {name: digest for part in self.ranks.gather(own) for name, digest in part.items()}
        return dict(sorted(found.items()))

    def _rotate(self) -> None:
        best = self.best()
        for old in _newest_first(self.folder)[self.keep :]:
            if best is None or old != best.path:
                _remove(old)

    def best(self) -> Checkpoint | None:
        """The checkpoint with the lowest validation loss, the earliest of equals; None if none has one."""
        found = []
        for path in _newest_first(self.folder):
            with suppress(Damaged):
                manifest = _read_manifest(path)
                if manifest.get("validation_loss") is not None:
                    found.append((manifest["validation_loss"], manifest["step"], path))
        return Checkpoint(min(found)[2], min(found)[1]) if found else None

    def chosen(self, path: Path) -> Checkpoint:
        """The checkpoint at a path that the user named.

        Raises:
            StageError: it is absent, torn or damaged, or belongs to another run.
        """
        try:
            if not path.is_dir():
                raise Damaged("there is no such folder")
            manifest = self._verified(path)
        except Damaged as damage:
            raise shared(StageError(f"{path}: {damage}")) from None
        self._refuse_other_run(path, manifest["identity"])
        return Checkpoint(path, manifest["step"])

    def latest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest complete checkpoint, and why each newer one is no good. Nothing is changed.

        Raises:
            StageError: the newest complete checkpoint belongs to another run.
        """
        skipped = []
        for path in self.ranks.first(lambda: _newest_first(self.folder)):
            try:
                manifest = self._verified(path)
            except Damaged as damage:
                skipped.append(f"{path}: {damage}")
                continue
            self._refuse_other_run(path, manifest["identity"])
            return Checkpoint(path, manifest["step"]), skipped
        return None, skipped

    def _verified(self, path: Path) -> dict[str, Any]:
        """The manifest, once it and every file it lists are proven whole.

        Raises:
            Damaged: on every rank.
        """
        manifest, reason = self.ranks.first(lambda: _readable(path))
        if manifest is None:
            raise Damaged(reason)
        found = self._checksums(path)
        for name, expected in manifest["files"].items():
            if name not in found:
                raise Damaged(f"{name} is missing")
            if found[name] != expected:
                raise Damaged(f"{name} is damaged")
        return manifest

    def refuse_others(self) -> None:
        """Look at whose checkpoints lie here, without reading them.

        Raises:
            StageError: they belong to another run, or to the same one with another number of processes.
        """
        for path in _newest_first(self.folder)[:1]:
            with suppress(Damaged):
                self._refuse_other_run(path, _read_manifest(path)["identity"])

    def _refuse_other_run(self, path: Path, identity: dict[str, Any]) -> None:
        for key, expected in self.identity.items():
            if identity.get(key) != expected:
                again = f"go on with {identity.get(key)!r}, or " if key in ("processes", "zero_stage") else ""
                raise shared(
                    StageError(
                        f"{path}: written with {key} {identity.get(key)!r}, this run has {expected!r}: "
                        f"{again}remove the checkpoints to start over"
                    )
                )

    def clean(self, start: Checkpoint | None) -> list[Path]:
        """Remove what killed saves left behind, and the checkpoints newer than the one resumed from, damaged or not.

        Those must go: rotation counts by step, and would keep them in place of those to come. Returns which went.
        """
        for stray in self.folder.glob(".*"):
            _delete(stray)
        newer = [path for path in _newest_first(self.folder) if start is None or _step(path) > start.step]
        for path in newer:
            _remove(path)
        return newer

    def remove_all(self) -> None:
        """The run is complete: its model is saved."""
        if self.folder.exists():
            _remove(self.folder)


def _newest_first(folder: Path) -> list[Path]:
    """What a save has named; a copy under another name (step-000010.bak) is the user's."""
    own = (path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdecimal())
    return sorted(own, key=_step, reverse=True)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _remove(path: Path) -> None:
    """Rename first: a kill half-way must not leave a torn folder under a good name."""
    doomed = path.with_name(f".{path.name}.removed")
    _delete(doomed)
    path.replace(doomed)
    _delete(doomed)


def _delete(path: Path) -> None:
    """Whatever it is: a damaged disk, or a person, may have put a file or a link in the place of a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write(write: Callable[[Path], None], temporary: Path, path: Path) -> None:
    try:
        write(temporary)
    except SafetensorError as error:  # how safetensors reports a full disk
        raise StageError(f"{path}: cannot be written ({error})") from error


def _manifest(
    files: dict[str, str], step: int, identity: dict[str, Any], validation_loss: float | None = None
) -> dict[str, Any]:
    values = {"step": step, "identity": identity, "files": files, "validation_loss": validation_loss}
    return {**values, "digest": digest(values)}


def _readable(path: Path) -> tuple[dict[str, Any] | None, str]:
    """The manifest, or why there is none."""
    try:
        return _read_manifest(path), ""
    except Damaged as damage:
        return None, str(damage)


def _read_manifest(path: Path) -> dict[str, Any]:
    manifest = read_json(path / MANIFEST)
    if not isinstance(manifest, dict):
        raise Damaged(f"{MANIFEST} is missing or not whole")
    if digest({key: value for key, value in manifest.items() if key != "digest"}) != manifest.get("digest"):
        raise Damaged(f"{MANIFEST} is damaged")
    if path.name != f"step-{manifest['step']:06d}":
        raise Damaged(f"{MANIFEST} is that of step {manifest['step']}")
    return manifest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
