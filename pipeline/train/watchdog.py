"""A small process beside a training process, which ends it by force when it does not stop in time.

Python runs signal handlers between its own instructions only: a process stuck in a collective or in native code never
gets to them. But the system's handler writes each signal into a pipe (`signal.set_wakeup_fd`) even then. The watchdog
reads the other end: it echoes each signal back, for a thread of the process to pass on, and kills it (SIGKILL, which
launchers report as 137) when it is still there `grace` seconds after the first, or 5 seconds after the second.
"""

import os
import signal
import subprocess
import sys

CODE = """
import os, select, signal, sys, time
parent, grace, limit = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
watched = frozenset(map(int, sys.argv[4].split(',')))
same, first = float(sys.argv[5]), None
while True:
    ready, _, _ = select.select([0], [], [], min(3600.0, max(0.0, limit - time.time())))
    if ready:
        data = os.read(0, 64)
        if not data:
            break
        for number in data:
            if number in watched and (first is None or time.time() - first > same):
                limit = min(limit, time.time() + (grace if first is None else 5.0))
                first = time.time() if first is None else first
                os.write(1, bytes([number]))
    elif time.time() >= limit and os.getppid() == parent:
        os.write(2, b'not stopped in time: ended by force\\n')
        os.kill(parent, signal.SIGKILL)
        break
"""


class Watchdog:
    """Watches this process until closed.

    Args:
        grace: seconds from the first signal to the end by force.
        limit: Unix time of the end by force without any signal.
        signals: numbers that count.
        same: seconds within which further ones count as the first.
    """

    def __init__(self, grace: float, limit: float, signals: tuple[int, ...], same: float) -> None:
        numbers = ",".join(str(int(number)) for number in signals)
        arguments = [str(os.getpid()), str(grace), str(limit), numbers, str(same)]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", CODE, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        self._pipe = self._process.stdin.fileno()
        os.set_blocking(self._pipe, False)
        self._previous = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)

    def note(self, number: int) -> None:
        """As if the signal had come."""
        os.write(self._pipe, bytes([number]))

    def next(self) -> int | None:
        """Wait for the next signal, in any thread; None once closed."""
        assert self._process.stdout is not None
        data = self._process.stdout.read(1)
        return data[0] if data else None

    def close(self) -> None:
        signal.set_wakeup_fd(self._previous)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
