"""Every number of `training` with values that it can't have: the key is named, and what was allowed."""

from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.config import parse_config
from pipeline.errors import UserError
from pipeline.schema import Schema
from pipeline.train.config import TrainingConfig, ZeroConfig

NO_NUMBERS = ["many", [], {"a": 1}, True, float("nan"), float("inf"), float("-inf"), -1, -1e-9]


def numbers(schema: type[Schema], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Key, and type and bounds as JSON schema has them, of each field that takes one number."""
    for name, field in schema.model_json_schema()["properties"].items():
        for form in field.get("anyOf", [field]):
            if form.get("type") in ("number", "integer"):
                yield f"{prefix}.{name}", form


def wrong(form: dict[str, Any]) -> list[Any]:
    beyond = [form[key] for key in ("exclusiveMinimum", "exclusiveMaximum") if key in form]
    beyond += [form["maximum"] + 1] if "maximum" in form else []
    return [*NO_NUMBERS, *beyond, *([1.5] if form["type"] == "integer" else [])]


FIELDS = [*numbers(TrainingConfig, "training"), *numbers(ZeroConfig, "training.zero")]


def test_no_field_is_forgotten() -> None:
    keys = {key.removeprefix("training.") for key, _ in FIELDS}
    assert keys == {
        "epochs", "max_steps", "batch_size", "micro_batch_size", "micro_batch_tokens", "learning_rate", "warmup_ratio",
        "weight_decay", "epsilon", "max_grad_norm", "validate_every", "checkpoint_every", "keep_checkpoints",
        "grace_seconds", "log_every", "zero.stage",
    }  # fmt: skip
    assert all("minimum" in form or "exclusiveMinimum" in form for _, form in FIELDS)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, form in FIELDS for value in wrong(form)], ids=str)
def test_a_number_that_cannot_be_is_named(key: str, value: Any) -> None:
    refused(key, value)


@pytest.mark.parametrize("value", [0.9, [0.9], [0.9, 0.9, 0.9], [0.9, 1], [-0.1, 0.9], [0.9, float("nan")], "high"])
def test_betas_are_two_numbers_below_one(value: Any) -> None:
    refused("training.betas", value)


def refused(key: str, value: Any) -> None:
    values: Any = value
    for name in reversed(key.split(".")):
        values = {name: values}
    with pytest.raises(UserError) as caught:
        parse_config({"model": {"name": "m"}, "data": {"sources": [{"path": "x.jsonl"}]}, **values}, "file.yaml")
    text = str(caught.value)
    assert text.startswith(f"file.yaml: {key}") and "\n" not in text and caught.value.status == 2, text
    assert any(word in text for word in ("must be", "must not be", "must have", "must hold", "is missing")), text
