"""Configuration of the model: base weights, method (branches over the prompt) and tuning."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from pipeline.errors import UserError, did_you_mean
from pipeline.files import expanded
from pipeline.model.patterns import PATTERNS, Scope
from pipeline.schema import Schema

PARAMETERS = ("sinks", "window", "full_rows", "scope")
"""Keys of a branch that only some patterns have."""


def _known_pattern(name: str) -> str:
    if name not in PATTERNS:
        raise ValueError(f"must be one of {', '.join(map(repr, PATTERNS))}{did_you_mean(name, PATTERNS)}")
    return name


class BranchConfig(Schema):
    """One reading of the prompt: which keys a token sees, and whose weights make its keys and values."""

    pattern: Annotated[str, AfterValidator(_known_pattern)]
    weights: Literal["answer", "own"] = "answer"
    sinks: Annotated[int, Field(ge=0)] | None = None
    """Of slippery attention, as the following three: see `pipeline.model.patterns.Sparsity`."""
    window: Annotated[int, Field(ge=0)] | None = None
    full_rows: Annotated[int, Field(ge=1)] | None = None
    scope: Scope | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_parameters(cls, data: Any) -> Any:
        """The defaults of the pattern's own parameters, so that they are part of the resolved configuration."""
        name = data.get("pattern") if isinstance(data, dict) else None
        if not isinstance(name, str) or name not in PATTERNS:
            return data
        return PATTERNS[name].parameters | {key: value for key, value in data.items() if value is not None}

    @model_validator(mode="after")
    def _check_parameters(self) -> "BranchConfig":
        odd = [key for key in self.parameters if key not in PATTERNS[self.pattern].parameters]
        if odd:
            having = ", ".join(name for name, pattern in PATTERNS.items() if odd[0] in pattern.parameters)
            raise ValueError(f"the pattern {self.pattern!r} has no {', '.join(odd)}: that is a key of {having}")
        return self

    @model_serializer(mode="wrap")
    def _without_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Parameters that a pattern hasn't are no part of a run's signature."""
        return {key: value for key, value in handler(self).items() if value is not None}

    @property
    def parameters(self) -> dict[str, Any]:
        """The pattern's parameters that are set."""
        return {key: getattr(self, key) for key in PARAMETERS if getattr(self, key) is not None}


NAMED: dict[str, list[dict[str, str]]] = {
    "causal": [{"pattern": "causal"}],
    "naive_bidirectional": [{"pattern": "bidirectional"}],
    "no_mixing": [{"pattern": "bidirectional", "weights": "own"}],
    "shared_weights": [{"pattern": "causal"}, {"pattern": "bidirectional"}],
    "only_causal": [{"pattern": "causal"}, {"pattern": "causal", "weights": "own"}],
    "anti_causal": [{"pattern": "causal"}, {"pattern": "anti_causal", "weights": "own"}],
    "bitune": [{"pattern": "causal"}, {"pattern": "bidirectional", "weights": "own"}],
    "slippery_input": [{"pattern": "slippery", "scope": "input"}],
}
PRESETS = NAMED | {
    name: [{"pattern": name}] for name in PATTERNS if name not in NAMED and [{"pattern": name}] not in NAMED.values()
}
"""The methods that have a name: those above, and of each further pattern the one that reads the prompt by it alone."""


class MethodConfig(Schema):
    """A method is a list of one or two branches over the prompt (Bitune, section 2 and its ablations).

    With two branches the answer reads keys and values mixed per layer,
    (1 - alpha) * first + alpha * second with alpha = |theta| / (theta_init + |theta|).
    """

    name: str = "custom"
    branches: Annotated[tuple[BranchConfig, ...], Field(min_length=1, max_length=2)]
    theta_init: Annotated[float, Field(gt=0)] = 0.01
    embeddings: Literal["shared", "separate"] = "shared"
    """Does a prompt branch with its own weights have its own input embeddings too? Only trained by tuning full."""

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, data: Any) -> Any:
        if isinstance(data, str):
            data = {"name": data}
        if isinstance(data, dict) and "branches" not in data:
            name = data.get("name")
            if name not in PRESETS:
                close = did_you_mean(str(name), PRESETS)
                raise ValueError(
                    f"unknown method {name!r}{close} (use one of {', '.join(PRESETS)}, or list its 'branches')"
                )
            data = {**data, "name": name, "branches": PRESETS[name]}
        return data

    @model_validator(mode="after")
    def _check_branches(self) -> "MethodConfig":
        if len(self.branches) == 2 and self.branches[0].weights != "answer":
            raise ValueError("the first of two branches must have weights: answer")
        if self.embeddings == "separate" and self.branches[-1].weights == "answer":
            raise ValueError("embeddings: separate is for a branch with weights: own")
        if any(branch.scope == "input" for branch in self.branches) and (
            len(self.branches) == 2 or self.branches[0].weights == "own"
        ):
            raise ValueError(
                "scope: input is for a single branch with weights: answer, since rows of the answer follow it too; "
                "use scope: prompt"
            )
        if self.name in PRESETS and [b.model_dump() for b in self.branches] != [
            BranchConfig.model_validate(b).model_dump() for b in PRESETS[self.name]
        ]:
            raise ValueError(f"the branches are not those of the preset {self.name!r}: choose another name")
        return self

    @property
    def shares_prompts(self) -> bool:
        """Do all answers to one prompt read the same of it? Not where prompt and answer are one input."""
        return all(branch.scope != "input" for branch in self.branches)


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


class TuningConfig(Schema):
    """What is trained: nothing (`none`: the pretrained model), all weights (`full`), or PEFT adapters."""

    kind: Annotated[Literal["none", "full", "lora", "dora", "ia3", "vera"], BeforeValidator(_lower)] = "lora"
    rank: Annotated[int, Field(ge=1)] = 8
    alpha: Annotated[float, Field(gt=0)] = 1.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: tuple[str, ...] = ()
    """Leaf names such as q_proj; empty: every linear layer of MLP and self-attention."""


def _not_empty(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value


class ModelConfig(Schema):
    """The pretrained base model."""

    name: Annotated[str, AfterValidator(_not_empty)]
    """A local folder in Hugging Face form, or a hub id."""
    revision: str | None = None
    precision: Literal["bf16", "fp32"] = "bf16"
    """Arithmetic and frozen weights; trained weights and mixing are always float32."""
    trust_remote_code: bool = False
    gradient_checkpointing: bool = False
    kernels: Literal["auto", "sdpa", "flex", "varlen"] = "auto"
    """Of attention in training; the choice is proven on the device at the start, see docs/scale.md."""


def refuse_missing_folder(model: ModelConfig) -> None:
    """A name that can only be meant as a local folder is not looked for on the hub, which takes long when offline.

    Raises:
        UserError: it is not there.
    """
    path = expanded(model.name)
    is_local = path.is_absolute() or model.name.count("/") > 1 or model.name.startswith((".", "~"))
    beside = path.parent != Path() and path.parent.is_dir()
    if (is_local or beside) and not path.is_dir():
        known = sorted(folder.name for folder in path.parent.glob("*/")) if path.parent.is_dir() else []
        advice = f"{path.parent} has {', '.join(known)}" if known else f"{path.parent} holds no folders"
        raise UserError(f"model.name = {model.name!r}: no such folder; {advice}")
