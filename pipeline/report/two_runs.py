"""In what two runs differ: configuration, data, training, and the documents that one answered better."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from pipeline.config import RunConfig, as_dict
from pipeline.errors import UserError
from pipeline.files import read_file, read_json
from pipeline.report.collect import read_config
from pipeline.report.cost import COSTS, PREFIX, cost_of
from pipeline.report.curves import read_curves
from pipeline.report.documents import read_values
from pipeline.report.grouping import leaves
from pipeline.report.paired import are_right_or_wrong, mcnemar_p
from pipeline.report.record import UnusableError
from pipeline.report.scale import full_score
from pipeline.report.statistics import is_number
from pipeline.report.text import printable, shortened
from pipeline.run_folder import RunFolder

Pair = tuple[str, str, str]
"""What is compared, and its value in the first and in the second run."""


@dataclass(frozen=True)
class Flips:
    """One task: the scores, and the documents that the second run answered better (`gained`) or worse (`lost`), as
    numbers of their records. `p` is that of so uneven a split, by the test that `test` names.

    `fault` says why the documents cannot be compared; then there are none.
    """

    task: str
    metric: str
    scores: tuple[float, float]
    gained: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    test: str = ""
    p: float | None = None
    fault: str = ""


@dataclass(frozen=True)
class TwoRuns:
    """Everything in which two runs differ."""

    folders: tuple[Path, Path]
    configuration: list[Pair]
    data: list[Pair]
    training: list[Pair]
    losses: list[tuple[int, float, float]]
    """Update, loss of the first and of the second run, at common updates."""
    tasks: list[Flips]
    left_out: list[str]
    """Tasks that only one of them is scored on."""


def compare_runs(first: Path, second: Path) -> TwoRuns:
    """Read both run folders; what is not there yet is left out.

    Raises:
        UserError: one of them is not a run folder, or both are the same.
    """
    folders = RunFolder(first), RunFolder(second)
    configs = [_config(folder) for folder in folders]
    if first.resolve() == second.resolve():
        raise UserError(f"{first}: is compared with itself")
    results = [_json(folder.train_result) for folder in folders]
    manifests = [_json(folder.prepare_manifest) for folder in folders]
    scored = [_scored(folder, config) for folder, config in zip(folders, configs, strict=True)]
    common = [task for task in scored[0] if task in scored[1]]
    return TwoRuns(
        (first, second),
        _differing(*(as_dict(config) for config in configs)),
        _differing(*({key: m.get(key) for key in DATA_KEYS if key in m} for m in manifests)),
        _training(results),
        _losses(folders),
        [_flips(task, folders) for task in common],
        sorted(set(scored[0]) ^ set(scored[1])),
    )


DATA_KEYS = ("key", "rows", "rejected", "dropped", "tokens", "template_hash", "tokenizer_hash", "sources")


def _config(folder: RunFolder) -> RunConfig:
    config = read_config(folder)
    if config is None:
        raise UserError(f"{folder.root}: not a run folder (it has no {folder.config.name})")
    return config


def _json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except OSError:
        return {}
    return content if isinstance(content, dict) else {}


def _scored(folder: RunFolder, config: RunConfig) -> list[str]:
    contents = {task: _json(folder.evaluation(task)) for task in config.evaluation.tasks}
    return [
        task for task, found in contents.items() if isinstance(found.get("metrics"), dict) and "main_metric" in found
    ]


def _differing(first: dict[str, Any], second: dict[str, Any]) -> list[Pair]:
    """Dotted keys with different values."""
    mine, theirs = ({key: value for name in values for key, value in leaves(name, values[name])}
                    for values in (first, second))  # fmt: skip
    keys = [*mine, *(key for key in theirs if key not in mine)]
    return [(key, _shown(mine.get(key)), _shown(theirs.get(key))) for key in keys if mine.get(key) != theirs.get(key)]


def _shown(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _training(results: Sequence[dict[str, Any]]) -> list[Pair]:
    first, second = results
    rows = [(name, _shown(first.get(name)), _shown(second.get(name))) for name in ("steps", "final_loss", "device")]
    trained = {key: kind for key, kind in COSTS.items() if kind.is_of_training}
    rows += [(kind.heading, _cost(key, first), _cost(key, second)) for key, kind in trained.items()]
    return [row for row in rows if row[1:] != ("-", "-")]


def _cost(key: str, result: dict[str, Any]) -> str:
    try:
        return COSTS[key].unit.written(cost_of(f"{PREFIX}{key}", result))
    except UnusableError:
        return "-"


def _losses(folders: Sequence[RunFolder]) -> list[tuple[int, float, float]]:
    """Eight of the updates that both curves hold, the first and the last among them."""
    first, second = (dict(read_curves(folder.metrics).lines["loss"]) for folder in folders)
    common = sorted(first.keys() & second.keys())
    if not common:
        return []
    places = sorted({round(place) for place in np.linspace(0, len(common) - 1, min(8, len(common)))})
    return [(int(common[place]), first[common[place]], second[common[place]]) for place in places]


def _flips(task: str, folders: Sequence[RunFolder]) -> Flips:
    contents = [_json(folder.evaluation(task)) for folder in folders]
    metric = str(contents[0]["main_metric"])
    scores = tuple(_score(content, metric) for content in contents)
    found = Flips(task, metric, (scores[0], scores[1]))
    if contents[0].get("task_hash") != contents[1].get("task_hash"):
        return Flips(task, metric, found.scores, fault="scored on other documents or prompts")
    first, second = (read_values(folder.samples(task), metric) for folder in folders)
    if first is None or second is None or len(first) != len(second):
        return Flips(task, metric, found.scores, fault="the records of the documents are not there")
    change = (first - second) if _less_is_better(contents[0], metric) else (second - first)
    gained, lost = (tuple(map(int, np.flatnonzero(sign * change > 0))) for sign in (1, -1))
    full = full_score(task, metric) or 1
    test = "McNemar" if are_right_or_wrong(first / full, second / full) else "sign test"
    return Flips(task, metric, found.scores, gained, lost, test, mcnemar_p(len(gained), len(lost)))


def _less_is_better(evaluation: dict[str, Any], metric: str) -> bool:
    directions = evaluation.get("higher_is_better")
    return isinstance(directions, dict) and directions.get(metric) is False


def _score(evaluation: dict[str, Any], metric: str) -> float:
    """NaN where there is none."""
    value = evaluation["metrics"].get(metric)
    return float(value) if is_number(value) else float("nan")


def render(found: TwoRuns, documents: int) -> RenderableType:
    """The comparison for a terminal.

    Args:
        documents: how many of the flipped documents of each task are shown.
    """
    parts: list[RenderableType] = [
        Text(f"1: {found.folders[0]}\n2: {found.folders[1]}"),
        *_section("Configuration", found.configuration, "equal"),
        *_section("Data", found.data, "equal, or not prepared"),
        *_section("Training", found.training, "none"),
        *_section("Loss", [(f"update {step}", f"{a:.4f}", f"{b:.4f}") for step, a, b in found.losses], "no curves"),
    ]
    for task in found.tasks:
        parts += [Text(f"\n{_task(task)}", style="bold"), *_documents(task, found.folders, documents)]
    if found.left_out:
        parts.append(Text(f"\nOnly one of them is scored on: {', '.join(found.left_out)}"))
    return Group(*parts)


def _section(title: str, rows: Sequence[Pair], nothing: str) -> list[RenderableType]:
    if not rows:
        return [Text(f"\n{title}: {nothing}", style="bold")]
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("", "1", "2"):
        grid.add_column(heading, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(printable(text)) for text in row))
    return [Text(f"\n{title}", style="bold"), grid]


def _task(found: Flips) -> str:
    first, second = found.scores
    text = f"{found.task}, {found.metric}: {first:.4f} and {second:.4f}"
    if found.fault:
        return f"{text}; documents not compared: {found.fault}"
    split = f"{len(found.gained)} documents score better in 2, {len(found.lost)} worse"
    return f"{text}; {split} ({found.test}, p = {found.p:.3g})"


def _documents(found: Flips, folders: Sequence[Path], count: int) -> list[RenderableType]:
    """The first flipped documents with both answers."""
    places = sorted([*found.gained, *found.lost])[:count]
    if not places:
        return []
    try:
        lines = [read_file(RunFolder(folder).samples(found.task)).splitlines() for folder in folders]
        rows = [_document(*(json.loads(each[place]) for each in lines)) for place in places]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return [Text(f"the records of these documents are damaged ({type(error).__name__})", style="yellow")]
    more = len(found.gained) + len(found.lost) - len(places)
    _, *grid = _section(f"{found.task}: documents", rows, "")
    return [*grid, *([Text(f"and {more} more", style="dim")] if more else [])]


def _document(first: dict[str, Any], second: dict[str, Any]) -> Pair:
    right = _choice(first, first.get("answer"))
    return f"document {first.get('doc_id')}, right: {right}", _answer(first), _answer(second)


def _answer(record: dict[str, Any]) -> str:
    if "prediction" in record:
        return _choice(record, record["prediction"])
    return _short(record.get("extracted") or record.get("responses") or record.get("log_likelihoods"))


def _choice(record: dict[str, Any], place: Any) -> str:
    choices = record.get("choices")
    return _short(choices[place] if isinstance(choices, list) and isinstance(place, int) else place)


def _short(value: Any) -> str:
    return shortened(_shown(value), 60)
