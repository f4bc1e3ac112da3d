"""The processes (ranks) of one training run: who they are, and how they agree."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from pipeline.errors import StageError, UserError
from pipeline.train.environment import rank_variables
from pipeline.train.rendezvous import RENDEZVOUS, meet

PATIENCE = timedelta(hours=24)
"""How long ranks wait for work that one of them does alone, such as preparing the data."""

Result = TypeVar("Result")
Failure = TypeVar("Failure", bound=UserError)


class Lost(StageError):
    """Another rank is gone, or did not answer in time."""


@dataclass(frozen=True)
class Ranks:
    """This process and its peers. One process is rank 0 of 1 and needs none of torch.distributed."""

    index: int = 0
    count: int = 1
    channel: Any = None
    """Process group on the CPU through which ranks agree, whatever the device."""
    patient: Any = None
    """The same, for waits that may take hours."""
    store: Any = None
    """Notes that any thread of any rank can write and read at any time."""

    @property
    def is_main(self) -> bool:
        return self.index == 0

    def announce(self, occasion: str, number: int) -> None:
        """Let all ranks know of a signal."""
        with suppress(RuntimeError):  # rank 0, which keeps the notes, is gone
            self.store.set(occasion, str(number))

    def announced(self, occasion: str) -> int | None:
        """The signal that a rank announced."""
        with suppress(RuntimeError):
            return int(self.store.get(occasion)) if self.store.check([occasion]) else None
        return None

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in order of rank."""
        return self._gather(value, self.channel)

    def _gather(self, value: Any, group: Any) -> list[Any]:
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        try:
            dist.all_gather_object(values, value, group=group)
        except RuntimeError as error:
            raise Lost("another process of this run is gone or does not answer") from error
        return values

    def first(self, work: Callable[[], Result]) -> Result:
        """What `work` returns on rank 0, which alone does it, however long it takes.

        Raises:
            UserError: on every rank, what was raised on rank 0.
        """
        if self.count == 1:
            return work()
        result, fault = _attempt(work) if self.is_main else (None, None)
        return self._agreed(result, fault, self.patient)[0]

    def together(self, work: Callable[[], Result]) -> Result:
        """What `work` returns on this rank; all ranks do it.

        Raises:
            UserError: on every rank, the first one that was raised on any.
        """
        if self.count == 1:
            return work()
        result, fault = _attempt(work)
        self._agreed(None, fault, self.patient)
        return result  # type: ignore[return-value]

    def _agreed(self, result: Any, fault: tuple[int, str] | None, group: Any) -> list[Any]:
        answers = self._gather((result, fault), group)
        for _, found in answers:
            if found is not None:
                status, message = found
                error = UserError(message) if status == UserError.status else StageError(message)
                error.status = status
                raise shared(error)
        return [answer for answer, _ in answers]


def _attempt(work: Callable[[], Result]) -> tuple[Result | None, tuple[int, str] | None]:
    """The result, or status and message of what a user can act on."""
    try:
        return work(), None
    except UserError as error:
        return None, (error.status, str(error))
    except OSError as error:
        return None, (StageError.status, f"{error.filename or 'a file'}: {error.strerror or error}")


def shared(error: Failure) -> Failure:
    """Mark an error that every rank raises, so that only rank 0 tells it."""
    error.__dict__["is_shared"] = True
    return error


def is_shared(error: BaseException) -> bool:
    return bool(error.__dict__.get("is_shared"))


def join(use_deepspeed: bool) -> Ranks:
    """Meet the other ranks of this run, if the process was started as one of several.

    Under DeepSpeed a single process is a group of one.
    """
    found = rank_variables(os.environ)
    if not found and use_deepspeed:
        found = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if not found or (found["WORLD_SIZE"] == "1" and not use_deepspeed):
        return Ranks()
    os.environ.update(found)
    if not dist.is_initialized():
        _connect(found)
    channel = dist.new_group(backend="gloo")
    patient = dist.new_group(backend="gloo", timeout=PATIENCE)
    shared_store: Any = dist.distributed_c10d._get_default_store()
    store = shared_store.clone()  # a connection of its own, for other threads
    return Ranks(dist.get_rank(), dist.get_world_size(), channel, patient, store)


def _connect(found: dict[str, str]) -> None:
    has_gpu = torch.cuda.is_available()
    local, count = int(found["LOCAL_RANK"]), int(found["WORLD_SIZE"])
    if has_gpu and local >= torch.cuda.device_count():
        raise UserError(f"{local + 1} processes or more on a machine of {torch.cuda.device_count()} GPUs: one each")
    if has_gpu:
        torch.cuda.set_device(local)
    backend = "nccl" if has_gpu else "gloo"
    try:
        if os.environ.get(RENDEZVOUS):
            dist.init_process_group(backend, store=meet(found), rank=int(found["RANK"]), world_size=count)
        else:
            dist.init_process_group(backend)
    except (RuntimeError, ValueError) as error:
        place = f"{found['MASTER_ADDR']}:{found['MASTER_PORT']}"
        raise StageError(f"rank {found['RANK']} cannot meet the others at {place} ({error})") from error


def leave() -> None:
    """End the group, so that the process can go in peace."""
    if dist.is_initialized():
        dist.destroy_process_group()
