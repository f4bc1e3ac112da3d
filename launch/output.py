"""The output of a child process: shown where ours is, and kept in a log."""

import fcntl
import os
import pty
import re
import selectors
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from pipeline.train.spawn import python_path

SECONDS_TO_END = 5.0
"""Until a copier is left behind: something that the child started still holds its output, and goes on being kept."""
_CONTROL = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
"""Colours and movements of the cursor."""


@contextmanager
def shown_and_kept(log: Path) -> Iterator[tuple[int, int]]:
    """Descriptors for a child's stdout and stderr: terminals where ours are, so that it shows its progress bars.

    A process of its own copies them, not a thread: a child whose launcher is killed must still be able to write, or it
    fails before it has saved its checkpoint.
    """
    channels = [_channel(number) for number in (1, 2)]
    readers = [reader for reader, _ in channels]
    command = [sys.executable, "-m", "launch.output", str(log), *map(str, readers)]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    try:
        # A process group of its own: Ctrl-C is not for it.
        copier = subprocess.Popen(command, pass_fds=readers, env=environment, process_group=0)
        for reader in readers:
            os.close(reader)
        yield channels[0][1], channels[1][1]
    finally:
        for _, writer in channels:
            os.close(writer)
    with suppress(subprocess.TimeoutExpired):
        copier.wait(SECONDS_TO_END)


def _channel(number: int) -> tuple[int, int]:
    """Two ends, for reading and for writing what goes to our stdout (1) or stderr (2)."""
    if not os.isatty(number):
        return os.pipe()
    reader, writer = pty.openpty()
    attributes = termios.tcgetattr(writer)
    attributes[1] &= ~termios.OPOST  # our own terminal turns line ends into its own
    termios.tcsetattr(writer, termios.TCSANOW, attributes)
    fcntl.ioctl(writer, termios.TIOCSWINSZ, fcntl.ioctl(number, termios.TIOCGWINSZ, bytes(8)))
    return reader, writer


class Lines:
    """What a terminal would show in the end, line by line: a progress bar is one line, not hundreds."""

    def __init__(self, log: IO[bytes]) -> None:
        self.log = log
        self._rest = b""

    def add(self, data: bytes) -> None:
        """What came next; nothing: the end has come."""
        *lines, rest = (self._rest + data).split(b"\n")
        if not data and _final(rest):
            lines, rest = [rest], b""
        self._rest = rest[max(0, rest.rfind(b"\r", 0, -1)) :]
        self.log.write(b"".join(_final(line) + b"\n" for line in lines))


def _final(line: bytes) -> bytes:
    return _CONTROL.sub(b"", line).rstrip(b"\r").rpartition(b"\r")[2]


def copy(log: Path, readers: dict[int, int]) -> None:
    """Until all writers have ended.

    Args:
        readers: descriptor to read from -> where to show it.
    """
    with log.open("ab", buffering=0) as file, selectors.DefaultSelector() as selector:
        for reader, shown in readers.items():
            selector.register(reader, selectors.EVENT_READ, (shown, Lines(file)))
        while selector.get_map():
            for key, _ in selector.select():
                shown, lines = key.data
                data = _read(key.fd)
                with suppress(OSError):  # our terminal is closed: the log goes on
                    _show(shown, data)
                with suppress(OSError):  # the disk is full: the child goes on
                    lines.add(data)
                if not data:
                    selector.unregister(key.fd)


def _read(reader: int) -> bytes:
    try:
        return os.read(reader, 65536)
    except OSError:  # the end of a terminal
        return b""


def _show(number: int, data: bytes) -> None:
    while data:
        data = data[os.write(number, data) :]


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # it ends with the child
        signal.signal(ignored, signal.SIG_IGN)
    copy(Path(sys.argv[1]), dict(zip(map(int, sys.argv[2:]), (1, 2), strict=True)))
