"""The same work on many items by several processes, with the results in the order of the items."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

from pipeline.errors import StageError

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 3
"""Items that each process may be ahead of the reader: memory stays bounded however many items there are."""


def in_order(work: Callable[[Item], Result], items: Iterable[Item], processes: int) -> Iterator[Result]:
    """`work` on each item. With one process nothing is started.

    Raises:
        StageError: a process died.
    """
    if processes == 1:
        yield from map(work, items)
        return
    # fork: the workers need the tokenizer, and importing the libraries anew would take each of them seconds
    pool = ProcessPoolExecutor(processes, get_context("fork"), initializer=_start, initargs=(work, os.getpid()))
    try:
        yield from _sliding(pool, items, AHEAD * processes)
    except BrokenProcessPool as error:
        raise StageError("a process that prepares rows died, perhaps for want of memory: fewer --num-proc") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _sliding(pool: ProcessPoolExecutor, items: Iterable[Item], ahead: int) -> Iterator[Any]:
    waiting: deque[Future[Any]] = deque()
    for item in items:
        waiting.append(pool.submit(_do, item))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


_work: Callable[[Any], Any] = lambda item: item  # noqa: E731  replaced in each worker


def _start(work: Callable[[Any], Any], parent: int) -> None:
    """Runs in each worker, which ends with its parent even when that is killed."""
    from pipeline.cli import follow_parent

    global _work
    _work = work
    os.environ.update(TOKENIZERS_PARALLELISM="false", DUALTUNE_PARENT=str(parent))
    follow_parent()


def _do(item: Any) -> Any:
    return _work(item)
