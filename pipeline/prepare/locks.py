"""Locks on prepared rows. They end with their process, so a kill leaves nothing stale.

On file systems without locks nothing is locked: publishing is safe there too, `dualtune data clean` is not.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from pipeline.errors import UserError

Tell = Callable[[str], None]


class Busy(UserError):
    """Another process holds the lock."""


@contextmanager
def writing(path: Path, tell: Tell | None) -> Iterator[None]:
    """Hold the right to write the prepared rows at `path`.

    Args:
        tell: is told when another process must be waited for. None: don't wait.

    Raises:
        Busy: another process holds it, and `tell` is None.
    """
    lock = _opened(path.parent.parent / "locks" / path.name)
    if lock is None:
        yield
        return
    with lock:
        _take(lock, path, tell)
        if lock.writable():
            lock.truncate(0)
            lock.write(f"{os.getpid()} on {os.uname().nodename}")
            lock.flush()
        yield


def _opened(path: Path) -> IO[str] | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+")
    except OSError:  # a colleague's cache, or a full disk, which writing the rows will report
        return _readable(path)


def _readable(path: Path) -> IO[str] | None:
    """A colleague's lock can be waited for without the right to write."""
    try:
        return path.open("r")
    except OSError:
        return None


def _take(lock: IO[str], path: Path, tell: Tell | None) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        message = f"{path.name}: process {lock.read().strip() or '?'} is preparing these rows"
        if tell is None:
            raise Busy(message) from None
        tell(f"prepare: {message}, waiting")
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        return


def use(file: Path) -> IO[bytes] | None:
    """Mark prepared rows as in use for as long as what is returned stays open.

    Args:
        file: their manifest.

    Returns:
        None where there is no such file, or where it was removed meanwhile.
    """
    try:
        handle = file.open("rb")
    except OSError:
        return None
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_SH)
    if _is_at(handle, file):
        return handle
    handle.close()
    return None


def _is_at(handle: IO[bytes], file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle.fileno()), file.stat())
    except OSError:
        return False


@contextmanager
def unused(file: Path) -> Iterator[bool]:
    """Whether no live process uses the prepared rows of this manifest; meanwhile none can begin to."""
    try:
        handle = file.open("rb+")
    except OSError:
        yield True
        return
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            pass
        yield True
