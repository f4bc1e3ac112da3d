"""The stages of one run in order: is each complete, run what is missing, keep others out meanwhile."""

import fcntl
import gc
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from pipeline.checks import check_run
from pipeline.config import RunConfig, to_yaml
from pipeline.errors import StageError, UserError, one_line
from pipeline.files import expanded, read_json, write_json
from pipeline.run_folder import RunFolder
from pipeline.share import Share
from pipeline.versions import versions

Stage = Literal["prepare", "train", "evaluate"]
STAGES: tuple[Stage, ...] = ("prepare", "train", "evaluate")
Tell = Callable[[str], None]


@dataclass(frozen=True)
class State:
    """Whether a stage is complete, and in words what is there or missing."""

    complete: bool
    words: str


def stages_of(config: RunConfig) -> tuple[Stage, ...]:
    """The stages this run needs: a pretrained model (tuning: none) is only evaluated."""
    needed: tuple[Stage, ...] = ("evaluate",) if config.tuning.kind == "none" else STAGES
    return needed if config.evaluation.tasks else tuple(stage for stage in needed if stage != "evaluate")


def state(stage: Stage, config: RunConfig, folder: RunFolder) -> State:
    """What `stage` has left in the run folder, judged by the validity of its result. Imports nothing heavy."""
    return _evaluation_state(config, folder) if stage == "evaluate" else _training_states(config, folder)[stage]


def states(config: RunConfig, folder: RunFolder) -> dict[Stage, State]:
    """The same of every stage that the run needs, in order; what they share is looked at once."""
    needed = stages_of(config)
    training = _training_states(config, folder) if "train" in needed else {}
    return {stage: training[stage] if stage in training else state(stage, config, folder) for stage in needed}


def _training_states(config: RunConfig, folder: RunFolder) -> dict[Stage, State]:
    """Preparation and training are complete together: prepared rows lie in a cache that may be emptied."""
    from pipeline.train.completion import is_complete

    if config.tuning.kind == "none":
        return dict.fromkeys(("prepare", "train"), State(True, "not needed (tuning: none)"))
    if not is_complete(config, folder):
        return {"prepare": State(False, "to do or cached"), "train": State(False, _progress(folder))}
    changed = changed_data(folder)
    words = f"to do: {', '.join(changed)} changed since the training" if changed else "complete"
    return dict.fromkeys(("prepare", "train"), State(not changed, words))


def changed_data(folder: RunFolder) -> list[str]:
    """Data files whose content is no longer what the run was trained on. One that is gone is no change."""
    from pipeline.evaluate.fingerprint import content_hash

    manifest, result = read_json(folder.prepare_manifest), read_json(folder.train_result)
    if not isinstance(manifest, dict) or not isinstance(result, dict):
        return []
    if manifest.get("key") != result.get("prepared_key"):
        return ["the data"]
    try:
        hashes = {source["source"]: source["sha256"] for source in manifest["sources"]}
        paths = {expanded(path): hashes[label] for label, path in manifest["paths"].items()}
    except (KeyError, TypeError, AttributeError):  # damaged: like one that is not there
        return []
    return [str(path) for path, content in paths.items() if path.is_file() and content_hash(path) != content]


def _evaluation_state(config: RunConfig, folder: RunFolder) -> State:
    tasks = config.evaluation.tasks
    missing = import_module("pipeline.evaluate").missing_tasks(config, folder)
    if not missing:
        return State(True, f"complete ({len(tasks)} tasks)")
    return State(False, f"to do: {', '.join(missing)}" if len(missing) < len(tasks) else f"to do: {len(tasks)} tasks")


def _progress(folder: RunFolder) -> str:
    return "to do, goes on from a checkpoint" if any(folder.checkpoints.glob("step-*")) else "to do"


def check_stages(config: RunConfig, folder: RunFolder, stages: tuple[Stage, ...] | None = None) -> None:
    """Refuse what can be seen to be wrong of the incomplete ones of `stages` (default: all this run needs), and of the
    evaluation always: its mistake would be recorded in config.yaml, whichever stage runs. Changes nothing.

    Raises:
        UserError: as `check_run`.
    """
    looked_at = [stage for stage in stages_of(config) if stages is None or stage in (*stages, "evaluate")]
    check_run(config, [stage for stage in looked_at if not state(stage, config, folder).complete])


def refresh(config: RunConfig, folder: RunFolder, tell: Tell) -> None:
    """Bring the records of a complete run up to date: config.yaml says this configuration, and nothing has failed."""
    with suppress(OSError, StageError):  # a colleague's folder: what is complete can be used all the same
        if folder.failure.exists() or folder.config.read_bytes() != to_yaml(config).encode():
            with exclusive(folder, tell):
                folder.create(config)
                folder.failure.unlink(missing_ok=True)


def run_stage(stage: Stage, config: RunConfig, folder: RunFolder, **options: Any) -> Any:
    """Run one stage, with its own `options`, and return its result.

    A failure is recorded in the run folder, success clears the record.

    Raises:
        UserError: what the stage raises; another process may hold the folder, then this one waits for it.
    """
    with _recorded(stage, folder):
        _write_versions(folder)
        result = getattr(import_module(f"pipeline.{stage}"), stage)(config, folder, **options)
    folder.failure.unlink(missing_ok=True)
    return result


def _write_versions(folder: RunFolder) -> None:
    if not folder.versions.exists():
        write_json(folder.versions, versions())


def run_missing(
    config: RunConfig,
    folder: RunFolder,
    tell: Tell,
    stages: tuple[Stage, ...] | None = None,
    processes: int = 1,
    resume: Path | None = None,
) -> None:
    """Run the incomplete ones of `stages` (default: all this run needs), saying of each what happens.

    Args:
        processes: that share each stage.
        resume: a checkpoint that the training goes on from, in place of the newest.

    Raises:
        UserError: `resume`, but the training is complete; what `check_stages` refuses, before anything is written.
    """
    check_stages(config, folder, stages)
    with exclusive(folder, tell):
        _remove_leftovers(folder)
        folder.create(config)
        for stage in stages or stages_of(config):
            found = state(stage, config, folder)
            if found.complete and stage == "train" and resume:
                raise import_module("pipeline.train.completion").trained_already(folder)
            if found.complete:
                tell(f"{stage}: {found.words}, skipped" if "complete" in found.words else f"{stage}: {found.words}")
                continue
            if stage == "train" and (processes > 1 or config.training.zero.stage):
                _write_versions(folder)
                import_module("pipeline.train.spawn").train_in_processes(folder, processes, resume)
            else:
                run_stage(
                    stage, config, folder, **({"resume": resume} if stage == "train" else {"processes": processes})
                )
            gc.collect()  # accelerate's wrappers hold the model in a cycle: the next stage needs its memory
        if all(state(stage, config, folder).complete for stage in stages_of(config)):
            folder.failure.unlink(missing_ok=True)  # the record of an earlier attempt


def run_share(stage: Stage, config: RunConfig, folder: RunFolder, part: Share, tell: Tell, processes: int = 1) -> None:
    """Prepare or evaluate one share beside processes that do the others; the last one writes the results."""
    check_stages(config, folder, (stage,))
    if not folder.config.exists() or not folder.versions.exists():
        with exclusive(folder, tell):
            folder.create(config)
            _write_versions(folder)
    with _recorded(stage, folder):
        if stage == "prepare":
            waiting = import_module("pipeline.prepare").prepare_share(config, folder, part, processes)
        else:
            waiting = import_module("pipeline.evaluate").evaluate_share(config, folder, part)
    folder.failure.unlink(missing_ok=True)
    words = f"done; {', '.join(waiting)} must wait for other shares" if waiting else "done, and with it all shares"
    tell(f"{stage} {part}: {words}")


def _remove_leftovers(folder: RunFolder) -> None:
    """Temporary files and folders of writes that were killed."""
    for place in (folder.root, folder.train_result.parent, folder.root / "evaluate"):
        for leftover in place.glob(".*.*"):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()


@contextmanager
def _recorded(stage: Stage, folder: RunFolder) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if getattr(error, "status", 1) < 128:  # stopped by a signal: not a failure
            record_failure(folder, stage, describe(error))
        raise


def record_failure(folder: RunFolder, stage: str, reason: str) -> None:
    """Write failed.json: which stage, why, when. Says so silently when not even that can be written."""
    values = {"stage": stage, "error": reason, "time": datetime.now(UTC).isoformat(timespec="seconds")}
    try:
        write_json(folder.failure, values)
    except UserError:
        return  # the disk is full: the reason still goes to the terminal


def failure(folder: RunFolder) -> str:
    """The recorded reason as `stage: reason`, or "" when nothing failed."""
    try:
        values = read_json(folder.failure)
    except OSError as error:
        return f"{folder.failure.name} cannot be read ({error.strerror or error})"
    return f"{values.get('stage', '?')}: {values.get('error', '?')}" if isinstance(values, dict) else ""


def describe(error: BaseException) -> str:
    """An error as one line."""
    if isinstance(error, UserError):
        return one_line(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if "No space left on device" in str(error):  # torch and safetensors raise their own classes
        return "No space left on device"
    return f"unexpected {type(error).__name__}: {one_line(error)}"


@contextmanager
def exclusive(folder: RunFolder, tell: Tell) -> Iterator[None]:
    """Hold the run folder for this process; wait, saying so, while another one holds it.

    The lock ends with its process, so nothing stale is left by a kill.
    """
    folder.root.mkdir(parents=True, exist_ok=True)
    with folder.lock.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            tell(f"{folder.root}: process {lock.read().strip() or '?'} is working on it, waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:  # some cluster file systems are mounted without locks
            tell(f"{folder.root}: cannot be locked ({error.strerror}): make sure that no one else works on it")
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
