"""The configuration of one run: loading, overriding, checking, signing."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field, ValidationError, model_validator

from pipeline.audit.config import AuditConfig
from pipeline.errors import UserError
from pipeline.evaluate.config import EvaluationConfig
from pipeline.faults import explain as explain
from pipeline.faults import keys_of
from pipeline.model.config import MethodConfig, ModelConfig, TuningConfig
from pipeline.prepare.config import DataConfig, TemplateTexts
from pipeline.prepare.filter_config import FiltersConfig
from pipeline.schema import Schema
from pipeline.train.config import TrainingConfig
from pipeline.yaml_file import read_yaml as read_yaml

SCHEMA_VERSION = 1
UNSIGNED = ("name", "model.kernels", "paths", "evaluation", "training.checkpoint_every", "training.keep_checkpoints",
            "training.log_every", "training.trackers", "training.grace_seconds", "training.compile",
            "training.zero", "audit")  # fmt: skip
"""Fields that cannot change what is trained. Evaluation results carry a signature of their own."""

LATER: dict[str, Any] = {
    "data.filters": FiltersConfig().model_dump(mode="json"),
    "training.micro_batch_tokens": None,
    "data.sources.files": None,
    "data.sources.header": [],
    "data.sources.lines": 1,
    "data.sources.labels": None,
    "data.sources.constants": {},
    "data.sources.answered_by": None,
    "data.sources.unique": None,
    "data.sources.count": None,
    "data.sources.weight": None,
    "data.sources.seed": 0,
    "data.validation_fraction": 0.0,
    "data.turns": "last",
    "method.embeddings": "shared",
    "training.validate_every": None,
    "training.export": "last",
}
"""Keys younger than the schema version and their defaults: left out where they have it, so that runs from before keep
their signature. A path goes through every item of a list."""

SHORTHANDS = {"model": "name", "method": "name", "tuning": "kind"}
"""`method: bitune` means `method: {name: bitune}`; expanded before merging, so that an override
`method.theta_init=0.1` refines the method of the file instead of replacing it."""


Seed = Annotated[int, Field(ge=0, lt=2**32)]


GRID_KEYS = ("rows", "axes", "cells", "presets")
"""Keys that tell the file of a grid from that of a run."""


class PathsConfig(Schema):
    """Where results go. Relative paths start at the working directory."""

    runs: Path = Path("runs")
    cache: Path = Path(".cache/dualtune")


class RunConfig(Schema):
    """Everything that defines one run: one model, one method, one seed."""

    name: Annotated[str, Field(pattern=r"^[\w+-][\w.+-]*$", max_length=150)] = "run"
    """Part of the run folder's name."""
    seed: Seed = 42
    model: ModelConfig
    method: MethodConfig = MethodConfig.model_validate("causal")
    tuning: TuningConfig = TuningConfig()
    data: DataConfig | None = None
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    audit: AuditConfig = AuditConfig()
    paths: PathsConfig = PathsConfig()

    @property
    def own_template(self) -> TemplateTexts | None:
        """The template of the user's own, if data are prepared with one: our tasks then ask in it as well."""
        template = self.data.template if self.data else None
        return template if isinstance(template, TemplateTexts) else None

    @model_validator(mode="after")
    def _needs_data(self) -> "RunConfig":
        if self.tuning.kind != "none" and self.data is None:
            raise ValueError("data is missing: a run that trains (tuning.kind other than none) needs data.sources")
        return self

    @model_validator(mode="after")
    def _offloads_one_type(self) -> "RunConfig":
        mixes = self.model.precision == "bf16" and self.tuning.kind not in ("none", "full")
        if mixes and self.training.zero.offload_parameters == "nvme":
            raise ValueError("training.zero.offload_parameters = nvme keeps weights of one type, but adapters are "
                             "float32 beside bf16 weights: use fp32, or offload them to cpu")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _trains_embeddings(self) -> "RunConfig":
        if self.method.embeddings == "separate" and self.tuning.kind not in ("none", "full"):
            raise ValueError(f"method.embeddings = separate needs tuning.kind full: {self.tuning.kind} trains none")
        return self

    @model_validator(mode="after")
    def _holds_out_conversations(self) -> "RunConfig":
        if self.data and self.data.turns == "each" and self.data.validation_fraction:
            raise ValueError("data.turns = each can't hold out rows (data.validation_fraction): those of one "
                             "conversation hold each other's answers, and would be on both sides")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _learns_all_turns(self) -> "RunConfig":
        if self.data is None or self.data.turns != "all" or self.tuning.kind == "none":
            return self
        if not self.method.shares_prompts:
            raise ValueError(f"data.turns = all can't be trained with the method {self.method.name} (scope: input): "
                             "what its rows see depends on what is read at once")  # fmt: skip
        if (stage := self.training.zero.stage) >= 2:
            raise ValueError(f"data.turns = all can't be trained with training.zero.stage = {stage}: it exchanges "
                             "gradients in the order in which they are ready, which is another on ranks whose rows "
                             "have another number of turns; stages 0 and 1 can")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _validates_on_rows(self) -> "RunConfig":
        if self.training.validate_every is not None and not (self.data and self.data.validation_fraction):
            raise ValueError("training.validate_every needs rows to validate on: set data.validation_fraction")
        if self.training.export == "best" and self.training.validate_every is None:
            raise ValueError('training.export = "best" needs validations to choose by: set training.validate_every')
        return self


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file with its `base:` files and dotted overrides (`training.epochs=3`).

    Raises:
        UserError: naming the file, the key, the value and what was allowed.
    """
    check_given_once(overrides)
    values = read_yaml(Path(path))
    if grid_key := next((key for key in GRID_KEYS if key in values), None):
        words = "`dualtune run` and `report` take it, stages take one run"
        raise UserError(f"{path}: is a grid (it has {grid_key}:): {words}")
    return parse_config(merge(values, Path(path), overrides=overrides), str(path), overrides)


def parse_config(values: dict[str, Any], origin: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Check a nested dictionary; `origin` is named in errors, and so are the overrides that set a faulty key."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        blamed = [override for override in overrides if any(_sets(override, key) for key in keys_of(error))]
        given = f" with {' '.join(blamed)}" if blamed else ""
        raise UserError(f"{origin}{given}: " + "; ".join(explain(error, RunConfig))) from None


def _sets(override: str, key: str) -> bool:
    own = override.partition("=")[0]
    return f"{key}.".startswith(f"{own}.") or f"{own}.".startswith(f"{key}.")


def merge(
    values: dict[str, Any], path: Path, *, above: Sequence[dict[str, Any]] = (), overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Merge `values` (read from `path`) over their base files, then the layers `above`, then the overrides."""
    try:
        layers = [*_layers(values, path, ()), *map(_expand, above), *map(_override, overrides)]
        merged = OmegaConf.to_container(OmegaConf.merge(*layers), resolve=True)
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise UserError(f"{path}: {str(error).splitlines()[0]}") from None
    except TypeError:
        given = f" with {' '.join(overrides)}" if overrides else ""
        raise UserError(
            f"{path}{given}: a list, a group of keys and a value cannot be merged; "
            "a list is replaced as a whole, as in data.sources=[{path: my.jsonl}]"
        ) from None
    assert isinstance(merged, dict)
    return {str(key): value for key, value in merged.items()}


def check_given_once(overrides: Sequence[str]) -> None:
    """The last one would win unseen.

    Raises:
        UserError: two overrides of one key.
    """
    keys = [override.partition("=")[0] for override in overrides]
    if twice := [override for override, key in zip(overrides, keys, strict=True) if keys.count(key) > 1]:
        raise UserError(f"{' '.join(twice)}: a key can be given once (several values make a grid: seeds=[42,43])")


def _override(override: str) -> Any:
    return OmegaConf.create(override_layer(override))


def override_layer(override: str) -> dict[str, Any]:
    """`training.epochs=3` as {training: {epochs: 3}}, short forms written out.

    Raises:
        UserError: it is not of the form key=value, or the value is not YAML.
    """
    key, separator, _ = override.partition("=")
    if not separator or not key:
        raise UserError(f"override {override!r} is not of the form key=value, for example training.epochs=3")
    try:
        return expand(OmegaConf.to_container(OmegaConf.from_dotlist([override])))
    except (OmegaConfBaseException, yaml.YAMLError):
        raise UserError(f"override {override!r}: {override.partition('=')[2]!r} is not a YAML value") from None


def _expand(values: Any) -> Any:
    return OmegaConf.create(expand(values))


def expand(values: Any) -> dict[str, Any]:
    """The layer with its shorthands written out."""
    return {
        key: {SHORTHANDS[key]: value} if key in SHORTHANDS and isinstance(value, str) else value
        for key, value in values.items()
    }


def _layers(values: dict[str, Any], path: Path, seen: tuple[Path, ...]) -> list[Any]:
    """The base layers of a file's values, outermost first, then its own keys."""
    if path.resolve() in seen:
        raise UserError(f"{path}: its base files include each other in a circle")
    own = dict(values)
    bases = own.pop("base", [])
    if isinstance(bases, str):
        bases = [bases]
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise UserError(f"{path}: base: must be a list of YAML files, not {bases!r}")
    files = [path.parent / base for base in bases]
    layers = [layer for file in files for layer in _layers(read_yaml(file), file, (*seen, path.resolve()))]
    return [*layers, _expand(own)]


def as_dict(config: Schema) -> dict[str, Any]:
    """Plain values, defaults included, as JSON would hold them."""
    values: dict[str, Any] = config.model_dump(mode="json")
    return values


def to_yaml(config: Schema) -> str:
    """The resolved configuration as YAML that `load_config` reads back."""
    return yaml.safe_dump(as_dict(config), sort_keys=False, allow_unicode=True)


def digest(values: Any) -> str:
    """First 16 hex digits of the SHA-256 of canonical JSON: equal on every machine."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def signature(config: RunConfig) -> str:
    """Identity of what is trained: the resolved configuration minus `UNSIGNED`, plus the schema version.

    A pretrained model (tuning.kind none) does not depend on seed, data or training.
    """
    global _latest
    if _latest is None or _latest[0] is not config:  # a look at a run asks for it several times
        _latest = config, _signature(config)
    return _latest[1]


_latest: tuple[RunConfig, str] | None = None


def _signature(config: RunConfig) -> str:
    values = config.model_dump(mode="json", exclude=_UNTRAINED if config.tuning.kind == "none" else _EXCLUDED)
    for parents, defaults in _DEFAULTS.items():
        _drop(values, parents, defaults)
    return digest({"schema": SCHEMA_VERSION, "config": values})


def _tree(paths: Sequence[str]) -> dict[str, Any]:
    """Dotted paths as pydantic takes what to leave out: `{"name": True, "model": {"kernels": True}}`."""
    tree: dict[str, Any] = {}
    for path in paths:
        *parents, key = path.split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[key] = True
    return tree


def _by_parents(defaults: dict[str, Any]) -> dict[tuple[str, ...], dict[str, Any]]:
    """Dotted path -> value as (parents) -> {key: value}."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for path, value in defaults.items():
        *parents, key = path.split(".")
        found.setdefault(tuple(parents), {})[key] = value
    return found


# A grid signs thousands of configurations: what is left out is worked out once.
_EXCLUDED = _tree(UNSIGNED)
_UNTRAINED = _tree((*UNSIGNED, "seed", "data", "training"))
_DEFAULTS = _by_parents(LATER)


def _drop(values: Any, parents: Sequence[str], defaults: dict[str, Any]) -> None:
    """Remove keys that have their default, below `parents`, in every item of the lists on the way."""
    if isinstance(values, list):
        for item in values:
            _drop(item, parents, defaults)
    elif isinstance(values, dict) and parents:
        _drop(values.get(parents[0]), parents[1:], defaults)
    elif isinstance(values, dict):
        for key, default in defaults.items():
            if key in values and values[key] == default:
                del values[key]
