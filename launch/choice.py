"""Making choices between values, and remembering them with the numbers they came from.

RUNS/reports/GRID/choices/NAME-KEY.json; KEY is a digest of everything that the choice depends on.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from launch.cells import REPORTS, Choice, Grid, GridCell
from launch.grid_file import VALIDATION_LOSS
from pipeline.config import as_dict, digest, signature
from pipeline.files import read_json, write_json
from pipeline.report.record import UnusableError, read_evaluation
from pipeline.stages import Tell, failure, states


def settle(grid: Grid) -> Grid:
    """The grid with the choices that were made before and still hold. Nothing is changed.

    One holds while the runs that it came from measure the same, or are gone.
    """
    return grid.with_choices(_remembered(grid)) if grid.choices else grid


def _remembered(grid: Grid) -> dict[str, str]:
    found: dict[str, str] = {}
    for choice in grid.choices:
        values = read_json(record_of(grid, choice))
        if isinstance(values, dict) and _holds(choice, values):
            found[choice.name] = str(values["chosen"])
    return found


def resolve(grid: Grid, tell: Tell) -> tuple[Grid, list[str]]:
    """Make the open choices whose candidates are all measured, and write them down.

    Returns:
        The grid with them, and why each other choice cannot be made.
    """
    chosen: dict[str, str] = {}
    problems: list[str] = []
    for choice in grid.open_choices:
        try:
            numbers = _measured(choice)
        except UnusableError as error:
            problems.append(_problem(choice, error))
            continue
        best, *others = best_of({value: fmean(found) for value, found in numbers.items()}, choice.mode)
        path = record_of(grid, choice)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, _record(choice, numbers, [best, *others]))
        tied = f", the first of {len(others) + 1} that are equal ({', '.join(others)})" if others else ""
        tell(f"choice of {choice.name}: {best}, {choice.metric} {fmean(numbers[best]):.5g}{tied} ({path})")
        chosen[choice.name] = best
    return grid.with_choices(chosen), problems


def problems_of(grid: Grid) -> list[str]:
    """Why each open choice cannot be made now."""
    found = []
    for choice in grid.open_choices:
        try:
            _measured(choice)
        except UnusableError as error:
            found.append(_problem(choice, error))
    return found


def _measured(choice: Choice) -> dict[str, list[float]]:
    return {value: [measure(cell, choice.metric) for cell in runs] for value, runs in choice.candidates.items()}


def _problem(choice: Choice, error: UnusableError) -> str:
    return f"no choice of {choice.name}: {error}"


def best_of(means: Mapping[str, float], mode: str) -> list[str]:
    """The best candidates: one, or all that tie, in their order."""
    best = min(means.values()) if mode == "min" else max(means.values())
    return [value for value, mean in means.items() if mean == best]


def measure(cell: GridCell, metric: str) -> float:
    """The metric of a candidate's run.

    Raises:
        UnusableError: it is not complete, failed, or has no such number.
    """
    found = states(cell.config, cell.folder)
    todo = "; ".join(f"{stage}: {one.words}" for stage, one in found.items() if not one.complete)
    if todo:
        raise UnusableError(f"candidate {cell}: {failure(cell.folder) or todo} ({cell.folder.root})")
    if metric == VALIDATION_LOSS:
        value = (read_json(cell.folder.train_result) or {}).get(VALIDATION_LOSS)
    else:
        value = _score(cell, metric)
    if not isinstance(value, int | float) or not math.isfinite(value):
        words = f"has no {metric}" if value is None else f"{metric} is {value}"
        raise UnusableError(f"candidate {cell}: {words} ({cell.folder.root})")
    return float(value)


def _score(cell: GridCell, metric: str) -> float:
    task, _, name = metric.partition(":")
    path = cell.folder.evaluation(task)
    try:
        return read_evaluation(path, task, cell.config, signature(cell.config), name or None).value
    except UnusableError as error:
        raise UnusableError(f"candidate {cell}: {error} ({path})") from None


def record_of(grid: Grid, choice: Choice) -> Path:
    """Where a choice is remembered."""
    facts = {
        "metric": choice.metric,
        "mode": choice.mode,
        "candidates": {value: [cell.folder.root.name for cell in runs] for value, runs in choice.candidates.items()},
        "evaluation": None if choice.metric == VALIDATION_LOSS else as_dict(choice.runs[0].config.evaluation),
    }
    name = re.sub(r"[^\w.+-]+", "_", choice.name)[:80]
    return grid.runs / REPORTS / grid.name / "choices" / f"{name}-{digest(facts)}.json"


def _record(choice: Choice, numbers: Mapping[str, list[float]], best: list[str]) -> dict[str, Any]:
    candidates = {
        value: {"mean": fmean(found), "runs": dict(zip(_names(choice, value), found, strict=True))}
        for value, found in numbers.items()
    }
    facts = {"metric": choice.metric, "mode": choice.mode, "candidates": candidates}
    return {"chosen": best[0], "tied": best[1:], "choice": choice.name, **facts}


def _names(choice: Choice, value: str) -> list[str]:
    return [cell.folder.root.name for cell in choice.candidates[value]]


def _holds(choice: Choice, record: dict[str, Any]) -> bool:
    """Whether every run that a record came from still has its number, or is gone."""
    try:
        return (
            all(
                not cell.folder.root.exists()
                or measure(cell, choice.metric) == record["candidates"][value]["runs"][cell.folder.root.name]
                for value, runs in choice.candidates.items()
                for cell in runs
            )
            and record["chosen"] in choice.candidates
        )
    except (UnusableError, KeyError, TypeError):
        return False
