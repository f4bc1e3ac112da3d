"""Writing so that a reader never sees half a file, and that a kill at any moment loses nothing."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import StageError

_UMASK = os.umask(0o022)  # it can only be read by setting it
os.umask(_UMASK)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is flushed to disk and renamed to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _share(temporary)
        _sync(temporary)
        temporary.replace(path)
    except OSError as error:
        raise StageError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        temporary.unlink(missing_ok=True)
    _sync(path.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside `path`; on success it replaces `path` whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
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
    except OSError as error:
        raise StageError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _sync(path.parent)


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


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files that belong together: all are on disk before the first takes its place, so that a full disk leaves
    the older ones as they were. The first named takes its place last."""
    with ExitStack() as files:
        for name, text in texts.items():
            files.enter_context(atomic_file(folder / name)).write_text(text, encoding="utf-8")


def to_json(values: Any, indent: int | None = 1) -> str:
    """The text of a JSON file. NaN is refused: it isn't JSON. Without indent, large values take a tenth of the time."""
    return json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, values: Any, indent: int | None = 1) -> None:
    """Write JSON atomically, see `to_json`."""
    write_text(path, to_json(values, indent))


def read_json(path: Path) -> Any | None:
    """The content, or None when the file is absent or not whole JSON (then it counts as not written)."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except (ValueError, RecursionError):  # a number of 5,000 digits; [[[[...
        return None
