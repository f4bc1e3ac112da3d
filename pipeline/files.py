"""Writing so that a reader never sees half a file, and that a kill at any moment loses nothing."""

import errno
import glob
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline.errors import StageError, UserError

_UMASK = os.umask(0o022)  # it can only be read by setting it
os.umask(_UMASK)
LEFT_OVER = 3600
"""Seconds after which no writer is still at a table."""
RANDOM = "?" * 8
"""What tempfile adds to a name."""


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is flushed to disk and renamed to `path`.

    Raises:
        StageError: it can't be written.
    """
    with writing(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            _share(temporary)
            _sync(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    _sync(path.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside `path`; on success it replaces `path` whole.

    Raises:
        StageError: it can't be written.
    """
    with writing(path):
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            yield temporary
            _share(temporary)
            for file in temporary.rglob("*"):
                _share(file)
                _sync(file)
            if path.exists():
                old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
                path.replace(old)
                temporary.replace(path)
                shutil.rmtree(old)
            else:
                temporary.replace(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    _sync(path.parent)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make the folder it lies in; name what can't be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise StageError(f"{path}: cannot be written ({_reason(error)})") from error


def _reason(error: OSError) -> str:
    """`shutil` goes on after a file that it can't copy, and tells of all of them."""
    files = error.args[0] if isinstance(error, shutil.Error) else ()
    return str(files[0][-1] if files and isinstance(files, list) else error.strerror or error)


def _share(path: Path) -> None:
    """Temporary files are made private, and safetensors makes private ones too; results are for colleagues."""
    path.chmod((0o777 if path.is_dir() else 0o666) & ~_UMASK)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, as UTF-8."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_texts(folder: Path, texts: Mapping[str, str], seal: str, outdated: Collection[str] = ()) -> None:
    """Write files that belong together, so that files of two times can never be taken for one whole. What a killed
    writer has left is removed after an hour.

    All are on disk before the first takes its place: a full disk leaves the older ones as they were. The seal, one of
    them, is gone before the first takes its place and comes back last: after a kill between them it is not there.

    Args:
        outdated: files of older times that are none of these.
    """
    with ExitStack() as files:
        for name in sorted(texts, key=lambda name: name != seal):  # they take their places in the opposite order
            if (folder / name).is_dir():
                raise StageError(f"{folder / name}: cannot be written (Is a directory)")
            files.enter_context(atomic_file(folder / name)).write_text(texts[name], encoding="utf-8")
            _remove_leftovers(folder, name)
        for name in (seal, *outdated):
            _remove(folder / name)
        _sync(folder)


def _remove_leftovers(folder: Path, name: str) -> None:
    for leftover in folder.glob(f".{glob.escape(name)}.{RANDOM}"):
        with suppress(OSError):  # another writer has been quicker, or it is a colleague's
            if time.time() - leftover.stat().st_mtime > LEFT_OVER:
                leftover.unlink()


def _remove(path: Path) -> None:
    with writing(path):
        path.unlink(missing_ok=True)


def to_json(values: Any, indent: int | None = 1) -> str:
    """The text of a JSON file. NaN is refused: it isn't JSON. Without indent, large values take a tenth of the time."""
    return json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, values: Any, indent: int | None = 1) -> None:
    """Write JSON atomically, see `to_json`."""
    write_text(path, to_json(values, indent))


def read_file(path: Path) -> bytes:
    """The content. What is no file, such as a pipe, on which a reader would wait for ever, counts as absent.

    Raises:
        OSError: it is absent, or can't be read.
    """
    with open(path, "rb", opener=_opened_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileNotFoundError(errno.ENOENT, "Is not a file", str(path))
        return file.read()


def _opened_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def expanded(path: str | Path) -> Path:
    """A path with the home folder in place of `~` or `~user`.

    Raises:
        UserError: there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{path}: there is no such user, in whose home folder it would be") from None


def read_json(path: Path) -> Any | None:
    """The content, or None when the file is absent or not whole JSON (then it counts as not written)."""
    try:
        return json.loads(read_file(path).decode())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except (ValueError, RecursionError):  # a number of 5,000 digits; [[[[...
        return None
