"""Cells from bare run folders: runs whose configurations differ in the seed only make one row."""

from collections import defaultdict
from collections.abc import Sequence

from pipeline.config import RunConfig, signature
from pipeline.errors import UserError
from pipeline.report.collect import Cell, read_config
from pipeline.report.differences import differing_keys, flat
from pipeline.run_folder import RunFolder


def cells_of(folders: Sequence[RunFolder]) -> list[Cell]:
    """One cell for each folder; pretrained rows first, the others in the order of the folders.

    Raises:
        UserError: a folder holds no run.
    """
    groups: dict[str, list[tuple[RunFolder, RunConfig]]] = {}
    for folder in folders:
        config = read_config(folder)
        if config is None:
            raise UserError(f"{folder.root}: not a run folder (it has no {folder.config.name})")
        groups.setdefault(signature(config.model_copy(update={"seed": 0})), []).append((folder, config))
    runs = sorted(groups.values(), key=lambda group: group[0][1].tuning.kind != "none")
    labels = labels_of([group[0][1] for group in runs])
    return [
        Cell(label, None if config.tuning.kind == "none" else config.seed, folder, config.evaluation.tasks)
        for label, group in zip(labels, runs, strict=True)
        for folder, config in group
    ]


def labels_of(configs: Sequence[RunConfig]) -> list[str]:
    """Row names, told apart by the keys in which equally named configurations differ."""
    alike: dict[str, list[RunConfig]] = defaultdict(list)
    for config in configs:
        alike[_name(config)].append(config)
    keys = {name: differing_keys(group) for name, group in alike.items()}
    return [_label(config, keys[_name(config)]) for config in configs]


def _name(config: RunConfig) -> str:
    if config.tuning.kind == "none":
        return "pretrained" if config.method.name == "causal" else f"{config.method.name} (untrained)"
    return f"{config.method.name} ({config.tuning.kind})"


def _label(config: RunConfig, keys: Sequence[str]) -> str:
    values = flat(config)
    return ", ".join([_name(config), *(f"{key}={values.get(key, 'null')}" for key in keys)])
