"""The report stage: from run folders to a table in which every number can be traced to its run."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from pipeline.files import to_json, write_texts
from pipeline.report.arrangement import arranged
from pipeline.report.cell import Cell
from pipeline.report.collect import uncollected
from pipeline.report.entry import Table
from pipeline.report.grouping import cells_of
from pipeline.report.latex import render_document, render_latex
from pipeline.report.layout import PLAIN, Layout, load_layout
from pipeline.report.markdown import render_markdown
from pipeline.report.page import render_page
from pipeline.report.provenance import provenance
from pipeline.report.spreadsheet import render_csv
from pipeline.report.table import build_table, cost_table
from pipeline.report.terminal import render_terminal

__all__ = ["PLAIN", "Cell", "Layout", "Table", "build_table", "cells_of", "load_layout", "report"]


MOST_ON_PAGE = 2000
"""Runs; the tables have no limit."""
PAGE = "report.html"
SEAL = "report.json"
"""Written last, with the sums of the other files: where it is missing or they differ, the files are of two reports."""


@uncollected()
def report(
    cells: Sequence[Cell],
    title: str,
    baseline: str | None,
    folder: Path,
    console: Console | None = None,
    layout: Layout = PLAIN,
    reference: Mapping[str, Mapping[str, str]] | None = None,
    with_reference: bool = False,
) -> Table:
    """Write report.html, report.md, report.tex (a document), table.tex (to \\input), report.csv and report.json; print
    the table.

    The same run folders give the same bytes.

    Args:
        baseline: name of the row that the others are compared with, or None.
        layout: what the rows and columns are; without one, those of the runs.
        reference: label -> column -> published number, shown as further rows.
        with_reference: show the layout's published numbers beside ours.

    Raises:
        UserError: nothing to show, an unknown baseline, or a row that mixes more than seeds.
        StageError: a file cannot be written.
    """
    console = console or Console()
    table = build_table(cells, title, baseline, layout, reference or {}, with_reference)
    placed, _ = arranged(cells, layout)
    texts = {
        "report.md": render_markdown(table),
        "report.tex": render_document(table),
        "table.tex": render_latex(table),
        "report.csv": render_csv(table),
    }
    if len(placed) <= MOST_ON_PAGE:
        texts[PAGE] = render_page(table, cost_table(cells, layout), placed)
    texts[SEAL] = to_json({**provenance(table), "files": _sums(texts)}, indent=None)
    write_texts(folder, texts, SEAL, outdated=() if PAGE in texts else (PAGE,))
    if PAGE not in texts:
        console.print(f"No {PAGE}: more than {MOST_ON_PAGE} runs make it too large", highlight=False)
    console.print(render_terminal(table, console))
    if table.left_out:
        console.print(f"Not in this layout: {', '.join(table.left_out)}", highlight=False, markup=False)
    console.print(f"\nWritten to {folder}: {', '.join(texts)}", highlight=False, markup=False)
    return table


def _sums(texts: Mapping[str, str]) -> dict[str, str]:
    """File -> SHA-256."""
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
