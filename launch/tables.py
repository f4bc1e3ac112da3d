"""Which runs a table is made of: those of one or several grids, or run folders as they are."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from launch.grid import Grid, GridCell, load_grid
from pipeline.errors import UserError
from pipeline.report import PLAIN, Cell, Layout, Table, cells_of, load_layout, report
from pipeline.run_folder import RunFolder
from pipeline.stages import failure

REPORTS = "reports"
"""Folder beside the run folders that holds one folder of tables for each grid."""


@dataclass(frozen=True)
class Source:
    """Everything that a table needs to know about its runs."""

    cells: tuple[Cell, ...]
    title: str
    runs: Path
    """The folder that holds the run folders."""
    baseline: str | None = None
    reference: dict[str, dict[str, str]] = field(default_factory=dict)
    blocks: bool = False
    """Rows may have equal names and stand in blocks by model."""


def source_of_grids(grids: Sequence[Grid]) -> Source:
    """One table of all grids; their rows stand in blocks by model when there are several."""
    cells = tuple(_cell(cell, grid) for grid in grids for cell in grid.cells)
    title = grids[0].name if len(grids) == 1 else "grids"
    reference = {label: texts for grid in grids for label, texts in grid.reference.items()}
    baselines = {grid.baseline for grid in grids}
    baseline = baselines.pop() if len(baselines) == 1 else None
    blocks = len(grids) > 1 or any(cell.group for cell in cells)
    return Source(cells, title, grids[0].runs, baseline, reference, blocks)


def _cell(cell: GridCell, grid: Grid) -> Cell:
    failed = failure(cell.folder)
    columns = grid.columns(cell.config.evaluation.tasks)
    reason = f"failed: {failed}" if failed else None
    return Cell(cell.row, cell.seed, cell.folder, columns, reason, cell.block, cell.config)


def source_of_folders(folders: Sequence[Path]) -> Source:
    """Run folders, grouped into rows by what they have in common. The folder of tables is passed over.

    Raises:
        UserError: a folder is not a run folder.
    """
    runs = [folder for folder in folders if folder.name != REPORTS]
    if not runs:
        raise UserError(f"{folders[0]}: holds tables, not a run")
    return Source(tuple(cells_of([RunFolder(run) for run in runs])), "runs", runs[0].parent)


def read_source(arguments: Sequence[str]) -> Source:
    """What the command line names: files with `key=value` overrides, or folders.

    Raises:
        UserError: both, or neither.
    """
    paths = [argument for argument in arguments if "=" not in argument or Path(argument).exists()]
    overrides = [argument for argument in arguments if argument not in paths]
    folders = [Path(path) for path in paths if Path(path).is_dir()]
    if folders and (len(folders) < len(paths) or overrides):
        others = [argument for argument in arguments if not Path(argument).is_dir()]
        raise UserError(f"{others[0]}: give either run folders, or files of runs and grids with key=value")
    if not paths:
        raise UserError(f"{arguments[0]}: name the file of a run or of a grid first, or run folders")
    return source_of_folders(folders) if folders else source_of_grids([load_grid(path, overrides) for path in paths])


def write_report(
    source: Source,
    layout_name: str | None = None,
    with_reference: bool = False,
    output: Path | None = None,
    console: Console | None = None,
) -> Table:
    """Print and write the table of a source, whatever is there of it.

    Args:
        layout_name: a layout that is shipped, or a YAML file.
        with_reference: show the layout's published numbers beside ours.
        output: folder for the files; default: beside the run folders, under `reports`.

    Raises:
        UserError: see `report`; unknown layout; published numbers are asked for and the layout has none.
    """
    layout = _layout(source, layout_name)
    if with_reference and not layout.reference:
        raise UserError("--reference: there are no published numbers; give a layout that has some (--layout table1)")
    name = "-".join([source.title, *([Path(layout_name).stem] if layout_name else [])])
    folder = output or source.runs / REPORTS / name
    return report(
        source.cells, source.title, source.baseline, folder, console or terminal(), layout, source.reference,
        with_reference,
    )  # fmt: skip


def _layout(source: Source, name: str | None) -> Layout:
    if name is not None:
        return load_layout(name)
    return Layout(groups={}) if source.blocks else PLAIN


def terminal(width: int = 200) -> Console:
    """The terminal; where there is none, `width` columns, so that redirected tables don't wrap."""
    found = Console()
    return found if found.is_terminal else Console(width=width)
