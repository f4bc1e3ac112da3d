"""In which keys configurations differ, apart from the seed and fields that cannot change what is trained."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.config import UNSIGNED, RunConfig, as_dict

IGNORED = ("seed", *UNSIGNED)
UNUSED_BY_PRETRAINED = ("data", "training")


def flat(config: RunConfig) -> dict[str, str]:
    """Dotted key -> value as JSON, without the ignored keys."""
    ignored = (*IGNORED, *UNUSED_BY_PRETRAINED) if config.tuning.kind == "none" else IGNORED
    return {key: json.dumps(value, ensure_ascii=False, sort_keys=True)
            for key, value in _leaves("", as_dict(config), frozenset(ignored))}  # fmt: skip


def differing_keys(configs: Sequence[RunConfig]) -> list[str]:
    """The dotted keys that do not have one value in all configurations, sorted."""
    flattened = [flat(config) for config in configs]
    keys = {key for values in flattened for key in values}
    return sorted(key for key in keys if len({values.get(key) for values in flattened}) > 1)


def _leaves(prefix: str, values: dict[str, Any], ignored: frozenset[str]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        if key in ignored:
            continue
        if isinstance(value, dict) and value:
            yield from _leaves(f"{key}.", value, ignored)
        else:
            yield key, value
