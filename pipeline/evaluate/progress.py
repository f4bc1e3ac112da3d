"""What a user sees while a task is scored: a live bar in a terminal, a line now and then in a log file."""

import time

from rich import progress as bars
from rich.console import Console

SECONDS_BETWEEN_LINES = 20.0


class Progress:
    """Counts answered requests. This one shows nothing; `Shown` does."""

    def start(self, total: int) -> None:
        """`total` requests are about to be answered."""

    def advance(self, requests: int) -> None:
        """That many more have been answered."""

    def say(self, words: str) -> None:
        """Something that the user should know."""

    def close(self) -> None:
        """Nothing more comes, perhaps because of an error."""


class Shown(Progress):
    """Progress of one task with rate and time left.

    The console is made before the harness runs, whose own output is discarded.
    """

    def __init__(self, label: str, console: Console) -> None:
        self.label, self.console = label, console
        self.bar: bars.Progress | None = None

    def start(self, total: int) -> None:
        self.total, self.done = total, 0
        self.started = self.printed = time.monotonic()
        if self.console.is_terminal:
            columns = (bars.TextColumn(self.label), bars.BarColumn(), bars.MofNCompleteColumn())
            rate = bars.TextColumn("{task.fields[rate]}")
            self.bar = bars.Progress(*columns, rate, bars.TimeRemainingColumn(), console=self.console)
            self.task = self.bar.add_task(self.label, total=total, rate="")
            self.bar.start()

    def advance(self, requests: int) -> None:
        self.done += requests
        now = time.monotonic()
        rate = self.done / max(now - self.started, 1e-9)
        if self.bar:
            self.bar.update(self.task, completed=self.done, rate=f"{rate:.1f} requests/s")
        elif self.done < self.total and now - self.printed >= SECONDS_BETWEEN_LINES:
            self.printed = now
            left = (self.total - self.done) / rate
            self.say(f"{self.done}/{self.total} requests, {rate:.1f} requests/s, {left:.0f} s left")
        if self.bar and self.done >= self.total:
            self.close()

    def close(self) -> None:
        """Take the bar off the screen's last line."""
        if self.bar:
            self.bar.stop()
            self.bar = None

    def say(self, words: str) -> None:
        self.console.print(f"{self.label}: {words}", markup=False, soft_wrap=True, highlight=False)
