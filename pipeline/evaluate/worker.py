"""Answering requests pass by pass: one's own share of them, none twice, as many at a time as memory allows."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from pipeline.errors import StageError
from pipeline.evaluate.answers import Answers
from pipeline.evaluate.progress import Progress
from pipeline.share import Share

Request = TypeVar("Request")
Plan = Callable[[Mapping[str, Request], int], Iterator[list[str]]]
"""(requests, token budget) -> keys of each pass. What is within one pass of a budget stays one pass under it."""
Work = Callable[[dict[str, Request]], dict[str, Any]]
"""Requests of one pass -> their answers."""


class Worker:
    """Passes are planned from all requests and the budget alone, whoever runs them and whatever is answered already:
    so several processes, or a process that was killed and goes on, make the same passes and the same answers."""

    def __init__(self, budget: int, progress: Progress | None = None) -> None:
        """
        Args:
            budget: tokens of one pass; where memory is short, passes are run in pieces of a half, a quarter, ...
        """
        self.budget = self.room = budget
        self.progress = progress or Progress()
        self.share = Share()
        self.open(Answers())

    def open(self, answers: Answers) -> None:
        """Begin another task, whose earlier answers lie in `answers`."""
        self.answers, self.asked = answers, set[str]()

    def answer(self, requests: dict[str, Request], plan: Plan[Request], work: Work[Request]) -> None:
        """Add the answers of this process's share of the requests to `answers`.

        Raises:
            StageError: memory is too short for a single request.
        """
        self.asked |= requests.keys()
        own = [keys for number, keys in enumerate(plan(requests, self.budget)) if self.share.holds(number)]
        left = [keys for keys in own if not self.answers.holds(keys)]
        self.progress.start(sum(map(len, left)))
        for keys in left:
            self.answers.add(self._within_memory({key: requests[key] for key in keys}, plan, work))
            self.progress.advance(len(keys))

    def _within_memory(self, part: dict[str, Request], plan: Plan[Request], work: Work[Request]) -> dict[str, Any]:
        pieces = [{key: part[key] for key in keys} for keys in plan(part, self.room)]
        if len(pieces) > 1:
            found = [self._within_memory(piece, plan, work) for piece in pieces]
            return {key: answer for answers in found for key, answer in answers.items()}
        answers = _attempt(part, work)
        if answers is not None:
            return answers
        if len(part) == 1:
            raise StageError(
                "out of memory with a single request: a larger GPU or a lower evaluation.max_length is needed"
            )
        self.room = max(1, self.room // 2)
        self.progress.say(f"out of memory: going on with {self.room} tokens a pass")
        return self._within_memory(part, plan, work)


def _attempt(piece: dict[str, Request], work: Work[Request]) -> dict[str, Any] | None:
    """The answers, or None when memory did not suffice."""
    try:
        return work(piece)
    except Exception as error:
        if not should_reduce_batch_size(error):
            raise
    clear_device_cache(garbage_collection=True)  # only here: the error's traceback held the tensors
    return None
