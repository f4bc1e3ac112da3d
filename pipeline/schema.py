"""The base of every configuration class."""

from pydantic import BaseModel, ConfigDict


class Schema(BaseModel):
    """Frozen, and strict about names: an unknown key is an error, never silently dropped."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, protected_namespaces=())
