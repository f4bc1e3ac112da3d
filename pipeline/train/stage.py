"""The training stage: prepared rows in, a model folder and train/result.json out."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Parameter

from pipeline.config import RunConfig, signature
from pipeline.errors import StageError, UserError
from pipeline.files import atomic_folder, write_json
from pipeline.model import DualBranch, build_model, check_length, load_tokenizer
from pipeline.prepare import PreparedData, prepare
from pipeline.run_folder import RunFolder
from pipeline.train.completion import model_files, read_result
from pipeline.train.export import check_export
from pipeline.train.loop import TrainingLoop
from pipeline.train.progress import say
from pipeline.versions import versions


def train(config: RunConfig, folder: RunFolder) -> dict[str, Any]:
    """Train the run, or go on from its newest checkpoint, or return the result it already has.

    Returns:
        The content of train/result.json; {} for tuning.kind none, which trains nothing.

    Raises:
        UserError: bad data or configuration; the run was trained on data that have changed since.
        StageError: NaN, full disk, out of memory. What was saved before stays valid.
        Interrupted: Ctrl-C or SIGTERM; the same call goes on from the checkpoint it saved.
    """
    if config.tuning.kind == "none":
        say("train: not needed, tuning is none and the pretrained model is evaluated")
        return {}
    data = prepare(config, folder)
    check_length(config.model, data.manifest["tokens"]["per_row"]["max"])
    result = read_result(config, folder)
    if result is not None:
        if result["prepared_key"] != data.key:
            raise UserError(f"{folder.root}: trained on data that have changed since: remove it to train anew")
        say("train: already complete")
        return result
    folder.create(config)
    try:
        return _train(config, folder, data)
    except torch.OutOfMemoryError as error:
        hint = "lower training.micro_batch_size or set model.gradient_checkpointing"
        raise StageError(f"out of memory on the GPU: {hint}") from error
    except OSError as error:
        raise StageError(f"{error.filename or folder.root}: {error.strerror or error}") from error


def _train(config: RunConfig, folder: RunFolder, data: PreparedData) -> dict[str, Any]:
    facts = {"signature": signature(config), "prepared_key": data.key}
    model = build_model(config.model, config.method, config.tuning, config.seed)
    loop = TrainingLoop(config, folder, model, data, facts)
    say(_plan(loop, model))
    loop.resume()
    loop.run()
    _save_model(config, folder, model, {**facts, "template_hash": data.manifest["template_hash"]})
    result = {**facts, **_summary(loop, model), "versions": versions(), "model_files": model_files(folder.model)}
    write_json(folder.train_result, result)
    loop.checkpoints.remove_all()
    return result


def _save_model(config: RunConfig, folder: RunFolder, model: DualBranch, facts: dict[str, Any]) -> None:
    with atomic_folder(folder.model) as temporary:
        model.save_pretrained(temporary, **facts)
        load_tokenizer(config.model).save_pretrained(temporary)
        check_export(model, temporary)


def _plan(loop: TrainingLoop, model: DualBranch) -> str:
    parameters = model.trainable().values()
    share = _size(parameters) / _size(model.parameters())
    return (
        f"train: {loop.total_steps} steps over {len(loop.rows)} samples; "
        f"{len(parameters)} trained tensors with {_size(parameters):,} parameters ({share:.2%} of the model)"
    )


def _size(parameters: Iterable[Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _summary(loop: TrainingLoop, model: DualBranch) -> dict[str, Any]:
    position = loop.position
    return {
        "steps": position.step,
        "epochs": position.step / loop.order.steps_per_epoch,
        "samples": len(loop.rows),
        "final_loss": position.loss,
        "wall_seconds": position.seconds,
        "tokens_per_second": position.tokens / position.seconds,
        "trainable_parameters": _size(model.trainable().values()),
        "total_parameters": _size(model.parameters()),
        "peak_memory_bytes": loop.engine.peak_memory(),
        "device": loop.engine.device_name,
        "processes": loop.engine.accelerator.num_processes,
        "alphas": model.alphas(),
    }
