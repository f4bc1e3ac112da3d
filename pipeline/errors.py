"""Errors a user can act on: one sentence that names the culprit and what was allowed."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A mistake in the input (configuration, path, data). The command line prints it and exits with 2."""

    status = 2


class StageError(UserError):
    """Work that started and could not be finished (full disk, NaN loss). Exit status 1."""

    status = 1


def one_line(text: object) -> str:
    """An error, or what a program printed, without line breaks."""
    return " ".join(str(text).split())


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """`, did you mean 'training'?` for a close misspelling, else "" """
    found = get_close_matches(name, list(allowed), n=1)
    return f", did you mean {found[0]!r}?" if found else ""
