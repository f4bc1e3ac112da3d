"""From run folders to records: only whole, finished evaluations of the folder's own configuration count."""

import gc
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.config import RunConfig, parse_config, signature
from pipeline.errors import UserError
from pipeline.files import read_json
from pipeline.report.cost import COSTS, PREFIX, cost_of, device_of
from pipeline.report.differences import differing_keys
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


@dataclass(frozen=True)
class Cell:
    """One planned run: a row of the table, a seed (None: the run has none), and the tasks it is scored on, each as
    `task` (its main metric) or `task:metric`.

    `reason` is what the planner knows about a run that did not finish ("failed: out of memory"). It is shown where
    a number is missing; numbers that are there count whatever it says.
    """

    row: str
    seed: int | None
    folder: RunFolder
    tasks: tuple[str, ...]
    reason: str | None = None
    group: str = ""
    """Rows of several groups (models) may have one name."""
    config: RunConfig | None = field(default=None, compare=False)
    """As planned; a layout finds the run's place by it."""


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
        UserError: a row would average over runs that differ in anything but the seed.
    """
    runs = {cell.folder.root: _run(cell) for cell in cells}
    configs = {root: run.config for root, run in runs.items() if isinstance(run, Run)}
    check_rows([cell for cell in cells if cell.folder.root in configs], configs)
    outcomes = [outcome for cell in cells for outcome in _outcomes(cell, runs[cell.folder.root])]
    outcomes = _agreeing(outcomes, lambda o: (o.group, o.row, o.task), _prepared_data, "the row")
    return _agreeing(outcomes, lambda o: o.task, lambda m: m.conditions, "the column")


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
        modified = folder.config.stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"{folder.config}: {unreadable(error)}") from None
    return _parsed(folder.config, modified)


@lru_cache(maxsize=20_000)
def _parsed(path: Path, _modified: int) -> RunConfig:
    """Read once, though several steps of a report ask for it."""
    return parse_config(read_sections(path), str(path))


def check_rows(cells: Iterable[Cell], configs: dict[Path, RunConfig]) -> None:
    """Refuse to average over anything but seeds.

    Raises:
        UserError: naming the row, the run folders and the keys in which they differ.
    """
    groups: dict[tuple[str, str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        for task in cell.tasks:
            groups[cell.group, cell.row, task].append(cell)
    for group in dict.fromkeys(tuple(group) for group in groups.values()):
        _check_group(group, configs)


def _check_group(group: tuple[Cell, ...], configs: dict[Path, RunConfig]) -> None:
    first: tuple[Cell, RunConfig] | None = None
    seen: dict[Hashable, Cell] = {}
    for cell in group:
        for identity in (cell.folder.root, ("seed", cell.seed)):
            if identity in seen:
                raise UserError(
                    f"row {cell.row!r} counts a run twice: {seen[identity].folder.root} and {cell.folder.root}, "
                    f"seed {cell.seed}"
                )
            seen[identity] = cell
        one = cell, configs[cell.folder.root]
        first = first or one
        _check_pair(first, one)


def _check_pair(first: tuple[Cell, RunConfig], second: tuple[Cell, RunConfig]) -> None:
    cell, config = second
    if cell.seed is not None and cell.seed != config.seed:
        raise UserError(f"{cell.folder.config}: has seed {config.seed}, but row {cell.row!r} expects seed {cell.seed}")
    if first[1].model_copy(update={"seed": config.seed, "name": config.name}) == config:
        return
    keys = differing_keys([first[1], config])
    if keys:
        raise UserError(
            f"row {cell.row!r} would mix runs that differ in more than the seed: {first[0].folder.root} and "
            f"{cell.folder.root} differ in {', '.join(keys)}"
        )


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
    if cell.config is not None and signature(cell.config) != signature(config):
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


def _agreeing(
    outcomes: list[Outcome],
    group: Callable[[Outcome], Hashable],
    facts: Callable[[Measurement], dict[str, Any]],
    where: str,
) -> list[Outcome]:
    """Set aside the numbers of each group whose facts differ from those of most of them.

    Between equally many, full evaluations win over limited ones, then the first.
    """
    groups: dict[Hashable, list[Measurement]] = defaultdict(list)
    for outcome in outcomes:
        if not isinstance(outcome, Missing):
            groups[group(outcome)].append(outcome)
    standard = {key: _standard(measured, facts) for key, measured in groups.items()}
    return [o if isinstance(o, Missing) else _set_aside(o, standard[group(o)], facts(o), where) for o in outcomes]


def _standard(measured: list[Measurement], facts: Callable[[Measurement], dict[str, Any]]) -> dict[str, Any]:
    keys = [repr(facts(one)) for one in measured]
    count = Counter(keys)
    ranks = [(count[key], one.is_full) for key, one in zip(keys, measured, strict=True)]
    return facts(measured[ranks.index(max(ranks))])


def _set_aside(measured: Measurement, standard: dict[str, Any], facts: dict[str, Any], where: str) -> Outcome:
    odd = [f"{name} {_shown(facts[name])}, {where} has {_shown(standard[name])}" for name in facts
           if facts[name] != standard[name]]  # fmt: skip
    return measured.missing(f"not comparable: {'; '.join(odd)}") if odd else measured


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
