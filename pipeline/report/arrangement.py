"""Which run stands where: the cells of a grid, or of several, put into the rows and blocks of a layout."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config import as_dict
from pipeline.errors import UserError
from pipeline.report.cell import Cell
from pipeline.report.cost import PREFIX
from pipeline.report.layout import Layout

ABSENT = object()


def arranged(cells: Sequence[Cell], layout: Layout) -> tuple[list[Cell], tuple[str, ...]]:
    """The cells that have a place in the layout, with its names of rows and blocks; and the rows that have none.

    Raises:
        UserError: a run fits into two rows, or a key of a row's conditions is no key of a configuration.
    """
    placed: dict[tuple[str, str, Path], Cell] = {}
    left_out: dict[str, None] = {}
    for cell in cells:
        found = _placed(cell, layout)
        if found is None:
            left_out[cell.row if cell.config else f"{cell.row} ({cell.reason})"] = None
            continue
        key = found.group, found.row, found.folder.root
        twin = placed.get(key)  # two grids may share a run
        if twin is not None:
            found = replace(twin, tasks=tuple(dict.fromkeys([*twin.tasks, *found.tasks])))
        placed[key] = found
    return list(placed.values()), tuple(left_out)


def _placed(cell: Cell, layout: Layout) -> Cell | None:
    row = _row(cell, layout)
    if row is None:
        return None
    costs = [f"{PREFIX}{name}" for name in layout.cost]
    return replace(cell, row=row, group=_group(cell, layout), tasks=(*_tasks(cell, layout), *costs))


def _row(cell: Cell, layout: Layout) -> str | None:
    if layout.rows is None:
        return cell.row
    if cell.config is None:  # damaged: nobody knows its place
        return None
    values = as_dict(cell.config)
    fitting = [label for label, conditions in layout.rows.items() if _holds(conditions, values, label)]
    if len(fitting) > 1:
        raise UserError(f"layout: {cell.folder.root} fits into the rows {' and '.join(fitting)}: tell them apart")
    return fitting[0] if fitting else None


def _holds(conditions: dict[str, Any], values: dict[str, Any], label: str) -> bool:
    return all(_value(values, key, label) == wanted for key, wanted in conditions.items())


def _value(values: Any, key: str, label: str) -> Any:
    for part in key.split("."):
        values = values.get(part, ABSENT) if isinstance(values, dict) else ABSENT
    if values is ABSENT:
        raise UserError(f"layout: rows.{label}: {key!r} is no key of a run's configuration")
    return values


def _group(cell: Cell, layout: Layout) -> str:
    if layout.groups is None or cell.config is None:
        return cell.group if layout.groups is not None else ""
    name = Path(cell.config.model.name).name
    return layout.groups.get(name, cell.group or name)


def _tasks(cell: Cell, layout: Layout) -> list[str]:
    """The layout's columns that this run is scored on."""
    if layout.columns is None:
        return list(cell.tasks)
    scored = {task.partition(":")[0] for task in cell.tasks}
    return [task for task in layout.columns.values() if task.partition(":")[0] in scored]
