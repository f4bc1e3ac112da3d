"""A function of the user's, named in the configuration as `module:function` or `file.py:function`."""

import hashlib
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.errors import UserError
from pipeline.files import expanded


@dataclass(frozen=True)
class UserFunction:
    """A function, and the digest of the file that it stands in."""

    name: str
    """File name or module, and function."""
    call: Callable[[Any], Any]
    source: str
    """SHA-256 of its whole file. What that imports is not covered."""


def load_function(reference: str, key: str) -> UserFunction:
    """Import a function. Its code runs with all rights of the user who names it.

    Args:
        key: of the configuration, for errors.

    Raises:
        UserError: no such file, module or function, or its code can't be run.
    """
    place, _, name = reference.rpartition(":")
    module = _module(place, f"{key} = {reference!r}")
    call = getattr(module, name, None)
    if not callable(call):
        raise UserError(f"{key} = {reference!r}: {place} has no function {name}")
    source = inspect.getsourcefile(module)
    if source is None:
        raise UserError(f"{key} = {reference!r}: {place} has no Python source, so a change could not be told")
    shown = f"{Path(place).name if place.endswith('.py') else place}:{name}"
    return UserFunction(shown, call, hashlib.sha256(Path(source).read_bytes()).hexdigest())


def _module(place: str, shown: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        path = expanded(place)
        if not path.is_file():
            raise UserError(f"{shown}: there is no file {place}")
        spec = importlib.util.spec_from_file_location(f"user_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{shown}: can't be imported: {type(error).__name__}: {error}") from None
