"""Loss on rows held out of training, shared out among the ranks."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from pipeline.errors import StageError
from pipeline.train.batches import MicroBatch, PreparedRows, answer_tokens
from pipeline.train.engine import Engine
from pipeline.train.loss import row_weights
from pipeline.train.share import Packing, Share


class Validation:
    """The mean over all held-out rows, in the reduction of the training loss; without dropout.

    Args:
        rows: may be empty; then there is nothing to do.
        size: rows that all ranks together take at a time.
    """

    def __init__(self, engine: Engine, rows: PreparedRows, packing: Packing, size: int) -> None:
        self.engine, self.rows, self.packing, self.size = engine, rows, packing, size
        self.answer_tokens = answer_tokens([rows[index] for index in range(len(rows))])

    def loss(self, is_stopped: Callable[[], bool] = lambda: False) -> float | None:
        """On every rank the same number; None as soon as `is_stopped()`, which all ranks answer alike.

        Random states, weights and gradients stay as they are. The sum is taken in float64, so that it depends neither
        on the number of ranks nor on the packing, but for the rounding of each row's own loss.

        Raises:
            StageError: on every rank, if it is not finite.
        """
        ranks = self.engine.ranks
        parts = []
        with torch.no_grad(), _evaluating(self.engine):
            for start in range(0, len(self.rows), self.size):
                if is_stopped():
                    return None
                rows = [self.rows[index] for index in range(start, min(start + self.size, len(self.rows)))]
                share = Share.of(rows, self.packing, ranks.index, ranks.count)
                parts += [self._part(micro) for micro in share.micro_batches]
        loss = math.fsum(ranks.gather(math.fsum(parts)))
        if not math.isfinite(loss):
            raise StageError(f"the validation loss is {loss}")
        return loss

    def _part(self, micro: MicroBatch) -> float:
        """What a micro-batch adds to the mean. Idle ones run too: under ZeRO-3 all ranks must."""
        weights = row_weights(micro.lengths, self.engine.training.loss_reduction, len(self.rows), self.answer_tokens)
        inputs = (part.to(self.engine.device) for part in (micro.batch, micro.labels, weights))
        _, losses = self.engine.objective(*inputs)
        return 0.0 if micro.is_idle else float(losses.double().cpu() @ weights.double())


@contextmanager
def _evaluating(engine: Engine) -> Iterator[None]:
    engine.objective.eval()
    try:
        yield
    finally:
        engine.objective.train()
