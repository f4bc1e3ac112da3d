"""The training loop: updates, metrics, checkpoints, and stopping in good order."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from accelerate import Accelerator
from accelerate.utils import set_seed

from pipeline.config import RunConfig
from pipeline.errors import StageError
from pipeline.model import DualBranch
from pipeline.run_folder import RunFolder
from pipeline.train.batches import PreparedRows, SampleOrder
from pipeline.train.checkpoint import Checkpoint, Checkpoints
from pipeline.train.engine import Engine, Update
from pipeline.train.metrics import MetricsLog, NoMetrics
from pipeline.train.partitions import ShardedState
from pipeline.train.plan import Plans
from pipeline.train.progress import progress, say
from pipeline.train.ranks import Ranks, shared
from pipeline.train.sharded import ShardedEngine
from pipeline.train.share import Packing, Share
from pipeline.train.signals import Interrupted, StopSignals
from pipeline.train.state import Position, TrainingState
from pipeline.train.trackers import start_trackers
from pipeline.train.utilisation import Utilisation
from pipeline.train.validation import Validation

Result = TypeVar("Result")

RATIO_REPORTS = 10
"""How often in a run the mixing ratios are logged."""


class TrainingLoop:
    """One run. All that an update depends on is in `state`, the rows and the configuration.

    Args:
        accelerator: made before the model by `pipeline.train.sharded.make_sharded_accelerator`, under DeepSpeed.
        held_out: rows to validate on.
        plans: folder in which packing plans are kept.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        model: DualBranch,
        rows: PreparedRows,
        checkpoints: Checkpoints,
        ranks: Ranks = Ranks(),  # noqa: B008  frozen
        accelerator: Accelerator | None = None,
        held_out: PreparedRows = (),
        plans: Path | None = None,
    ) -> None:
        self.config, self.training, self.ranks = config, config.training, ranks
        self.folder, self.model, self.rows = folder, model, rows
        self.order = SampleOrder(len(rows), self.training.batch_size, config.seed)
        self.packing = Packing.of(self.training, config.method)
        self.plans = self._plans(plans) if self.packing.tokens else None
        self.total_steps = self.order.total_steps(self.training.epochs, self.training.max_steps)
        stage = self.training.zero.stage
        self.engine = (ShardedEngine if stage else Engine)(config, model, self.total_steps, ranks, accelerator)
        self.utilisation = Utilisation(config, model, self.engine.device_name, ranks.count)
        self.state = self._state(stage)
        self.validation = Validation(self.engine, held_out, self.packing, self.training.batch_size)
        self.checkpoints = checkpoints
        set_seed(config.seed + ranks.index)

    def _plans(self, folder: Path | None) -> Plans:
        return Plans(self.rows, self.order, self.packing, self.ranks.count, folder, keeps=self.ranks.is_main)

    def _state(self, stage: int) -> TrainingState:
        parts = (self.engine.parameters, self.engine.optimizer, self.engine.scheduler, self.ranks)
        return ShardedState(*parts, zero=self.engine.objective.optimizer) if stage else TrainingState(*parts)

    @property
    def position(self) -> Position:
        return self.state.position

    def resume(self, chosen: Checkpoint | None = None) -> None:
        """Go on from a verified checkpoint, or the newest complete one, if any; say which were skipped and why."""
        checkpoint, skipped = (chosen, []) if chosen else self.checkpoints.latest()
        for message in skipped if self.ranks.is_main else ():
            say(f"checkpoint skipped and removed: {message}")
        if checkpoint:
            self.ranks.together(lambda: self.state.read(checkpoint.path))
            if self.ranks.is_main:
                say(f"resumed after step {checkpoint.step} of {self.total_steps}, from {checkpoint.path}")
        removed = self.ranks.first(lambda: self.checkpoints.clean(checkpoint))
        if chosen and removed and self.ranks.is_main:
            say(f"newer checkpoints removed, to be made again: {', '.join(path.name for path in removed)}")

    def run(self, signals: StopSignals | None = None) -> None:
        """Update until the last step, or until one of `signals`; by default, those that come from here on.

        Raises:
            StageError: loss or gradients are not finite, a trained tensor gets no gradient, the disk is full.
            Interrupted: on every rank, after a signal or a deadline on any; a checkpoint of the last update is saved.
        """
        if signals is None:
            with StopSignals(self.training.grace_seconds, ranks=self.ranks) as own:
                return self.run(own)
        with (
            self._open_metrics() as metrics,
            progress(self.position.step, self.total_steps, is_shown=self.ranks.is_main) as report,
        ):
            while not self._is_done():
                if self.position.row is None:
                    self.position.row = self._update()
                    report(self.position.row)
                self._is_best, validated = False, None
                if self._is_validated(signals):
                    validated = self.position.row.get("validation_loss")
                    self._log(metrics)
                signal = signals.agreed()
                if signal or self._is_saved():
                    metrics.sync()
                    self.checkpoints.save(self.position.step, self.state.write, validated)
                self._stop_if(signal)

    def take_best(self) -> int:
        """Give the model the weights of the best checkpoint; returns its step. All ranks together.

        Raises:
            StageError: it is damaged.
        """
        best = self.checkpoints.best()
        assert best is not None  # the first validation made one
        checkpoint = self.checkpoints.chosen(best.path)
        self.ranks.together(lambda: self.state.read_weights(checkpoint.path))
        return checkpoint.step

    def _is_done(self) -> bool:
        return self._is_last() and self.position.row is None

    def _is_validated(self, signals: StopSignals) -> bool:
        """Add the validation loss to the metrics of the update, if it is due; False if a signal stopped it half-way."""
        if not len(self.validation.rows) or not (self._is_last() or self._is_due(self.training.validate_every)):
            return True
        loss = self._named(lambda: self.validation.loss(is_stopped=lambda: bool(signals.agreed())))
        if loss is None or self.position.row is None:
            return False
        self.position.validation_loss = loss
        best = self.position.best_validation_loss
        self._is_best = best is None or loss < best
        self.position.best_validation_loss = loss if self._is_best else best
        self.position.row["validation_loss"] = loss
        return True

    def _log(self, metrics: MetricsLog | NoMetrics) -> None:
        row, self.position.row = self.position.row, None
        if row and (self._is_logged() or "validation_loss" in row):
            metrics.write(row)

    def _open_metrics(self) -> MetricsLog | NoMetrics:
        """On rank 0, the record; all ranks raise what keeps it from being opened."""
        opened: list[MetricsLog | NoMetrics] = []
        self.ranks.together(lambda: opened.append(self._metrics_log()))
        return opened[0]

    def _metrics_log(self) -> MetricsLog | NoMetrics:
        if not self.ranks.is_main:
            return NoMetrics()
        trackers = start_trackers(self.config, self.folder, self.checkpoints.identity, self.position.step)
        return MetricsLog(self.folder.metrics, self.position.step, trackers)

    def _update(self) -> dict[str, Any]:
        """One update; returns its metrics."""
        started = time.monotonic()
        samples = self.order.batch(self.position.step + 1)
        rows = [self.rows[index] for index in samples]
        plan = self.plans.of(self.position.step + 1) if self.plans else None
        share = Share.of(rows, self.packing, self.ranks.index, self.ranks.count, plan)
        update = self._named(lambda: self.engine.update(share), self.position.step + 1)
        seconds = time.monotonic() - started
        self.position.advance(update.loss, seconds, share.tokens)
        speed = {
            "tokens_per_second": share.tokens / seconds,
            "model_flops_utilisation": self.utilisation.of(sum(map(self.packing.cost, rows)), seconds),
        }
        return {**self._metrics(update, share), **speed, "samples": samples}

    def _named(self, work: Callable[[], Result], step: int | None = None) -> Result:
        """Say of a failure, which all ranks raise together, at which update it happened."""
        try:
            return work()
        except StageError as error:
            raise shared(StageError(f"step {step or self.position.step}: {error}")) from error

    def _metrics(self, update: Update, share: Share) -> dict[str, Any]:
        step = self.position.step
        return {
            "step": step,
            "epoch": step / self.order.steps_per_epoch,
            "loss": update.loss,
            "learning_rate": update.learning_rate,
            "gradient_norm": update.gradient_norm,
            "answer_tokens": share.answer_tokens,
            "peak_memory_bytes": self.engine.peak_memory(),
            "wall_seconds": self.position.seconds,
            **self._ratios(),
        }

    def _ratios(self) -> dict[str, Any]:
        due = self._is_last() or self.position.step % math.ceil(self.total_steps / RATIO_REPORTS) == 0
        ratios = self.model.alphas() if due else []
        if not all(math.isfinite(ratio) for row in ratios for ratio in row.values()):
            why = "the mixing ratios are not finite after the update: lower training.learning_rate"
            raise shared(StageError(f"step {self.position.step}: {why}"))
        return {"alphas": ratios} if ratios else {}

    def _is_last(self) -> bool:
        return self.position.step == self.total_steps

    def _is_logged(self) -> bool:
        return self._is_last() or self._is_due(self.training.log_every)

    def _is_saved(self) -> bool:
        return self._is_last() or self._is_best or self._is_due(self.training.checkpoint_every)

    def _is_due(self, every: int | None) -> bool:
        return every is not None and self.position.step % every == 0

    def _stop_if(self, signal: int) -> None:
        if signal and not self._is_done():
            raise shared(
                Interrupted(
                    signal,
                    f"stopped after step {self.position.step} of {self.total_steps}: "
                    "a checkpoint is saved, the same command goes on from it",
                )
            )
