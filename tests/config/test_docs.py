"""The configuration reference names every key with its default; the documents link to files that exist."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import PydanticUndefined

from launch.grid import GridConfig
from pipeline.config import RunConfig
from pipeline.faults import _inner_schema  # the same reading of annotations as in error messages
from pipeline.schema import Schema

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([\w.]+)` \| (.+?) \| ", REFERENCE, flags=re.MULTILINE))
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("slurm/*.md"), *ROOT.glob("examples/**/*.md")]


def fields(schema: type[Schema], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> default, of all fields without fields of their own."""
    found: dict[str, Any] = {}
    for name, field in schema.model_fields.items():
        inner = _inner_schema(field.annotation)
        if inner is not None:
            found |= fields(inner, f"{prefix}{name}.")
        else:
            found[prefix + name] = field.default
    return found


def test_every_key_is_in_the_reference_and_nothing_else() -> None:
    named = set(ROWS) - {"data", "data.sources", "data.template", "method.branches", "evaluation.data"}
    assert named == set(fields(RunConfig))


@pytest.mark.parametrize(("key", "default"), fields(RunConfig).items())
def test_its_default_is_the_one_in_use(key: str, default: Any) -> None:
    if key == "method.name":
        default = RunConfig.model_fields["method"].default.name
    expected = "required" if default is PydanticUndefined else f"`{written(default)}`"
    assert ROWS[key] == expected


def written(value: Any) -> str:
    """A value as YAML writes it."""
    return str(value) if isinstance(value, str | Path) else json.dumps(value)


def test_every_key_of_a_grid_is_explained() -> None:
    grids = REFERENCE.split("## Grids")[1].split("## ")[0]
    assert all(re.search(rf"^{name}:", grids, flags=re.MULTILINE) for name in GridConfig.model_fields)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert (document.parent / link).exists(), link
