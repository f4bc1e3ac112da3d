"""Filters that look at one row's text: visible answers, scripts, regular expressions, a function of the user's."""

import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import re2

from pipeline.errors import StageError, UserError
from pipeline.prepare.example import Example, Rendered
from pipeline.prepare.filter_config import FiltersConfig, LanguageConfig, PatternConfig
from pipeline.prepare.record import Fault
from pipeline.prepare.user_function import UserFunction
from pipeline.prepare.words import texts_of

Check = Callable[[Example, Rendered], None]
"""Raises a Fault for a row that is to be dropped."""

INVISIBLE = {"Cc", "Cf", "Cs", "Zs", "Zl", "Zp"}
"""Unicode categories without a mark on paper."""


def text_filters(config: FiltersConfig, function: UserFunction | None) -> list[Check]:
    """The filters that the configuration asks for.

    Raises:
        UserError: an unknown script, or a pattern that RE2 can't read.
    """
    checks: list[Check] = [visible_answer] if config.empty_answers else []
    if config.language.scripts:
        checks.append(scripts(config.language))
    checks += [matching(pattern) for pattern in config.patterns]
    if function is not None:
        checks.append(approved(function))
    return checks


def visible_answer(example: Example, text: Rendered) -> None:
    """Drop a row whose answer shows nothing."""
    if all(unicodedata.category(letter) in INVISIBLE for letter in text.answer):
        raise Fault("the answer has no visible character")


def scripts(config: LanguageConfig) -> Check:
    """Drop rows whose letters are too rarely of the scripts asked for.

    Raises:
        UserError: an unknown script.
    """
    belongs = _membership(config.scripts)
    names = " or ".join(config.scripts)

    def check(example: Example, text: Rendered) -> None:
        counts = Counter("".join(texts_of(example)))
        found = [(belongs(letter), count) for letter, count in counts.items()]
        own = sum(count for verdict, count in found if verdict)
        letters = sum(count for verdict, count in found if verdict is not None)
        if letters and own < config.min_share * letters:
            raise Fault(f"less than {config.min_share:.0%} of the letters are {names}", f"{own / letters:.0%}")

    return check


def _membership(names: tuple[str, ...]) -> Callable[[str], bool | None]:
    """Whether a character is a letter of one of these scripts; None where it is no letter, or of all scripts."""
    own = re2.compile("[" + "".join(_class_of(name) for name in names) + "]")
    neutral = compiled(r"[\p{Common}\p{Inherited}]", "")

    @cache
    def belongs(letter: str) -> bool | None:
        if not letter.isalpha() or neutral.search(letter):
            return None
        return own.search(letter) is not None

    return belongs


def _class_of(name: str) -> str:
    try:
        compiled(rf"\p{{{name}}}", "")
    except UserError:
        known = "Latin, Cyrillic, Greek, Arabic, Hebrew, Han, Hiragana, Hangul, Devanagari"
        raise UserError(f"data.filters.language.scripts = {name!r}: not a script of Unicode, such as {known}") from None
    return rf"\p{{{name}}}"


def matching(config: PatternConfig) -> Check:
    """Drop rows in which a pattern is found, or is missing.

    Raises:
        UserError: RE2 can't read it.
    """
    pattern = compiled(config.pattern, "data.filters.patterns.pattern")
    where = {"prompt": "the prompt", "answer": "the answer", "any": "the row"}[config.where]

    def check(example: Example, text: Rendered) -> None:
        places = {"prompt": [text.prompt], "answer": [text.answer], "any": [text.prompt, text.answer]}[config.where]
        found = any(pattern.search(place) for place in places)
        if found == (config.drop == "found"):
            raise Fault(f"pattern {config.pattern!r} {config.drop} in {where}")

    return check


def compiled(pattern: str, key: str) -> Any:
    """A pattern of RE2, whose time is linear in the text whatever the pattern: none can hang.

    Raises:
        UserError: naming the key and what RE2 says.
    """
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise UserError(f"{key} = {pattern!r}: not a pattern of RE2, which has no look-around: {said}") from None


def approved(function: UserFunction) -> Check:
    """Drop rows that the user's function refuses."""

    def check(example: Example, text: Rendered) -> None:
        try:
            verdict = function.call(example)
        except Exception as error:
            kind = type(error).__name__
            raise StageError(f"data.filters.function = {function.name!r}: raised {kind}: {error}") from None
        if isinstance(verdict, str) or verdict is False:
            raise Fault(f"function {function.name}" + (f": {verdict}" if verdict else ""))
        if verdict is not True:
            kind = type(verdict).__name__
            raise StageError(f"data.filters.function = {function.name!r}: must return True, False or text, not {kind}")

    return check
