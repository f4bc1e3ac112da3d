"""In which keys configurations differ, apart from the seed and fields that cannot change what is trained."""

import json
from collections.abc import Sequence
from typing import Any

from pipeline.config import UNSIGNED, RunConfig, as_dict

IGNORED = ("seed", *UNSIGNED)
UNUSED_BY_PRETRAINED = ("data", "training")


def flat(config: RunConfig) -> dict[str, str]:
    """Dotted key -> value as JSON, without the ignored keys."""
    ignored = (*IGNORED, *UNUSED_BY_PRETRAINED) if config.tuning.kind == "none" else IGNORED
    values = _flatten("", as_dict(config))
    return {key: value for key, value in values.items() if not any(_is_under(key, parent) for parent in ignored)}


def differing_keys(configs: Sequence[RunConfig]) -> list[str]:
    """The dotted keys that do not have one value in all configurations, sorted."""
    flattened = [flat(config) for config in configs]
    keys = {key for values in flattened for key in values}
    return sorted(key for key in keys if len({values.get(key) for values in flattened}) > 1)


def _is_under(key: str, parent: str) -> bool:
    return key == parent or key.startswith(f"{parent}.")


def _flatten(prefix: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not value:
        return {prefix: json.dumps(value, ensure_ascii=False, sort_keys=True)}
    children = [_flatten(f"{prefix}.{key}" if prefix else str(key), child) for key, child in value.items()]
    return {key: text for child in children for key, text in child.items()}
