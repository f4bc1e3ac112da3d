"""A grid as plain JSON: what jobs read instead of the YAML files, which may change while they wait."""

from collections.abc import Sequence
from typing import Any

from launch.cells import Grid, GridCell
from pipeline.config import RunConfig, as_dict


def freeze_cell(cell: GridCell) -> dict[str, Any]:
    """One cell with its resolved configuration."""
    place = {"values": dict(cell.values), "label": cell.label, "block": cell.block, "tunes": cell.tunes}
    return {"row": cell.row, "seed": cell.seed, **place, "config": as_dict(cell.config)}


def thaw_cell(values: dict[str, Any]) -> GridCell:
    """The inverse of `freeze_cell`."""
    return GridCell(**{**values, "config": RunConfig.model_validate(values["config"])})


def freeze_grid(grid: Grid) -> dict[str, Any]:
    """All of a grid but its cells, and what waits for a choice: jobs know nothing of that."""
    metrics = {task: list(names) for task, names in grid.metrics.items()}
    rows = {cell.row for cell in grid.cells if not cell.tunes}
    baseline = grid.baseline if grid.baseline in rows else None
    layout = {"metrics": metrics, "reference": grid.reference, "blocks": grid.blocks}
    return {"name": grid.name, "baseline": baseline, **layout}


def thaw_grid(values: dict[str, Any], cells: Sequence[GridCell]) -> Grid:
    """The inverse of `freeze_grid`."""
    metrics = {task: tuple(names) for task, names in values["metrics"].items()}
    return Grid(**{**values, "metrics": metrics, "cells": tuple(cells)})
