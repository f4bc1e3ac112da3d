"""The training loop: updates, metrics, checkpoints, and stopping in good order."""

import math
import time
from typing import Any

from accelerate.utils import set_seed

from pipeline.config import RunConfig
from pipeline.errors import StageError
from pipeline.model import DualBranch
from pipeline.run_folder import RunFolder
from pipeline.train.batches import MicroBatch, PreparedRows, SampleOrder, cut
from pipeline.train.checkpoint import Checkpoints
from pipeline.train.engine import Engine, Update
from pipeline.train.metrics import MetricsLog
from pipeline.train.progress import progress, say
from pipeline.train.signals import Interrupted, StopSignals
from pipeline.train.state import Position, TrainingState

RATIO_REPORTS = 10
"""How often in a run the mixing ratios are logged."""


class TrainingLoop:
    """One run. All that an update depends on is in `state`, the rows and the configuration."""

    def __init__(
        self, config: RunConfig, folder: RunFolder, model: DualBranch, rows: PreparedRows, identity: dict[str, Any]
    ) -> None:
        self.training, self.folder, self.model, self.rows = config.training, folder, model, rows
        self.order = SampleOrder(len(rows), self.training.batch_size, config.seed)
        self.total_steps = self.order.total_steps(self.training.epochs, self.training.max_steps)
        self.engine = Engine(config, model, self.total_steps)
        self.state = TrainingState(self.engine.parameters, self.engine.optimizer, self.engine.scheduler)
        self.checkpoints = Checkpoints(folder.checkpoints, identity, self.training.keep_checkpoints)
        set_seed(config.seed)

    @property
    def position(self) -> Position:
        return self.state.position

    def resume(self) -> None:
        """Go on from the newest complete checkpoint, if there is one; say which were skipped and why."""
        checkpoint, skipped = self.checkpoints.latest()
        for message in skipped:
            say(f"checkpoint skipped and removed: {message}")
        if checkpoint:
            self.state.read(checkpoint.path)
            say(f"resumed after step {checkpoint.step} of {self.total_steps}, from {checkpoint.path}")
        self.checkpoints.clean(checkpoint)

    def run(self) -> None:
        """Update until the last step.

        Raises:
            StageError: loss or gradients are not finite, a trained tensor gets no gradient, the disk is full.
            Interrupted: Ctrl-C or SIGTERM; a checkpoint of the last update is saved.
        """
        tensorboard = self.folder.tensorboard if self.training.tensorboard else None
        with (
            StopSignals() as signals,
            MetricsLog(self.folder.metrics, tensorboard, self.position.step) as metrics,
            progress(self.position.step, self.total_steps) as report,
        ):
            while self.position.step < self.total_steps:
                values = self._update()
                report(values)
                if self._is_logged():
                    metrics.write(values)
                if signals.received or self._is_saved():
                    metrics.sync()
                    self.checkpoints.save(self.position.step, self.state.write)
                self._stop_if(signals.received)

    def _update(self) -> dict[str, Any]:
        """One update; returns its metrics."""
        started = time.monotonic()
        samples = self.order.batch(self.position.step + 1)
        micro_batches = list(cut([self.rows[index] for index in samples], self.training.micro_batch_size))
        try:
            update = self.engine.update(micro_batches)
        except StageError as error:
            raise StageError(f"step {self.position.step + 1}: {error}") from error
        seconds, tokens = time.monotonic() - started, sum(micro.tokens for micro in micro_batches)
        self.position.advance(update.loss, seconds, tokens)
        return {**self._metrics(update, micro_batches), "tokens_per_second": tokens / seconds, "samples": samples}

    def _metrics(self, update: Update, micro_batches: list[MicroBatch]) -> dict[str, Any]:
        step = self.position.step
        return {
            "step": step,
            "epoch": step / self.order.steps_per_epoch,
            "loss": update.loss,
            "learning_rate": update.learning_rate,
            "gradient_norm": update.gradient_norm,
            "answer_tokens": sum(sum(micro.lengths) for micro in micro_batches),
            "peak_memory_bytes": self.engine.peak_memory(),
            "wall_seconds": self.position.seconds,
            **self._ratios(),
        }

    def _ratios(self) -> dict[str, Any]:
        due = self._is_last() or self.position.step % math.ceil(self.total_steps / RATIO_REPORTS) == 0
        return {"alphas": ratios} if due and (ratios := self.model.alphas()) else {}

    def _is_last(self) -> bool:
        return self.position.step == self.total_steps

    def _is_logged(self) -> bool:
        return self._is_last() or self.position.step % self.training.log_every == 0

    def _is_saved(self) -> bool:
        every = self.training.checkpoint_every
        return self._is_last() or (every is not None and self.position.step % every == 0)

    def _stop_if(self, signal: int | None) -> None:
        if signal and not self._is_last():
            raise Interrupted(
                signal,
                f"stopped after step {self.position.step} of {self.total_steps}: "
                "a checkpoint is saved, the same command goes on from it",
            )
