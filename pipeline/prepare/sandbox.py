"""Jinja texts of the user's own, where they can reach the values given to them and nothing else."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, UndefinedError, nodes
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pipeline.errors import UserError
from pipeline.prepare.record import Fault

_ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True
)
for _name in ("lipsum", "random"):  # equal rows make equal texts
    _ENVIRONMENT.globals.pop(_name, None)
    _ENVIRONMENT.filters.pop(_name, None)


def is_template(text: str) -> bool:
    """Whether a text is to be filled in, rather than taken as it is."""
    return "{{" in text or "{%" in text


@cache
def compile_text(text: str, key: str) -> Template:
    """A text with its blanks; `key` is the configuration's that holds it.

    Raises:
        UserError: it is not Jinja.
    """
    try:
        return _ENVIRONMENT.from_string(text)
    except TemplateError as error:
        raise UserError(f"{key}: is not a Jinja template ({error})") from None


def names_in(text: str) -> dict[str, int]:
    """The values that a text asks for, with the line where each stands first.

    Raises:
        ValueError: it is not Jinja; with the line.
    """
    try:
        tree = _ENVIRONMENT.parse(text)
        _ENVIRONMENT.from_string(text)  # filters and tests are looked up only now
    except TemplateSyntaxError as error:
        raise ValueError(f"line {error.lineno}: is not a Jinja template ({error.message})") from None
    free = find_undeclared_variables(tree) - _ENVIRONMENT.globals.keys()
    lines = sorted((node.lineno, node.name) for node in tree.find_all(nodes.Name) if node.name in free)
    return {name: line for line, name in reversed(lines)}


def fill(text: str, values: Mapping[str, Any], key: str) -> str:
    """The text with its blanks filled in.

    Raises:
        Fault: a value is missing, or does not allow what the text does with it.
    """
    try:
        return compile_text(text, key).render(values)
    except UndefinedError as error:
        raise Fault(f"a value that {key} needs is missing", str(error)[:120]) from None
    except (
        TemplateError,
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise Fault(f"{key} can't be filled in", f"{type(error).__name__}: {error}"[:120]) from None
