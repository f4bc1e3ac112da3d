"""Stopping in good order: a signal or a deadline ends the run at the next step boundary, with a checkpoint."""

import os
import signal
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

from pipeline.errors import StageError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Ctrl-C, and what batch systems send before they end a job."""
DEADLINE = signal.SIGALRM
"""Stands for a deadline that has come."""
SUPERVISED = "DUALTUNE_SUPERVISED"
"""Set in jobs, where a batch system and the job's supervisor may each send their signal: the first one counts."""


class Interrupted(StageError):
    """The run was asked to stop and can be resumed. Exit status 128 + signal, as shells do."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.signal = signal.Signals(number)
        self.status = 128 + number


class StopSignals:
    """While entered, the first signal only sets `received`; a second one acts as usual, at once (in a job: not at all).

    Args:
        grace: seconds from the first signal until the process is ended by force, should a step, a save or
            another rank be stuck.
        deadline: Unix time at which to stop without a signal.
    """

    def __init__(self, grace: float, deadline: float | None = None) -> None:
        self.grace, self.deadline = grace, deadline
        self._received: int | None = None
        self._previous: dict[int, Any] = {}
        self._force: threading.Timer | None = None

    @property
    def received(self) -> int | None:
        """The signal that asks to stop, if any."""
        if self._received is None and self.deadline is not None and time.time() >= self.deadline:
            self._note(DEADLINE, None)
        return self._received

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            self._previous = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        if self._force:
            self._force.cancel()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._received = number
        is_handled = bool(self._previous)
        self._restore()
        if is_handled and SUPERVISED in os.environ:
            self._previous = {each: signal.signal(each, signal.SIG_IGN) for each in SIGNALS}
        name = "deadline" if number == DEADLINE else signal.Signals(number).name
        text = f"\n{name}: stopping after this step, with a checkpoint. Once more: at once.\n"
        os.write(2, text.encode())  # sys.stderr may be in the middle of a write
        self._force = threading.Timer(self.grace, os._exit, [128 + number])
        self._force.daemon = True
        self._force.start()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}


def deadline(variables: Mapping[str, str], grace: float) -> float | None:
    """Unix time at which to stop: `grace` seconds before the end of the Slurm job; None outside of one."""
    end = variables.get("SLURM_JOB_END_TIME", "")
    return int(end) - grace if end.isdigit() else None
