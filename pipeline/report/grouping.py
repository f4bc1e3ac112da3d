"""Cells from bare run folders: runs whose configurations differ in the seed only make one row."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from pipeline.config import RunConfig, signature
from pipeline.errors import UserError
from pipeline.report.cell import Cell
from pipeline.report.collect import damage, read_config, uncollected
from pipeline.report.differences import flat
from pipeline.run_folder import RunFolder


@uncollected()
def cells_of(folders: Sequence[RunFolder]) -> list[Cell]:
    """One cell for each folder; pretrained rows first, the others in the order of the folders, at the end those whose
    configuration cannot be read: each a row of its own, without numbers.

    Raises:
        UserError: no folder holds a run.
    """
    groups: dict[str, list[tuple[RunFolder, RunConfig]]] = {}
    damaged: list[tuple[RunFolder, UserError]] = []
    for folder in folders:
        try:
            config = _config(folder)
        except UserError as error:
            damaged.append((folder, error))
            continue
        groups.setdefault(signature(config.model_copy(update={"seed": 0})), []).append((folder, config))
    runs = sorted(groups.values(), key=lambda group: group[0][1].tuning.kind != "none")
    labels = labels_of([group[0][1] for group in runs])
    if not runs and damaged:
        raise damaged[0][1]
    found = [
        Cell(
            label, None if config.tuning.kind == "none" else config.seed, folder, config.evaluation.tasks, config=config
        )
        for label, group in zip(labels, runs, strict=True)
        for folder, config in group
    ]
    tasks = tuple(dict.fromkeys(task for cell in found for task in cell.tasks))
    names = _texts([folder.root for folder, _ in damaged])
    return found + [
        Cell(name, None, folder, tasks, damage(error, folder))
        for name, (folder, error) in zip(names, damaged, strict=True)
    ]


def _config(folder: RunFolder) -> RunConfig:
    config = read_config(folder)
    if config is None:
        raise UserError(f"{folder.root}: not a run folder (it has no {folder.config.name})")
    return config


def labels_of(configs: Sequence[RunConfig]) -> list[str]:
    """Row names, told apart by the keys in which equally named configurations differ."""
    alike: dict[str, list[RunConfig]] = defaultdict(list)
    for config in configs:
        alike[_name(config)].append(config)
    settings = {name: _settings(group) for name, group in alike.items()}
    taken = {name: iter(texts) for name, texts in settings.items()}
    return [", ".join([_name(config), *next(taken[_name(config)])]) for config in configs]


def _name(config: RunConfig) -> str:
    if config.tuning.kind == "none":
        return "pretrained" if config.method.name == "causal" else f"{config.method.name} (untrained)"
    return f"{config.method.name} ({config.tuning.kind})"


def _settings(configs: Sequence[RunConfig]) -> list[list[str]]:
    """Of each configuration the settings that tell it from the others, in words: `learning_rate 0.001`."""
    values = [{key: leaf for path, text in flat(config).items() for key, leaf in leaves(path, json.loads(text))}
              for config in configs]  # fmt: skip
    keys = sorted({key for found in values for key in found})
    differing = [key for key in keys if len({str(found.get(key)) for found in values}) > 1]
    names = {key: _short(key, differing) for key in differing}
    texts = {key: _texts([found.get(key) for found in values]) for key in differing}
    return [
        [f"{names[key]} {texts[key][number]}" for key in differing if key in values[number]]
        for number in range(len(configs))
    ]


def leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Dotted keys down to plain values; entries of lists are counted from 1."""
    children = value.items() if isinstance(value, dict) else enumerate(value, 1) if isinstance(value, list) else ()
    if not children or not value:
        yield path, value
    for key, child in children:
        yield from leaves(f"{path}.{key}", child)


def _short(key: str, others: Sequence[str]) -> str:
    """As few of its last parts as tell it from the other keys."""
    parts = key.split(".")
    ends = (".".join(parts[-length:]) for length in range(1, len(parts) + 1))
    return next(
        end for end in ends if not end.isdigit() and [key] == [k for k in others if f".{k}".endswith(f".{end}")]
    )


def _texts(values: Sequence[Any]) -> list[str]:
    """Plain values as text; paths by their last part where that tells them apart."""
    texts = ["none" if value in (None, [], {}) else str(value) for value in values]
    names = [PurePath(text).name or text for text in texts]
    return names if len(set(names)) == len(set(texts)) else texts
