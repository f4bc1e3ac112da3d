"""The data sets of configs/data: each is prepared from a few rows in its own columns and files.

The hub isn't asked: of a hub id, these tests say nothing but that rows with those columns are read.
"""

import re
from pathlib import Path

import pytest
from data_excerpts import FILES, HUB
from datasets import Dataset, DatasetDict
from prepare_inputs import CONFIGS, STORIES
from transformers import AutoTokenizer

from pipeline.config import RunConfig, load_config, read_yaml
from pipeline.evaluate.catalogue import TASKS
from pipeline.prepare import prepare
from pipeline.run_folder import RunFolder

HUB_FILES = {file.stem: file for file in sorted(CONFIGS.glob("*.yaml"))}
LOCAL_FILES = {file.stem: file for file in sorted((CONFIGS / "files").glob("*.yaml"))}
SCORED = {"piqa": "piqa_full", "arc_challenge": "arc_full", "commonsense_qa": "csqa_full", "siqa": "siqa_full",
          "gsm8k": "gsm8k_full"}  # fmt: skip


def test_every_configuration_has_an_excerpt() -> None:
    assert (set(HUB_FILES), set(LOCAL_FILES)) == (set(HUB), set(FILES))


@pytest.mark.parametrize("file", [*HUB_FILES.values(), *LOCAL_FILES.values()], ids=lambda file: file.stem)
def test_a_configuration_is_a_screen_and_a_base(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 24
    assert set(read_yaml(file)) <= {"data", "audit"}


@pytest.mark.parametrize(("name", "task"), SCORED.items())
def test_what_is_trained_is_the_set_that_is_scored(name: str, task: str) -> None:
    scored = dict(re.findall(r"^(dataset_\w+): (\S+)$", TASKS[task].read_text(encoding="utf-8"), re.MULTILINE))
    (source,) = read_yaml(HUB_FILES[name])["data"]["sources"]
    assert (source["path"], source.get("subset")) == (scored["dataset_path"], scored.get("dataset_name"))


@pytest.mark.parametrize("name", HUB)
def test_rows_of_the_hub_are_learnt(name: str, tmp_path: Path) -> None:
    rows, answers, rejected = HUB[name]
    config = loaded(HUB_FILES[name], tmp_path)
    assert config.data is not None
    (source,) = config.data.sources
    DatasetDict({source.split: Dataset.from_list(rows)}).save_to_disk(tmp_path / "set")
    local = source.model_copy(update={"path": str(tmp_path / "set")})
    data = config.data.model_copy(update={"sources": (local,)})
    check(config.model_copy(update={"data": data}), len(rows), answers, rejected)


@pytest.mark.parametrize("name", FILES)
def test_rows_of_local_files_are_learnt(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, answers, rejected = FILES[name]
    for place, content in files.items():
        (tmp_path / "data" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / place).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    check(loaded(LOCAL_FILES[name], tmp_path), len(answers) + sum(rejected.values()), answers, rejected)


def loaded(file: Path, folder: Path) -> RunConfig:
    """For the small test model, whose tokens are short."""
    given = [f"model={STORIES}", "data.max_tokens=4000", f"paths.runs={folder}/runs", f"paths.cache={folder}/cache"]
    return load_config(file, given)


def check(config: RunConfig, read: int, answers: list[str], rejected: dict[str, int]) -> None:
    """All rows are kept or rejected as named, and the labels are the answers."""
    data = prepare(config, RunFolder.of(config))
    found = data.manifest
    assert (found["rows"]["read"], found["dropped"]) == (read, {})
    assert {reason: entry["count"] for reason, entry in found["rejected"].items()} == rejected
    tokenizer = AutoTokenizer.from_pretrained(STORIES)
    labels = [tokenizer.decode(row.input_ids[row.prompt_length : -1]) for row in data.rows()]
    assert [text.strip() for text in labels] == [answer.strip() for answer in answers]
