"""The base of every configuration class."""

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Schema(BaseModel):
    """Frozen, and strict about names: an unknown key is an error, never silently dropped."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, protected_namespaces=(), allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Python takes True for 1: `batch_size: yes` would train with batches of one."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("must not be true or false")
        return value
