"""Reading YAML so that nothing in it is lost (a key given twice is an error), in bounded time and memory."""

import re
from functools import lru_cache
from pathlib import Path
from textwrap import dedent
from typing import Any

import yaml

from pipeline.errors import UserError

FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

LARGEST = 1_000_000
"""Bytes of a file, and characters with its aliases written out: a few lines of aliases of aliases fill any memory."""
DEEPEST = 100
TOO_DEEP = f"more than {DEEPEST} lists and groups of keys within each other"


class UniqueKeyLoader(FastLoader):
    """YAML's safe types. PyYAML itself keeps the last of two equal keys and drops the first silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.value == "<<":
                continue
            if key_node.value in seen:
                problem = f"key {key_node.value!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key_node.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return found


def read_yaml(path: Path) -> dict[str, Any]:
    """One YAML file as a dictionary.

    Raises:
        UserError: the file is missing, unreadable, not UTF-8, not YAML, or not a mapping.
    """
    try:
        values = _load(_text(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text (at byte {error.start})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{path}{where}: not valid YAML ({problem})") from None
    except RecursionError:
        raise UserError(f"{path}: not valid YAML ({TOO_DEEP})") from None
    except ValueError as error:  # the 13th month; a number of 5,000 digits
        raise UserError(f"{path}: not valid YAML ({error})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: must hold keys and values, not {_kind(values)}")
    return values


def read_sections(path: Path) -> dict[str, Any]:
    """The same, a key at a time: what many files have in common is parsed once. Not to be changed in place.

    Raises:
        UserError: as `read_yaml`.
    """
    try:
        return _mapping(_text(path))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return read_yaml(path)


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
    found = _load(text)
    if not isinstance(found, dict):
        raise ValueError("no key")
    return found


def _text(path: Path) -> str:
    """The content, of which no more is read than a configuration can have."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UserError(f"{path}: is no regular file (it is read more than once: a pipe, as of <(...), won't do)")
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise UserError(f"{path}: is larger than {LARGEST:,} bytes")
    return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def _load(text: str) -> Any:
    """The values of a document.

    Raises:
        ValueError: they are too many, too deep, or endless.
    """
    loader = UniqueKeyLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        size, depth = _extent(node, {})
        if size > LARGEST:
            raise ValueError(f"with its aliases written out it is larger than {LARGEST:,} characters")
        if depth > DEEPEST:
            raise ValueError(TOO_DEEP)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _extent(node: yaml.Node, known: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """Characters and depth of a node. An alias is the node that it stands for: looked at once, but counted again."""
    if isinstance(node, yaml.ScalarNode):
        return 1 + len(node.value), 0
    if id(node) not in known:
        known[id(node)] = None
        children = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
        parts = [_extent(child, known) for child in children]
        known[id(node)] = 1 + sum(size for size, _ in parts), 1 + max((depth for _, depth in parts), default=0)
    found = known[id(node)]
    if found is None:
        raise ValueError("an alias refers to the very thing that holds it")
    return found


def _kind(values: Any) -> str:
    return {"NoneType": "nothing", "list": "a list", "str": "text"}.get(type(values).__name__, repr(values))
