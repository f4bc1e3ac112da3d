"""Which runs a table is made of: those of one or several grids, or run folders as they are."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from launch.cells import REPORTS, Grid, GridCell, Waiting
from launch.grid import load_grid
from pipeline.errors import UserError
from pipeline.report import PLAIN, Cell, Layout, Table, cells_of, load_layout, report
from pipeline.run_folder import RunFolder
from pipeline.stages import failure


@dataclass(frozen=True)
class Source:
    """Everything that a table needs to know about its runs."""

    cells: tuple[Cell, ...]
    title: str
    runs: Path
    """The folder that holds the run folders."""
    baseline: str | None = None
    reference: dict[str, dict[str, str]] = field(default_factory=dict)
    block: str = ""
    """What the blocks of rows are, which may have equal names: "model", or another axis; "" without blocks."""


def source_of_grids(grids: Sequence[Grid]) -> Source:
    """One table of all grids; their rows stand in blocks, by model when there are several grids.

    Raises:
        UserError: two grids have different published numbers in one place.
    """
    cells = tuple(_cell(one, grid) for grid in grids for one in grid.shown)
    title = grids[0].name if len(grids) == 1 else "grids"
    baselines = {grid.baseline for grid in grids}
    baseline = baselines.pop() if len(baselines) == 1 else None
    return Source(cells, title, grids[0].runs, baseline, _reference(grids), _block(grids, cells))


def _reference(grids: Sequence[Grid]) -> dict[str, dict[str, str]]:
    """The published numbers of all grids; rows of one label are one row."""
    found: dict[str, dict[str, str]] = {}
    for grid in grids:
        for label, texts in grid.reference.items():
            for column, text in texts.items():
                if (other := found.setdefault(label, {}).setdefault(column, text)) != text:
                    raise UserError(f"reference.{label}.{column}: {other} in one grid, {text} in another")
    return found


def _block(grids: Sequence[Grid], cells: Sequence[Cell]) -> str:
    """The axis that all grids have blocks of, by the last part of its name."""
    axes = {grid.blocks for grid in grids}
    if None in axes:
        return "model" if len(grids) > 1 or any(cell.group for cell in cells) else ""
    return str(axes.pop()).rpartition(".")[2] if len(axes) == 1 else "model"


def _cell(planned: GridCell | Waiting, grid: Grid) -> Cell:
    cell = planned if isinstance(planned, GridCell) else planned.cell
    columns = grid.columns(cell.config.evaluation.tasks)
    if isinstance(planned, Waiting):  # no folder of an option: a candidate's numbers are not this run's
        nowhere = RunFolder(grid.runs / f"waiting-{planned.position}")
        return Cell(cell.row, cell.seed, nowhere, columns, planned.words, cell.block, cell.config)
    failed = failure(cell.folder)
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
    if absent := [path for path in paths if folders and not Path(path).exists()]:
        raise UserError(f"{absent[0]}: there is no such folder")
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
    if output is not None and output.exists() and not output.is_dir():
        raise UserError(f"--output {output}: is a file, not a folder")
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
    return Layout(groups={}, block=source.block) if source.block else PLAIN


def terminal(width: int = 200) -> Console:
    """The terminal; where there is none, `width` columns, so that redirected tables don't wrap."""
    found = Console()
    return found if found.is_terminal else Console(width=width)
