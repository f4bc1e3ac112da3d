"""A model's answers to requests, kept while a task is being scored, so that a kill loses one pass at most.

TASK.answers/ holds one file per process. Several processes may answer shares of the same requests at once, here or
on other machines: whoever opens the folder afterwards finds the answers of all.
"""

import json
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline.errors import StageError


class Answers:
    """Answers by the key of their request; without a folder they are kept in memory only."""

    def __init__(self, folder: Path | None = None, identity: str = "") -> None:
        """
        Args:
            folder: where earlier answers are read from and new ones appended.
            identity: of what is measured; answers to another question lie there unused.
        """
        self.folder, self.identity = folder, identity
        self.known: dict[str, Any] = {}
        self._file: Path | None = None
        self.reload()

    def reload(self) -> None:
        """Read what other processes have answered meanwhile."""
        for path in _files(self.folder):
            self.known |= _read(path, self.identity)

    def holds(self, keys: Iterable[str]) -> bool:
        return all(key in self.known for key in keys)

    def add(self, answers: dict[str, Any]) -> None:
        """Keep answers, in the file before anything else happens.

        Raises:
            StageError: they can't be written.
        """
        self.known |= answers
        if self.folder:
            with _written(self.folder):
                self._append(self.folder, "".join(f"{json.dumps(pair)}\n" for pair in answers.items()))

    def _append(self, folder: Path, lines: str) -> None:
        """Another process may write the result, and remove all answers to its question, at any moment."""
        self._file = self._file or folder / f"{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        if not self._file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            lines = f"{json.dumps({'identity': self.identity})}\n{lines}"
        with self._file.open("a", encoding="utf-8") as file:
            file.write(lines)

    def remove(self) -> None:
        """The result is written: the answers to its question, whoever gave them, have done their work."""
        for path in _files(self.folder):
            if _head(path) == {"identity": self.identity}:
                path.unlink(missing_ok=True)
        with suppress(OSError):  # answers to other questions are there
            if self.folder:
                self.folder.rmdir()


def _files(folder: Path | None) -> list[Path]:
    with suppress(FileNotFoundError):  # another process has removed the folder while it was listed
        return sorted(folder.glob("*.jsonl")) if folder else []
    return []


def _read(path: Path, identity: str) -> dict[str, Any]:
    """The whole lines of a file; the last one may be torn by a kill or still be in the writing."""
    if _head(path) != {"identity": identity}:
        return {}
    with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:  # it may go, even while it is read
        return dict(pair for pair in map(_parsed, file) if _is_answer(pair))
    return {}


def _head(path: Path) -> Any:
    """The first line; None if the file is gone or is none."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return _parsed(file.readline())
    except OSError:
        return None


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_answer(pair: Any) -> bool:
    """[key, text] or [key, [log-likelihood, is it the likeliest]]."""
    if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
        return False
    value = pair[1]
    is_score = isinstance(value, list) and [type(part) for part in value] == [float, bool] and not value[0] > 0
    return isinstance(value, str) or is_score


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StageError(f"{folder}: cannot be written ({error.strerror})") from error
