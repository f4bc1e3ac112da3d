"""A grid as plain JSON: what jobs read instead of the YAML files, which may change while they wait."""

from collections.abc import Sequence
from typing import Any

from launch.cells import Choice, Grid, GridCell, Waiting
from pipeline.config import RunConfig, as_dict


def freeze_cell(cell: GridCell) -> dict[str, Any]:
    """One cell with its resolved configuration."""
    place = {"values": dict(cell.values), "label": cell.label, "block": cell.block, "tunes": cell.tunes}
    return {"row": cell.row, "seed": cell.seed, **place, "config": as_dict(cell.config)}


def thaw_cell(values: dict[str, Any]) -> GridCell:
    """The inverse of `freeze_cell`."""
    return GridCell(**{**values, "config": RunConfig.model_validate(values["config"])})


def freeze_grid(grid: Grid) -> dict[str, Any]:
    """All of a grid but its cells."""
    metrics = {task: list(names) for task, names in grid.metrics.items()}
    layout = {"metrics": metrics, "reference": grid.reference, "blocks": grid.blocks}
    choices = {"choices": [_freeze_choice(one) for one in grid.open_choices],
               "waiting": [_freeze_waiting(one) for one in grid.waiting]}  # fmt: skip
    return {"name": grid.name, "baseline": grid.baseline, **layout, **choices}


def _freeze_choice(choice: Choice) -> dict[str, Any]:
    runs = {value: [freeze_cell(cell) for cell in cells] for value, cells in choice.candidates.items()}
    return {"name": choice.name, "metric": choice.metric, "mode": choice.mode, "candidates": runs}


def _freeze_waiting(one: Waiting) -> dict[str, Any]:
    options = {value: freeze_cell(cell) for value, cell in one.options.items()}
    return {"choice": one.choice, "position": one.position, "options": options}


def thaw_grid(values: dict[str, Any], cells: Sequence[GridCell]) -> Grid:
    """The inverse of `freeze_grid`."""
    metrics = {task: tuple(names) for task, names in values["metrics"].items()}
    choices = tuple(_thaw_choice(one) for one in values["choices"])
    waiting = tuple(_thaw_waiting(one) for one in values["waiting"])
    return Grid(**{**values, "metrics": metrics, "choices": choices, "waiting": waiting, "cells": tuple(cells)})


def _thaw_choice(values: dict[str, Any]) -> Choice:
    runs = {value: tuple(map(thaw_cell, cells)) for value, cells in values["candidates"].items()}
    return Choice(**{**values, "candidates": runs})


def _thaw_waiting(values: dict[str, Any]) -> Waiting:
    return Waiting(**{**values, "options": {value: thaw_cell(cell) for value, cell in values["options"].items()}})
