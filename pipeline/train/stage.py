"""The training stage: prepared rows in, a model folder and train/result.json out; on one process or several."""

import io
import os
import time
from collections.abc import Iterable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch.nn import Parameter

from pipeline.config import RunConfig, digest, signature
from pipeline.errors import StageError, UserError
from pipeline.evaluate.fingerprint import model_hashes
from pipeline.files import write_json
from pipeline.model import DualBranch, build_model, check_length, load_tokenizer
from pipeline.model.sharding import size
from pipeline.prepare import PreparedData, prepare
from pipeline.quiet import hush_deepspeed
from pipeline.run_folder import RunFolder
from pipeline.train.checkpoint import Checkpoints
from pipeline.train.completion import model_files, read_result, trained_already
from pipeline.train.config import check_trackers
from pipeline.train.export import export
from pipeline.train.loop import TrainingLoop
from pipeline.train.memory import held_bytes
from pipeline.train.nvme import nvme_files
from pipeline.train.plan import PLANS
from pipeline.train.progress import say
from pipeline.train.ranks import Ranks, join, shared
from pipeline.train.sharded import make_sharded_accelerator
from pipeline.train.signals import StopSignals, deadline
from pipeline.train.split import split
from pipeline.train.trained import groups
from pipeline.versions import versions


def train(config: RunConfig, folder: RunFolder, resume: Path | None = None) -> dict[str, Any]:
    """Train the run, or go on from its newest checkpoint, or return the result it already has.

    Where the process was started as one of several (torchrun, srun, `dualtune train --processes`), all of them call
    this, and share the run.

    Args:
        resume: a checkpoint to go on from, in place of the newest.

    Returns:
        The content of train/result.json; {} for tuning.kind none, which trains nothing.

    Raises:
        UserError: bad data or configuration; the run was trained on data that have changed since.
        StageError: NaN, full disk, out of memory; `resume` is damaged or of another run. What was saved before
            stays valid.
        Interrupted: a signal or a deadline; the same call goes on from the checkpoint it saved.
    """
    if config.tuning.kind == "none":
        say("train: not needed, tuning is none and the pretrained model is evaluated")
        return {}
    check_trackers(config.training.trackers)
    hush_deepspeed()
    ranks = join(config.training.zero.stage > 0)
    grace = config.training.grace_seconds
    with StopSignals(grace, deadline(os.environ, grace, time.time()), ranks) as signals:
        return _train_or_find(config, folder, ranks, signals, resume)


def _train_or_find(
    config: RunConfig, folder: RunFolder, ranks: Ranks, signals: StopSignals, resume: Path | None
) -> dict[str, Any]:
    if len({*ranks.gather(signature(config))}) > 1:
        raise shared(
            StageError("the processes that met here are of different runs: two jobs share an address and port")
        )
    data = _data(config, folder, ranks, signals)
    check_length(config.model, data.manifest["tokens"]["per_row"]["max"])
    result = ranks.first(lambda: _earlier_result(config, folder, data))
    if result is not None and resume:
        raise shared(trained_already(folder))
    if result is not None:
        return result
    ranks.first(lambda: folder.create(config))
    try:
        with nvme_files(config, folder, ranks) as nvme:
            return _train(config, folder, data, ranks, signals, resume, nvme)
    except torch.OutOfMemoryError as error:
        hint = "lower training.micro_batch_size, set model.gradient_checkpointing, or raise training.zero.stage"
        raise StageError(f"out of memory on the GPU: {hint}") from error
    except OSError as error:
        raise StageError(f"{error.filename or folder.root}: {error.strerror or error}") from error


def _data(config: RunConfig, folder: RunFolder, ranks: Ranks, signals: StopSignals) -> PreparedData:
    """The prepared rows: rank 0 makes them, the others find them in the cache."""
    found: list[PreparedData] = []

    def work() -> None:
        with signals.breaking("while data were prepared"):
            found.append(prepare(config, folder))

    ranks.first(work)
    if not ranks.is_main:
        with redirect_stderr(io.StringIO()):
            ranks.together(work)
    else:
        ranks.together(lambda: None)
    if len({*ranks.gather(found[0].key)}) > 1:
        raise StageError("the processes of this run see different data")
    signals.check("before the model was read")
    return found[0]


def _earlier_result(config: RunConfig, folder: RunFolder, data: PreparedData) -> dict[str, Any] | None:
    result = read_result(config, folder)
    if result is not None:
        if result["prepared_key"] != data.key:
            raise UserError(f"{folder.root}: trained on data that have changed since: remove it to train anew")
        say("train: already complete")
    return result


def _train(
    config: RunConfig,
    folder: RunFolder,
    data: PreparedData,
    ranks: Ranks,
    signals: StopSignals,
    resume: Path | None,
    nvme: dict[str, Any],
) -> dict[str, Any]:
    facts = {"signature": signature(config), "prepared_key": data.key}
    facts["base_model"] = ranks.first(lambda: digest(model_hashes(Path(config.model.name))))
    identity = {**facts, "processes": ranks.count, "zero_stage": config.training.zero.stage}
    checkpoints = Checkpoints(folder.checkpoints, identity, config.training.keep_checkpoints, ranks)
    start = checkpoints.chosen(resume) if resume else None  # before anything large is read
    if start is None:
        ranks.first(checkpoints.refuse_others)
    accelerator = make_sharded_accelerator(config.training, ranks, nvme) if config.training.zero.stage else None
    model = ranks.together(lambda: build_model(config.model, config.method, config.tuning, config.seed))
    rows, held_out = split(data, config.data.validation_fraction if config.data else 0.0)
    plans = data.path / PLANS
    loop = TrainingLoop(config, folder, model, rows, checkpoints, ranks, accelerator, held_out, plans)
    if ranks.is_main:
        say(_plan(loop, model))
    loop.resume(start)
    signals.check(f"before step {loop.position.step + 1}")
    loop.run(signals)
    best = loop.take_best() if config.training.export == "best" else None

    def add(target: Path) -> None:
        load_tokenizer(config.model).save_pretrained(target)

    export(model, folder.model, {**facts, **_template(config, data)}, add, ranks)
    chosen = {} if best is None else {"exported_step": best, "validation_loss": loop.position.best_validation_loss}
    result = {
        **facts,
        **_summary(loop, model),
        **chosen,
        "versions": versions(),
        "model_files": model_files(folder.model),
        "model_hashes": ranks.first(lambda: model_hashes(folder.model)),
    }
    ranks.first(lambda: write_json(folder.train_result, result))
    ranks.first(loop.checkpoints.remove_all)
    return result


def _template(config: RunConfig, data: PreparedData) -> dict[str, Any]:
    """What a model's answers need to know of its prompts: which template, and the texts of the user's own."""
    own = config.own_template
    texts = {"template": own.model_dump()} if own else {}
    return {"template_hash": data.manifest["template_hash"], **texts}


def _plan(loop: TrainingLoop, model: DualBranch) -> str:
    share = _size(loop.engine.parameters.values()) / _size(model.parameters())
    shared_by = f" on {loop.ranks.count} processes" if loop.ranks.count > 1 else ""
    zero = f", ZeRO stage {loop.training.zero.stage}" if loop.training.zero.stage else ""
    held_out = f", {rows} held out" if (rows := len(loop.validation.rows)) else ""
    head = f"train: {loop.total_steps} steps over {len(loop.rows)} samples{held_out}{shared_by}{zero}; "
    head += f"attention {loop.engine.kernel_note}; trained ({share:.2%}):"
    return "\n".join([head, *(f"  {group}" for group in groups(loop.engine.parameters))])


def _size(parameters: Iterable[Parameter]) -> int:
    return sum(map(size, parameters))


def _summary(loop: TrainingLoop, model: DualBranch) -> dict[str, Any]:
    position = loop.position
    return {
        "steps": position.step,
        "epochs": position.step / loop.order.steps_per_epoch,
        "samples": len(loop.rows),
        "processes": loop.ranks.count,
        "final_loss": position.loss,
        "validation_loss": position.validation_loss,
        "validation_samples": len(loop.validation.rows),
        "wall_seconds": position.seconds,
        "tokens_per_second": position.tokens / position.seconds,
        "trainable_parameters": _size(model.trainable().values()),
        "total_parameters": _size(model.parameters()),
        "held_bytes": held_bytes(loop.engine),
        "peak_memory_bytes": max(loop.ranks.gather(loop.engine.peak_memory())),
        "device": loop.engine.device_name,
        "alphas": model.alphas(),
    }
