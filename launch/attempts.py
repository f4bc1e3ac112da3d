"""The starts of a stage on a cell, and when to give up: RUN/attempts.jsonl, one line for each beginning and end."""

import json
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import dropwhile
from pathlib import Path
from typing import Any, Literal

from launch.profile import Job
from launch.progress import json_object
from launch.slurm import own_job

End = Literal["complete", "stopped", "failed", "lost"]
FAILURES = 3
"""Failures without getting further after which a cell is given up."""
STARTS = 10
"""Starts that got no further, whatever ended them: a time limit may be shorter than the way to the first step."""


@dataclass(frozen=True)
class Attempt:
    """One start of a stage. `lost`: nothing wrote its end, as when a node fails."""

    end: End
    reached: int
    """Steps of training, or bytes of answers."""


class Attempts:
    """Of one job on one cell, within one submission: a new submission starts counting anew."""

    def __init__(self, path: Path, submission: str, job: Job) -> None:
        self.path, self.identity = path, {"submission": submission, "job": job}

    def begin(self, reached: int) -> None:
        """A start, with what was reached before."""
        place = {
            "host": socket.gethostname(),
            "slurm_job": own_job(os.environ) if "SLURM_JOB_ID" in os.environ else None,
        }
        self._write({"event": "begin", "reached": reached, **place})

    def finish(self, end: End, reached: int, status: int, reason: str = "") -> None:
        """Its end."""
        self._write({"event": end, "reached": reached, "status": status, "reason": reason})

    def _write(self, values: dict[str, Any]) -> None:
        values = {**self.identity, "time": datetime.now(UTC).isoformat(timespec="seconds"), **values}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self, reached: int) -> list[Attempt]:
        """All attempts so far; `reached` is what the last one got to if nothing wrote its end."""
        found: list[Attempt] = []
        is_open = False
        for event in self._events():
            begins = event["event"] == "begin"
            if begins and is_open:
                found.append(Attempt("lost", event["reached"]))
            elif not begins:
                found.append(Attempt(event["event"], event["reached"]))
            is_open = begins
        return [*found, Attempt("lost", reached)] if is_open else found

    def _events(self) -> list[dict[str, Any]]:
        lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        events = filter(None, map(json_object, lines))
        return [event for event in events if self._is_own(event)]

    def _is_own(self, event: dict[str, Any]) -> bool:
        is_whole = isinstance(event.get("event"), str) and isinstance(event.get("reached"), int)
        return is_whole and all(event.get(key) == value for key, value in self.identity.items())

    def verdict(self, reached: int) -> str:
        """Why another start is hopeless, or "" """
        attempts = self.read(reached)
        furthest = max([reached, *(attempt.reached for attempt in attempts)])
        stuck = list(dropwhile(lambda attempt: attempt.reached < furthest, attempts))
        failures = sum(attempt.end == "failed" for attempt in stuck)
        if failures >= FAILURES:
            return f"given up: failed {failures} times and got no further"
        if len(stuck) >= STARTS:
            return f"given up: {len(stuck)} starts got no further; is the time limit too short?"
        return ""
