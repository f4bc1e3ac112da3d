"""The audit of a run's data: prepare them, measure the rows, show what was found."""

from pathlib import Path
from typing import Any

from rich.console import Console

from pipeline.audit.measure import measure
from pipeline.audit.page import render_page
from pipeline.audit.samples import visible
from pipeline.audit.terminal import show
from pipeline.audit.view import View, view_of
from pipeline.config import RunConfig
from pipeline.files import write_text
from pipeline.prepare.evaluation_sets import EvaluationSets, set_configs
from pipeline.prepare.manifest import counted
from pipeline.prepare.preparation import usable_tokenizer
from pipeline.prepare.stage import obtain
from pipeline.run_folder import RunFolder


def audit(config: RunConfig, folder: RunFolder, console: Console, page: Path, processes: int = 1) -> View:
    """Print the audit and write it as a page.

    Args:
        page: HTML file that is written.

    Returns:
        What was shown; its `failed` names the thresholds that are passed.

    Raises:
        UserError: the data can't be prepared at all.
    """
    data = obtain(config, folder, processes)
    assert config.data is not None
    sets, notes = _sets(config)
    notes += _ended_early(data.manifest)
    measures = measure(data, usable_tokenizer(config.model, config.data), sets, config.seed)
    view = view_of(config.name, measures, config.audit.max_percent, notes)
    show(view, console)
    write_text(page, render_page(view))
    return view


def _ended_early(manifest: dict[str, Any]) -> list[str]:
    found = visible(counted(manifest["ended_early"].items()))
    return [f"files can't be read to their end, and nothing tells how many rows are missing: {found}"] if found else []


def _sets(config: RunConfig) -> tuple[EvaluationSets | None, list[str]]:
    """Evaluation sets with local files, unless the filter has compared the rows; and which were not compared."""
    assert config.data is not None
    overlap, evaluation = config.data.filters.overlap, config.evaluation
    if overlap.mode != "ignore":
        return None, []
    local = tuple(task for task in evaluation.tasks if task in evaluation.data)
    others = [task for task in evaluation.tasks if task not in local]
    notes = [f"not compared, for want of a file in evaluation.data: {', '.join(others)}"] if others else []
    configs = set_configs(evaluation.model_copy(update={"tasks": local}), overlap.files)
    return (EvaluationSets.open(configs, overlap.ngram) if configs else None), notes
