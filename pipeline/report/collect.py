"""From run folders to records: only whole, finished evaluations of the folder's own configuration count."""

import gc
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.config import RunConfig, parse_config, signature
from pipeline.errors import UserError
from pipeline.files import read_json
from pipeline.report.cost import COSTS, PREFIX, cost_of, device_of
from pipeline.report.differences import differing_keys
from pipeline.report.record import Cost, Measurement, Missing, Outcome, Record, UnusableError, read_evaluation
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
    configs = {cell.folder.root: read_config(cell.folder) for cell in cells}
    check_rows(cells, configs)
    outcomes = [outcome for cell in cells for outcome in _outcomes(cell, configs[cell.folder.root])]
    outcomes = _agreeing(outcomes, lambda o: (o.group, o.row, o.task), _prepared_data, "the row")
    return _agreeing(outcomes, lambda o: o.task, lambda m: m.conditions, "the column")


def _prepared_data(measured: Measurement) -> dict[str, Any]:
    return {"prepared data": measured.prepared_key} if isinstance(measured, Record) else {}


def models_gone(cells: Sequence[Cell]) -> list[Path]:
    """Trained runs whose model is no longer there: their numbers count, but nobody can measure them again."""
    return [cell.folder.root for cell in cells if cell.folder.train_result.exists() and not cell.folder.model.exists()]


def read_config(folder: RunFolder) -> RunConfig | None:
    """The configuration of the run, or None when the folder has none yet.

    Raises:
        UserError: the file is there and is not a valid configuration.
    """
    try:
        modified = folder.config.stat().st_mtime_ns
    except OSError:
        return None
    return _parsed(folder.config, modified)


@lru_cache(maxsize=20_000)
def _parsed(path: Path, _modified: int) -> RunConfig:
    """Read once, though several steps of a report ask for it."""
    return parse_config(read_sections(path), str(path))


def check_rows(cells: Iterable[Cell], configs: dict[Path, RunConfig | None]) -> None:
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


def _check_group(group: tuple[Cell, ...], configs: dict[Path, RunConfig | None]) -> None:
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
        config = configs[cell.folder.root]
        if config is None:
            continue
        first = first or (cell, config)
        _check_pair(first, (cell, config))


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


def _outcomes(cell: Cell, config: RunConfig | None) -> list[Outcome]:
    try:
        if config is None:
            raise UnusableError("not started")
        expected = signature(config)
        trained = _training(cell.folder, config, expected)
    except UnusableError as error:
        return [_missing(cell, task, cell.reason or str(error)) for task in cell.tasks]
    found = [
        _cost(cell, task, trained) if task.startswith(PREFIX) else _outcome(cell, task, config, expected, trained)
        for task in cell.tasks
    ]
    return _same_weights(found)


def _missing(cell: Cell, task: str, reason: str) -> Missing:
    return Missing(cell.row, cell.group, task, cell.seed, cell.folder.root, reason)


def _training(folder: RunFolder, config: RunConfig, expected: str) -> dict[str, Any] | None:
    """The result of the finished training; None for a model that is not trained."""
    if config.tuning.kind == "none":
        return None
    result = read_json(folder.train_result)
    if not isinstance(result, dict):
        raise UnusableError("training result is damaged" if folder.train_result.exists() else "not trained")
    if result.get("signature") != expected:
        raise UnusableError(f"trained with another configuration (signature {result.get('signature')})")
    return result


def _outcome(cell: Cell, task: str, config: RunConfig, expected: str, trained: dict[str, Any] | None) -> Outcome:
    name, _, metric = task.partition(":")
    root, path = cell.folder.root, cell.folder.evaluation(name)
    try:
        evaluation = read_evaluation(path, name, config, expected, metric or None)
    except UnusableError as error:
        return _missing(cell, task, cell.reason if cell.reason and not path.exists() else str(error))
    key = (trained or {}).get("prepared_key")
    prepared_key = None if key is None else str(key)
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
    facts = {"signature": trained["signature"], "device": device_of(result), "versions": result.get("versions", {})}
    conditions = {name.replace("_", " "): result.get(name) for name in kind.conditions}
    return Cost(cell.row, cell.group, key, cell.seed, cell.folder.root, path, value, facts, conditions)


def _inference(folder: RunFolder, trained: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """What `dualtune time` measured of this model."""
    result = read_json(folder.inference)
    if not isinstance(result, dict):
        damaged = folder.inference.exists()
        raise UnusableError(f"{folder.inference.name} is damaged" if damaged else "not measured: dualtune time RUN")
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
