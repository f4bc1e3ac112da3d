"""Layers: what an axis value, a preset, a row or a cell of a grid changes in the configuration of its runs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config import SHORTHANDS, merge
from pipeline.errors import UserError, did_you_mean

Layer = dict[str, Any]
"""Keys of a run's configuration, nested; before it is resolved also `base` (files) and `use` (presets)."""

INCLUDES = ("base", "use")


def written_out(layer: Any, folder: Path, where: str) -> Layer:
    """A layer as its file has it, in one form: dotted keys nested, short forms written out, base files found from
    `folder`. Text, or a list of texts, names presets.

    Raises:
        UserError: it is neither, or a key is not text.
    """
    if isinstance(layer, str):
        layer = {"use": layer}
    if isinstance(layer, list):
        layer = {"use": layer}
    if not isinstance(layer, Mapping):
        raise UserError(f"{where} = {layer!r}: must hold keys and values, or name presets")
    found: Layer = {}
    for key, value in layer.items():
        if key in INCLUDES:
            found[key] = _names(value, f"{where}.{key}")
        else:
            found = overlay(found, nested(str(key), value))
    if "base" in found:
        found["base"] = [str((folder / name).resolve()) for name in found["base"]]
    return found


def _names(value: Any, where: str) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{where} = {value!r}: must be a name or a list of names")
    return names


def nested(key: str, value: Any) -> Layer:
    """`training.epochs` and 3 as {training: {epochs: 3}}; `method` and a name as {method: {name: ...}}."""
    *groups, last = key.split(".")
    if not groups and last in SHORTHANDS and isinstance(value, str):
        groups, last = [last], SHORTHANDS[last]
    found: Layer = {last: value}
    for group in reversed(groups):
        found = {group: found}
    return found


def dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys down to what is no group of keys."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def overlay(below: Layer, above: Layer) -> Layer:
    """`above` over `below`, neither changed: groups of keys are merged, all else is replaced."""
    found = dict(below)
    for key, value in above.items():
        old = found.get(key)
        found[key] = overlay(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return found


def interpolated(values: Layer, path: Path) -> Layer:
    """With `${...}` replaced; configurations without, as most are, are returned as they are."""
    if not any("${" in text for text in _texts(values)):
        return values
    try:
        found = OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {str(error).splitlines()[0]}") from None
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def _texts(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, Mapping | list):
        for value in values.values() if isinstance(values, Mapping) else values:
            yield from _texts(value)


class Presets:
    """The named layers of a grid; resolves the layers that use them."""

    def __init__(self, layers: Mapping[str, Layer], path: Path) -> None:
        self._layers, self._path = layers, path
        self._files: dict[str, Layer] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._layers

    def resolve(self, layer: Layer, where: str, trail: Sequence[str] = ()) -> Layer:
        """The layer over its presets over its base files, without `base` and `use`.

        Raises:
            UserError: unknown preset, presets in a circle, a faulty base file, or a key that is set elsewhere.
        """
        found: Layer = {}
        for file in layer.get("base", ()):
            found = overlay(found, self._file(file))
        for name in layer.get("use", ()):
            if name in trail:
                raise UserError(f"{self._path}: presets.{name}: uses itself ({' -> '.join([*trail, name])})")
            found = overlay(found, self.resolve(self.named(name, where), f"presets.{name}", [*trail, name]))
        return overlay(found, self._own(layer, where))

    def named(self, name: str, where: str) -> Layer:
        """The layer of a preset.

        Raises:
            UserError: there is none of that name.
        """
        if name not in self._layers:
            known = f" (presets: {', '.join(self._layers)})" if self._layers else " (the grid has none)"
            raise UserError(
                f"{self._path}: {where}: there is no preset {name!r}{did_you_mean(name, self._layers)}{known}"
            )
        return self._layers[name]

    def _file(self, file: str) -> Layer:
        if file not in self._files:
            self._files[file] = merge({"base": [file]}, self._path)
        return self._files[file]

    def _own(self, layer: Layer, where: str) -> Layer:
        for key, words in (("name", "runs are named after model, method, tuning and seed"),
                           ("seed", "in a grid it is seeds: [42, 43]")):  # fmt: skip
            if key in layer:
                raise UserError(f"{self._path}: {where}: {key} is no key of a layer: {words}")
        return {key: value for key, value in layer.items() if key not in INCLUDES}
