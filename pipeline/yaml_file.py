"""Reading YAML so that nothing in it is lost: a key given twice is an error."""

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import UserError

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
    try:
        json.dumps(values, default=str, skipkeys=True)
    except ValueError:
        raise UserError(f"{path}: an alias refers to the very thing that holds it") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: must hold keys and values, not {_kind(values)}")
    return values


def read_sections(path: Path) -> dict[str, Any]:
    """The same, a top-level key at a time: equal sections of many files are parsed once. Not to be changed in place.

    Raises:
        UserError: as `read_yaml`.
    """
    try:
        sections = [_section(text) for text in TOP_LEVEL.split(path.read_text(encoding="utf-8")) if text]
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return read_yaml(path)
    keys = [key for section in sections for key in section]
    if len(set(keys)) < len(sections) or len(keys) != len(sections):
        return read_yaml(path)
    return {key: value for section in sections for key, value in section.items()}


TOP_LEVEL = re.compile(r"^(?=\w+:)", re.MULTILINE)


@lru_cache(maxsize=50_000)
def _section(text: str) -> dict[str, Any]:
    """One key with what is under it; empty where the text is anything else, which is left to `read_yaml`."""
    found = yaml.load(text, Loader=UniqueKeyLoader)
    try:
        json.dumps(found, default=str, skipkeys=True)
    except ValueError:  # an alias within itself
        return {}
    return found if isinstance(found, dict) and len(found) == 1 else {}


def _kind(values: Any) -> str:
    return {"NoneType": "nothing", "list": "a list", "str": "text"}.get(type(values).__name__, repr(values))
