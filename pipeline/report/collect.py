"""From run folders to records: only whole, finished evaluations of the folder's own configuration count."""

import gc
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.config import RunConfig, parse_config, signature
from pipeline.errors import UserError
from pipeline.files import read_json
from pipeline.report.agreement import agreeing
from pipeline.report.cell import Cell, check_rows, check_twins
from pipeline.report.cost import COSTS, PREFIX, cost_of, device_of
from pipeline.report.record import (
    AbsentError,
    Cost,
    Measurement,
    Missing,
    Outcome,
    Record,
    UnusableError,
    read_evaluation,
    texts,
    unreadable,
)
from pipeline.report.statistics import is_number
from pipeline.report.text import printable
from pipeline.run_folder import RunFolder
from pipeline.yaml_file import read_sections


@contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's cyclic collector, which walks through all records again and again as their number grows, for
    a quarter of the time of a report, and finds next to nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def collect(cells: Sequence[Cell]) -> list[Outcome]:
    """One outcome for each planned (row, seed, task), in the order of the cells.

    Raises:
        UserError: a row would count a run twice, or average over runs that differ in anything but the seed.
    """
    check_twins(cells)
    runs = {cell.folder.root: _run(cell) for cell in cells}
    configs = {root: run.config for root, run in runs.items() if isinstance(run, Run)}
    check_rows([cell for cell in cells if cell.folder.root in configs], configs)
    outcomes = [outcome for cell in cells for outcome in _outcomes(cell, runs[cell.folder.root])]
    outcomes = agreeing(outcomes, lambda o: (o.group, o.row, o.task), _prepared_data, "the row")
    return agreeing(outcomes, lambda o: o.task, lambda m: m.conditions, "the column")


def _prepared_data(measured: Measurement) -> dict[str, Any]:
    return {"prepared data": measured.prepared_key} if isinstance(measured, Record) else {}


def models_gone(cells: Sequence[Cell]) -> list[Path]:
    """Trained runs whose model is no longer there: their numbers count, but nobody can measure them again."""
    return [cell.folder.root for cell in cells if there(cell.folder.train_result) and not there(cell.folder.model)]


def there(path: Path) -> bool:
    """`Path.exists` raises where the folder may not be read."""
    return os.path.exists(path)


def read_config(folder: RunFolder) -> RunConfig | None:
    """The configuration of the run, or None when the folder has none yet.

    Raises:
        UserError: the file cannot be read, or is not a valid configuration.
    """
    try:
        found = folder.config.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"{folder.config}: {unreadable(error)}") from None
    if not stat.S_ISREG(found.st_mode):  # reading a pipe would wait for ever
        raise UserError(f"{folder.config}: is not a file")
    return _parsed(folder.config, found.st_mtime_ns)


@lru_cache(maxsize=20_000)
def _parsed(path: Path, _modified: int) -> RunConfig:
    """Read once, though several steps of a report ask for it."""
    return parse_config(read_sections(path), str(path))


class Run(NamedTuple):
    """A run whose configuration and training can be read and belong together."""

    config: RunConfig
    signature: str
    trained: dict[str, Any] | None


def _run(cell: Cell) -> Run | UnusableError:
    """The run, or why none of its numbers counts: damage of one run is no reason to report none."""
    try:
        config = _own_config(cell)
        expected = signature(config)
        return Run(config, expected, _training(cell.folder, config, expected))
    except UnusableError as error:
        return error


def _own_config(cell: Cell) -> RunConfig:
    try:
        config = read_config(cell.folder)
    except UserError as error:
        raise UnusableError(damage(error, cell.folder)) from None
    if config is None:
        raise AbsentError("not started")
    if cell.config not in (None, config) and signature(cell.config) != signature(config):
        raise UnusableError(f"{cell.folder.config.name} is not that of the planned run (signature {signature(config)})")
    return config


def damage(error: UserError, folder: RunFolder) -> str:
    """An error of a run's configuration, without the folder: that is shown beside it."""
    return str(error).replace(str(folder.config), folder.config.name)


def _outcomes(cell: Cell, run: Run | UnusableError) -> list[Outcome]:
    if isinstance(run, UnusableError):
        return [_missing(cell, task, _reason(cell, run)) for task in cell.tasks]
    found = [
        _cost(cell, task, run.trained) if task.startswith(PREFIX) else _outcome(cell, task, run) for task in cell.tasks
    ]
    return _same_weights(found)


def _reason(cell: Cell, error: UnusableError) -> str:
    return cell.reason if cell.reason and isinstance(error, AbsentError) else str(error)


def _missing(cell: Cell, task: str, reason: str) -> Missing:
    return Missing(cell.row, cell.group, task, cell.seed, cell.folder.root, printable(reason))


def _training(folder: RunFolder, config: RunConfig, expected: str) -> dict[str, Any] | None:
    """The result of the finished training; None for a model that is not trained."""
    if config.tuning.kind == "none":
        return None
    result = _read(folder.train_result, "training result")
    if result is None:
        raise AbsentError("not trained")
    if result.get("signature") != expected:
        raise UnusableError(f"trained with another configuration (signature {result.get('signature')})")
    return result


def _read(path: Path, words: str) -> dict[str, Any] | None:
    """None where there is no such file."""
    try:
        result = read_json(path)
    except OSError as error:
        raise UnusableError(f"{words} {unreadable(error)}") from None
    if isinstance(result, dict):
        return result
    if there(path):
        raise UnusableError(f"{words} is damaged")
    return None


def _outcome(cell: Cell, task: str, run: Run) -> Outcome:
    name, _, metric = task.partition(":")
    root, path = cell.folder.root, cell.folder.evaluation(name)
    try:
        evaluation = read_evaluation(path, name, run.config, run.signature, metric or None)
    except UnusableError as error:
        return _missing(cell, task, _reason(cell, error))
    prepared_key = texts(run.trained).get("prepared_key")
    return Record(cell.row, cell.group, task, cell.seed, root, path, evaluation, prepared_key)


def _cost(cell: Cell, key: str, trained: dict[str, Any] | None) -> Outcome:
    if trained is None:
        return _missing(cell, key, "nothing is trained")
    kind = COSTS[key.removeprefix(PREFIX)]
    try:
        path, result = _inference(cell.folder, trained) if kind.conditions else (cell.folder.train_result, trained)
        value = cost_of(key, result)
    except UnusableError as error:
        return _missing(cell, key, str(error))
    versions = texts(result.get("versions"))
    facts = {"signature": trained["signature"], "device": device_of(result), "versions": versions}
    conditions = {name.replace("_", " "): result.get(name) for name in kind.conditions}
    if not all(isinstance(value, str) or is_number(value) for value in conditions.values()):
        return _missing(cell, key, f"inference.json lacks one of {', '.join(conditions)}")
    return Cost(cell.row, cell.group, key, cell.seed, cell.folder.root, path, value, facts, conditions)


def _inference(folder: RunFolder, trained: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """What `dualtune time` measured of this model."""
    result = _read(folder.inference, folder.inference.name)
    if result is None:
        raise UnusableError("not measured: dualtune time RUN")
    if result.get("signature") != trained["signature"]:
        raise UnusableError(f"measured with another configuration (signature {result.get('signature')})")
    return folder.inference, result


def _same_weights(outcomes: list[Outcome]) -> list[Outcome]:
    """All tasks of one run must have been scored on the same weights."""
    fingerprints = {outcome.evaluation.model_fingerprint for outcome in outcomes if isinstance(outcome, Record)}
    if len(fingerprints) < 2:
        return outcomes
    reason = "its tasks were scored on different weights: evaluate it again"
    return [outcome.missing(reason) if isinstance(outcome, Record) else outcome for outcome in outcomes]
