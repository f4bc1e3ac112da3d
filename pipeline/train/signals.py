"""Stopping in good order: Ctrl-C and SIGTERM end the run at the next step boundary, with a checkpoint."""

import os
import signal
import threading
from types import FrameType
from typing import Any

from pipeline.errors import StageError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(StageError):
    """The run was asked to stop and can be resumed. Exit status 128 + signal, as shells do."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.signal = signal.Signals(number)
        self.status = 128 + number


class StopSignals:
    """While entered, the first Ctrl-C or SIGTERM only sets `received`; a second one acts as usual, at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            self._previous = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received = number
        self._restore()
        text = f"\n{signal.Signals(number).name}: stopping after this step, with a checkpoint. Once more: at once.\n"
        os.write(2, text.encode())  # sys.stderr may be in the middle of a write

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
