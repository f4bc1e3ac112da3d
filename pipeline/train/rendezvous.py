"""Where the ranks of a job meet: a port that rank 0 holds before it tells the others through the run folder."""

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import TCPStore

from pipeline.errors import StageError
from pipeline.files import read_json, write_json

RENDEZVOUS = "DUALTUNE_RENDEZVOUS"
"""File in which rank 0 announces the port; set by a job, and another one for each of its starts."""
FIRST, PORTS = 20000, 10000
"""Below the ports that Linux gives to outgoing connections."""
PATIENCE = timedelta(minutes=15)
"""Nodes of a job don't start at once."""


def candidates(identity: str) -> Iterator[int]:
    """Ports in an order that depends on the identity of the start: others of the same moment begin elsewhere."""
    first = int(hashlib.sha256(identity.encode()).hexdigest()[:8], 16)
    return (FIRST + (first + step) % PORTS for step in range(PORTS))


def meet(found: Mapping[str, str]) -> TCPStore:
    """The store through which the ranks of this start find each other.

    Args:
        found: torchrun's variables; MASTER_PORT is set to the port that was found.

    Raises:
        StageError: no port is free, or rank 0 announces none.
    """
    file = Path(os.environ[RENDEZVOUS])
    count, address = int(found["WORLD_SIZE"]), found["MASTER_ADDR"]
    if found["RANK"] == "0":
        store = _open(file.name, address, count)
        write_json(file, {"address": address, "port": store.port})
    else:
        store = TCPStore(address, _announced(file), count, is_master=False, timeout=PATIENCE)
    os.environ["MASTER_PORT"] = str(store.port)
    return store


def _open(identity: str, address: str, count: int) -> TCPStore:
    """Binding is the test: what is bound here can't be taken by another job of this node."""
    for port in candidates(identity):
        try:
            return TCPStore(address, port, count, is_master=True, timeout=PATIENCE, wait_for_workers=False)
        except RuntimeError as error:
            if "EADDRINUSE" not in str(error) and "address already in use" not in str(error).lower():
                raise
    raise StageError(f"{address}: no port from {FIRST} to {FIRST + PORTS - 1} is free")


def _announced(file: Path) -> int:
    until = time.monotonic() + PATIENCE.total_seconds()
    while time.monotonic() < until:
        values = read_json(file)
        if isinstance(values, dict):
            return int(values["port"])
        time.sleep(0.1)
    raise StageError(f"{file}: rank 0 has announced no port")
