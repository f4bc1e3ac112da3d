"""What a user sees while a run trains: a live bar in a terminal, a line now and then in a log file."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 20.0

console = Console(stderr=True, highlight=False)


def say(message: str) -> None:
    """One line for the user."""
    console.print(message, markup=False, soft_wrap=True)


class Reporter(Protocol):
    """Takes the metrics of each update."""

    def __call__(self, values: dict[str, Any]) -> None: ...


@contextmanager
def progress(step: int, total: int, is_shown: bool = True) -> Iterator[Reporter]:
    """Show updates `step`..`total` of a run."""
    if not is_shown:
        yield lambda values: None
        return
    if not console.is_terminal:
        yield _Lines(step, total)
        return
    columns = (TextColumn("train"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[numbers]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("train", total=total, completed=step, numbers="")
        yield lambda values: bar.update(task, completed=values["step"], numbers=_numbers(values))


class _Lines:
    """A line at the first update, at the last one, and every so often between."""

    def __init__(self, step: int, total: int) -> None:
        self.first, self.total = step, total
        self.started, self.printed = time.monotonic(), float("-inf")

    def __call__(self, values: dict[str, Any]) -> None:
        now, step = time.monotonic(), values["step"]
        if step < self.total and now - self.printed < SECONDS_BETWEEN_LINES:
            return
        self.printed = now
        left = (now - self.started) / (step - self.first) * (self.total - step)
        say(f"train: step {step}/{self.total}, {_numbers(values)}, {left:.0f} s left")


def _numbers(values: dict[str, Any]) -> str:
    return f"loss {values['loss']:.4f}, {values['tokens_per_second']:.0f} tokens/s"
