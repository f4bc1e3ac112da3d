"""Reading YAML so that nothing in it is lost: a key given twice is an error."""

import re
from functools import lru_cache
from pathlib import Path
from textwrap import dedent
from typing import Any

import yaml

from pipeline.errors import UserError

LARGEST = 1_000_000
"""Values in a file, aliases written out: nine lists of ten aliases each would fill any memory."""

FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class UniqueKeyLoader(FastLoader):
    """YAML's safe types. PyYAML itself keeps the last of two equal keys and drops the first silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.value in seen:
                problem = f"key {key_node.value!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            if isinstance(key_node.value, str) and key_node.value != "<<":
                seen.add(key_node.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return found


def read_yaml(path: Path) -> dict[str, Any]:
    """One YAML file as a dictionary.

    Raises:
        UserError: the file is missing, unreadable, not UTF-8, not YAML, or not a mapping.
    """
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=UniqueKeyLoader)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text (at byte {error.start})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{path}{where}: not valid YAML ({problem})") from None
    except (ValueError, RecursionError) as error:  # the 13th month; a number of 5,000 digits
        raise UserError(f"{path}: not valid YAML ({error})") from None
    try:
        check_aliases(values)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: must hold keys and values, not {_kind(values)}")
    return values


def read_sections(path: Path) -> dict[str, Any]:
    """The same, a key at a time: what many files have in common is parsed once. Not to be changed in place.

    Raises:
        UserError: as `read_yaml`.
    """
    try:
        return _mapping(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return read_yaml(path)


def check_aliases(values: Any) -> None:
    """Refuse what can't be written out without aliases.

    Raises:
        ValueError: one refers to what holds it, or together they repeat more than any file of a user would.
    """
    try:
        size = _written_size(values, {})
    except RecursionError:
        raise ValueError("its lists and keys are nested too deeply") from None
    if size > LARGEST:
        raise ValueError(f"its aliases stand for more than {LARGEST} values")


def _written_size(value: Any, known: dict[int, int]) -> int:
    """Number of values, with each alias written out; every list and mapping is looked at once."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = 0
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum([_written_size(part, known) for part in parts])
    elif not known[id(value)]:
        raise ValueError("an alias refers to the very thing that holds it")
    return known[id(value)]


KEYS = re.compile(r"^(?=\w+:)", re.MULTILINE)
KEY_WITH_KEYS = re.compile(r"(\w+:)\n((?:  +\w.*\n)+)")


def _mapping(text: str) -> dict[str, Any]:
    """Raises ValueError for anything but keys at the start of lines, each given once: that is left to `read_yaml`."""
    sections = [_section(part) for part in KEYS.split(text) if part]
    values = {key: value for section in sections for key, value in section.items()}
    if len(values) != len(sections) or any(len(section) != 1 for section in sections):
        raise ValueError("not one key in each section")
    return values


@lru_cache(maxsize=100_000)
def _section(text: str) -> dict[str, Any]:
    """One key with what is under it."""
    nested = KEY_WITH_KEYS.fullmatch(text)
    if nested and (body := dedent(nested[2]))[0] != " ":
        return {key: _mapping(body) for key in _section(nested[1])}
    found = yaml.load(text, Loader=UniqueKeyLoader)
    if not isinstance(found, dict):
        raise ValueError("no key")
    check_aliases(found)
    return found


def _kind(values: Any) -> str:
    return {"NoneType": "nothing", "list": "a list", "str": "text"}.get(type(values).__name__, repr(values))
