"""One row as it came from a source, and the reason why a row is set aside."""

from dataclasses import dataclass
from typing import Any


class Fault(Exception):
    """A row that can't be used. `reason` is counted, so it holds nothing of the row; `detail` may.

    Args:
        ends_file: what lies behind it in its file can't be read either, however many rows that is.
    """

    def __init__(self, reason: str, detail: str = "", ends_file: bool = False) -> None:
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.ends_file = ends_file

    def __reduce__(self) -> tuple[type["Fault"], tuple[str, str, bool]]:
        return Fault, (self.reason, self.detail, self.ends_file)  # exceptions are pickled by their message


@dataclass(frozen=True)
class Record:
    """A row of a source: its values, or the fault that reading it met."""

    line: int
    """First line of the row in a text file, counted from 1; number of the row in a binary file."""
    values: dict[str, Any] | None
    fault: Fault | None = None
    file: str = ""
    """Its file, where the source has several."""


def check_text(value: Any) -> None:
    """Raise a Fault where a string, however deep, holds bytes that were not UTF-8 or half a surrogate pair."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise Fault("not UTF-8", f"at character {error.start + 1}") from None
    elif isinstance(value, dict):
        for key, inner in value.items():
            check_text(key)
            check_text(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_text(inner)
