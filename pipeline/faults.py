"""Faults of a configuration in a user's words: key, value, what was allowed."""

from difflib import get_close_matches
from typing import Any, get_origin

from pydantic import ValidationError

from pipeline.errors import did_you_mean
from pipeline.schema import Schema

WORDS = {
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "path_type": "must be a path",
    "tuple_type": "must be a list",
    "dict_type": "must hold keys and values",
    "model_type": "must hold keys and values",
    "model_attributes_type": "must hold keys and values",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have {min_length} or more entries, not {actual_length}",
    "too_long": "must have at most {max_length} entries, not {actual_length}",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must match {pattern}",
    "invalid_key": "has a key that is not text",
}
"""Pydantic's types of errors; its own wording is used for the rest."""


def explain(error: ValidationError, schema: type[Any]) -> list[str]:
    """Each fault as one phrase: key, value, what was allowed in `schema`."""
    details = error.errors()
    # A list with a faulty entry is reported a second time, as too short.
    within = {detail["loc"][:end] for detail in details for end in range(len(detail["loc"]))}
    kept = [detail for detail in details if not detail["loc"] or detail["loc"] not in within]
    return [_explain_one(dict(detail), schema) for detail in kept]


def keys_of(error: ValidationError) -> list[str]:
    """The dotted keys at fault."""
    return [_dotted(detail["loc"]) for detail in error.errors()]


def _dotted(location: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in location)


def _explain_one(detail: dict[str, Any], schema: type[Any]) -> str:
    key = _dotted(detail["loc"]) or "configuration"
    if detail["type"] == "extra_forbidden":
        return f"unknown key {key!r}{_allowed(detail['loc'], schema)}"
    if detail["type"] in ("missing", "missing_argument"):
        return f"{key} is missing"
    shown = f" = {detail['input']!r}" if isinstance(detail["input"], str | int | float | bool | None) else ""
    return f"{key}{shown}: {_words(detail)}"


def _words(detail: dict[str, Any]) -> str:
    context = detail.get("ctx", {})
    if detail["type"] == "literal_error":
        return f"must be one of {context['expected']}{_close_literal(detail['input'], context['expected'])}"
    if detail["type"] in WORDS:
        return WORDS[detail["type"]].format(**context)
    return str(detail["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")


def _close_literal(value: Any, expected: str) -> str:
    allowed = [name.strip("' ") for name in expected.replace(" or ", ", ").split(",")]
    return did_you_mean(str(value), allowed)


def _allowed(location: tuple[Any, ...], schema: type[Any]) -> str:
    fields = _fields_at(location[:-1], schema)
    name = str(location[-1])
    if not fields:
        return ""
    elsewhere = "" if get_close_matches(name, fields, 1) else _elsewhere(name, schema)
    return f"{did_you_mean(name, fields)}{elsewhere} (allowed here: {', '.join(sorted(fields))})"


def _elsewhere(name: str, schema: type[Any]) -> str:
    """A key of that name one level down: `learning_rate` belongs to `training`."""
    owners = [field for field in schema.model_fields if name in _fields_at((field,), schema)]
    return f", did you mean {' or '.join(repr(f'{owner}.{name}') for owner in owners)}?" if owners else ""


def _fields_at(location: tuple[Any, ...], schema: Any) -> list[str]:
    for part in location:
        if isinstance(part, int):
            continue
        if _is_table(schema):  # of entries by the user's own names
            schema = _inner_schema(schema)
            continue
        field = schema.model_fields.get(part) if _is_schema(schema) else None
        schema = _inner(field.annotation) if field else None
    return list(schema.model_fields) if _is_schema(schema) else []


def _inner(annotation: Any) -> Any:
    return annotation if _is_table(annotation) else _inner_schema(annotation)


def _is_table(annotation: Any) -> bool:
    return get_origin(annotation) is dict and _inner_schema(annotation) is not None


def _is_schema(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Schema)


def _inner_schema(annotation: Any) -> Any:
    if _is_schema(annotation):
        return annotation
    inner = [_inner_schema(argument) for argument in getattr(annotation, "__args__", ())]
    return next((schema for schema in inner if schema is not None), None)
