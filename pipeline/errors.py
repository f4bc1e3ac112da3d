"""Errors a user can act on: one sentence that names the culprit and what was allowed."""


class UserError(Exception):
    """A mistake in the input (configuration, path, data). The command line prints it and exits with 2."""

    status = 2


class StageError(UserError):
    """Work that started and could not be finished (full disk, NaN loss). Exit status 1."""

    status = 1
