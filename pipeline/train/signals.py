"""Stopping in good order: a signal or a deadline ends the run at the next step boundary, with a checkpoint."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import Any

from pipeline.errors import StageError
from pipeline.train.ranks import Ranks, shared
from pipeline.train.watchdog import Watchdog

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Ctrl-C, and what batch systems send before they end a job."""
DEADLINE = signal.SIGALRM
"""Stands for a deadline that has come."""
SUPERVISED = "DUALTUNE_SUPERVISED"
"""Set in jobs, where a batch system and the job's supervisor may each send their signal: the first one counts."""


SAME = 2.0
"""Seconds within which further signals count as the first: a batch system and a launcher often both send it."""


class Interrupted(StageError):
    """The run was asked to stop and can be resumed. Exit status 128 + signal, as shells do."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.signal = signal.Signals(number)
        self.status = 128 + number


class StopSignals:
    """While entered, the first signal only sets `received`, and reaches all ranks; a second one acts as usual, at once
    (in a job: not at all).

    Args:
        grace: seconds from the first signal until the process is ended by force, should a step, a save or
            another rank be stuck.
        deadline: Unix time at which to stop without a signal.
    """

    def __init__(self, grace: float, deadline: float | None = None, ranks: Ranks = Ranks()) -> None:  # noqa: B008
        self.grace, self.deadline, self.ranks = grace, deadline, ranks
        self._occasion = f"stop-{next(_OCCASIONS)}"
        self._received: int | None = None
        self._since = 0.0
        self._same = math.inf if SUPERVISED in os.environ else SAME
        self._seen: int | None = None
        self._where = ""
        self._is_breaking = False
        self._previous: dict[int, Any] = {}
        self._watchdog: Watchdog | None = None
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def received(self) -> int | None:
        """The signal that asks this rank to stop, if any."""
        if self._received is None and self.deadline is not None and time.time() >= self.deadline:
            self._note(DEADLINE, None)
            if self._watchdog:
                self._watchdog.note(DEADLINE)
        return self._received

    def agreed(self) -> int:
        """The signal that any rank has received, or 0; all ranks ask together."""
        return max(self.ranks.gather(self.received or 0))

    def check(self, where: str) -> None:
        """All ranks together: stop here, with nothing new to save, if one of them is asked to.

        Raises:
            Interrupted: on every rank.
        """
        if number := self.agreed():
            raise shared(_interrupted(number, where))

    @contextmanager
    def breaking(self, where: str) -> Iterator[None]:
        """Work that a signal may break off half-way. No collectives inside: other ranks would wait for ever.

        Raises:
            Interrupted: on this rank.
        """
        self._is_breaking, self._where = True, where
        try:
            if self._received is not None:
                raise _interrupted(self._received, where)
            yield
        finally:
            self._is_breaking = False

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            limit = float("inf") if self.deadline is None else self.deadline + self.grace
            self._watchdog = Watchdog(self.grace, limit, (*SIGNALS, DEADLINE), self._same)
            self._previous = {number: signal.signal(number, self._note) for number in (*SIGNALS, DEADLINE)}
            if self.deadline is not None:  # also where nobody looks at `received`: while data are prepared
                signal.setitimer(signal.ITIMER_REAL, max(SOON, self.deadline - time.time()))
            if self.ranks.count > 1:
                self._threads = [
                    threading.Thread(target=work, args=[self._watchdog], daemon=True)
                    for work in (self._pass_on, self._follow)
                ]
                for thread in self._threads:
                    thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        if self._watchdog:
            watchdog, self._watchdog = self._watchdog, None
            self._over.set()
            watchdog.close()
            for thread in self._threads:  # one that is inside the store when Python ends would abort the process
                thread.join(SECONDS_TO_JOIN)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self._received is not None:
            self._again(number)
            return
        self._received, self._since = number, time.monotonic()
        name = "deadline" if number == DEADLINE else signal.Signals(number).name
        action = f"stopping {self._where}" if self._is_breaking else "stopping after this step, with a checkpoint"
        os.write(2, f"\n{name}: {action}. Once more: at once.\n".encode())  # sys.stderr may be in the middle of a write
        if self._is_breaking:
            raise _interrupted(number, self._where)

    def _again(self, number: int) -> None:
        """A second signal acts as it would without us."""
        if time.monotonic() - self._since >= self._same:
            self._restore()
            signal.raise_signal(number)

    def _pass_on(self, watchdog: Watchdog) -> None:
        """Tell the other ranks, even while this one waits in a collective, where its own handler can't run."""
        if number := watchdog.next():
            self._seen = number
            self.ranks.announce(self._occasion, number)

    def _follow(self, watchdog: Watchdog) -> None:
        """Take a signal to another rank as one to this."""
        while self._watchdog is watchdog and not (number := self.ranks.announced(self._occasion)):
            self._over.wait(FOLLOW_EVERY)
        self._over.wait(FOLLOW_EVERY)  # this rank may be about to get it by itself
        if number and self._watchdog is watchdog and self._seen is None:
            os.kill(os.getpid(), number)

    def _restore(self) -> None:
        if DEADLINE in self._previous:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}


_OCCASIONS = count()
"""Ranks create their StopSignals in the same order: what was announced for an earlier one isn't for the next."""
FOLLOW_EVERY = 0.5
"""Seconds between looks for signals to other ranks."""
SOON = 0.001
"""Seconds until a deadline that has passed: a timer of 0 would be none."""
SECONDS_TO_JOIN = 5.0
"""Until a thread that waits for a rank that is gone is left behind."""


def _interrupted(number: int, where: str) -> Interrupted:
    return Interrupted(number, f"stopped {where}: the same command goes on")


def deadline(variables: Mapping[str, str], grace: float, now: float) -> float | None:
    """Unix time at which to stop: `grace` seconds before the end of the Slurm job, or a quarter of what is left of a
    short one; None outside of one."""
    end = variables.get("SLURM_JOB_END_TIME", "")
    return int(end) - min(grace, max(0.0, int(end) - now) / 4) if end.isdigit() else None
