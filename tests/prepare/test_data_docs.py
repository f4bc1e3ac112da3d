"""What docs/data.md shows is read as it says."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config import merge, parse_config
from pipeline.prepare.config import DataConfig
from pipeline.prepare.forms import FORMS, detect_form

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "data.md").read_text()
SHOWN = re.findall(r"^\| `(\w+)` \| `(\{.*?\})`(?:;| \|)", TEXT, re.MULTILINE)


def test_every_form_is_shown() -> None:
    assert sorted(form for form, _ in SHOWN) == sorted(FORMS)


@pytest.mark.parametrize(("form", "text"), SHOWN)
def test_a_shown_row_is_of_its_form(form: str, text: str) -> None:
    row: dict[str, Any] = json.loads(text)
    assert detect_form([row], "x") == form
    assert FORMS[form].read(row).answer


def test_shown_configurations_are_valid() -> None:
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]
    shown = [DataConfig.model_validate(block["data"]) for block in blocks if "data" in block]
    forms = ["prompt_completion", "question_choices", "auto"]
    assert [source.form for data in shown for source in data.sources] == forms
    assert [isinstance(data.template, str) for data in shown] == [True, False]
    (based,) = (block for block in blocks if "base" in block)
    config = parse_config(merge(based, ROOT / "run.yaml"), "docs/data.md")
    assert config.data is not None and config.data.sources[0].limit == 50_000
