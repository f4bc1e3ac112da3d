"""A model's answers to requests, kept while a task is being scored, so that a kill loses one pass at most.

TASK.answers/ holds one file per process. Several processes may answer shares of the same requests at once, here or
on other machines: whoever opens the folder afterwards finds the answers of all.
"""

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import StageError, UserError


@dataclass(frozen=True)
class Share:
    """Every `count`-th pass, counted from `number` (1 to count): what one of several processes answers."""

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise UserError(f"share {self.number}/{self.count}: must be 1/{self.count} to {self.count}/{self.count}")

    @classmethod
    def parse(cls, text: str) -> "Share":
        """From `2/4`, the second of four shares.

        Raises:
            UserError: it is not of that form.
        """
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and int(count)):
            raise UserError(f"share {text!r}: must be of the form 2/4, the second of four")
        return cls(int(number), int(count))

    def holds(self, index: int) -> bool:
        return index % self.count == self.number - 1


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
        for path in sorted(self.folder.glob("*.jsonl")) if self.folder else ():
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
        if self._file is None:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = folder / f"{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
            lines = f"{json.dumps({'identity': self.identity})}\n{lines}"
        with self._file.open("a", encoding="utf-8") as file:
            file.write(lines)

    def remove(self) -> None:
        """The result is written: the answers have done their work."""
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def _read(path: Path, identity: str) -> dict[str, Any]:
    """The whole lines of a file; the last one may be torn by a kill or still be in the writing."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    head, *pairs = map(_parsed, lines or [""])
    if head != {"identity": identity}:
        return {}
    return {pair[0]: pair[1] for pair in pairs if isinstance(pair, list) and len(pair) == 2}


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StageError(f"{folder}: cannot be written ({error.strerror})") from error
