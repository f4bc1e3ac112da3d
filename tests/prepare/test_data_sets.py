"""Real data sets in their original form, each prepared by its configuration in configs/data.

They are looked for below the folder named by DUALTUNE_DATA; without it these tests are skipped.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prepare_inputs import CONFIGS, KINDS, STORIES
from transformers import PreTrainedTokenizerFast

from pipeline.config import RunConfig, load_config
from pipeline.prepare import prepare
from pipeline.prepare.config import DataConfig
from pipeline.prepare.forms import FORMS
from pipeline.prepare.reading import OpenedSource
from pipeline.prepare.record import Fault
from pipeline.prepare.sources import open_sources
from pipeline.prepare.templates import Rendered, render
from pipeline.prepare.tokens import encode
from pipeline.run_folder import RunFolder

ROOT = Path(os.environ.get("DUALTUNE_DATA", "")).absolute()
pytestmark = pytest.mark.skipif(not os.environ.get("DUALTUNE_DATA"), reason="DUALTUNE_DATA names no folder of data")

SIQA_DEV = {"files": "*-dev/dev.jsonl", "labels": "socialiqa-train-dev/dev-labels.lst"}
SETS: dict[str, tuple[str, dict[str, Any], int]] = {
    "piqa": ("files/piqa", {}, 1838),
    "piqa arrow": ("piqa", {"path": "data/piqa/hf_validation/*.arrow"}, 1838),
    "piqa requests": ("files/piqa_requests", {}, 16113),
    "arc_challenge arrow": ("arc_challenge", {"path": "data/arc_challenge/hf_validation/*.arrow"}, 299),
    "arc_challenge test": ("files/arc_challenge", {"path": "data/arc_challenge/test_mc_5shot.requests.jsonl.gz"}, 1172),
    "arc_challenge train": ("files/arc_challenge", {}, 1119),
    "arc_easy arrow": ("arc_challenge", {"path": "data/arc_easy/hf_validation/*.arrow"}, 570),
    "arc_easy test": ("files/arc_easy", {"path": "data/arc_easy/test_mc_5shot.requests.jsonl.gz"}, 2376),
    "arc_easy train": ("files/arc_easy", {}, 2251),
    "csqa": ("files/commonsense_qa", {}, 9741),
    "csqa dev": ("files/commonsense_qa", {"path": "data/commonsense_qa/dev_rand_split.jsonl"}, 1221),
    "csqa arrow": ("commonsense_qa", {"path": "data/commonsense_qa/hf_validation/*.arrow"}, 1221),
    "siqa": ("files/social_i_qa", {}, 33410),
    "siqa dev": ("files/social_i_qa", SIQA_DEV, 1954),
    "siqa arrow": ("siqa", {"path": "data/social_i_qa/hf_validation/*.arrow"}, 1954),
    "mmlu": ("files/mmlu", {}, 1531),
    "mmlu dev": ("files/mmlu", {"files": "data/dev/*.csv"}, 285),
    "mmlu test": ("files/mmlu", {"files": "data/test/*.csv"}, 14042),
    "mmlu arrow": ("files/mmlu", {"path": "data/mmlu/hf/abstract_algebra/test/*.arrow", "files": None}, 100),
    "gsm8k": ("files/gsm8k", {}, 7473),
    "gsm8k test": ("gsm8k", {"path": "data/gsm8k/test.jsonl"}, 1319),
    "lambada": ("files/lambada", {}, 5153),
    "lambada json": ("files/lambada", {"path": "data/lambada/lambada_test.jsonl"}, 5153),
    "logiqa": ("files/logiqa", {}, 651),
    "logiqa test": ("files/logiqa", {"path": "data/logiqa/Test.txt"}, 651),
    "vicuna": ("files/vicuna", {}, 500),
    "alpaca": ("files/alpaca_demo", {}, 999),
    "glaive": ("files/glaive_toolcall", {}, 300),
    "identity": ("files/identity", {}, 91),
    "ultrafeedback": ("files/ultrafeedback_preference", {}, 1000),
    "ultrafeedback eval": ("files/ultrafeedback_preference", {"path": "data/ultrafeedback/eval_clean.jsonl"}, 200),
    "oasst": ("files/oasst", {}, 100),
    "tulu": ("files/tulu", {}, 100),
    "tulu pairs": ("files/tulu_preference", {}, 100),
}
"""Name -> file of configs/data, what its source reads in this test, rows that the set is documented to have."""


TOOLS = "tools, for which the paper's templates have no place"


@pytest.fixture(autouse=True)
def beside_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the sets below `data`, as the configurations name them."""
    (tmp_path / "data").symlink_to(ROOT)
    monkeypatch.chdir(tmp_path)


def config_of(name: str) -> RunConfig:
    """The set's configuration as it is shipped, but for its length limit: the tokens of the test model are short."""
    file, changed, _ = SETS[name]
    config = load_config(CONFIGS / f"{file}.yaml", [f"model={STORIES}", "data.max_tokens=100000"])
    assert config.data is not None
    (source,) = config.data.sources
    data = config.data.model_copy(update={"sources": (source.model_copy(update=changed),)})
    return config.model_copy(update={"data": data})


@pytest.mark.parametrize("name", SETS)
def test_every_row_is_kept_or_named(name: str) -> None:
    config, documented = config_of(name), SETS[name][2]
    found = prepare(config, RunFolder.of(config)).manifest
    rows, repeated = found["rows"], found["rejected"].pop("another row has the same 'doc_id'", {"count": 0})["count"]
    print(name, rows, {reason: entry["count"] for reason, entry in found["rejected"].items()}, found["dropped"])
    assert rows["read"] - repeated == documented
    assert rows["kept"] + rows["rejected"] + rows["dropped"] == rows["read"]
    without_tools = documented - found["rejected"].get(TOOLS, {"count": 0})["count"]
    assert rows["kept"] >= 0.99 * without_tools > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SETS)
def test_labels_decode_to_the_answers(name: str, kind: str, tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    """In the text of a whole row the labels are what stands behind the prompt, up to a token that reaches into both."""
    tokenizer = tokenizers[kind]
    data = config_of(name).data
    assert data is not None
    texts = rendered(data, tokenizer)
    compared = 0
    for text, tokens in zip(texts, encode(texts, data.template, tokenizer), strict=True):
        labels = tokens.input_ids[tokens.prompt_length : -1]
        if tokenizer.unk_token_id in tokens.input_ids:  # unknown to a vocabulary of 500: the text is lost
            continue
        decoded, whole = tokenizer.decode(labels), text.prompt + text.answer
        assert whole.endswith(decoded) or whole.endswith(decoded.lstrip())
        assert decoded.strip() == text.answer.strip() or tokens.merged
        compared += 1
    assert compared > 0


def rendered(data: DataConfig, tokenizer: PreTrainedTokenizerFast) -> list[Rendered]:
    opened = OpenedSource.open(open_sources(data.sources)[0], 0)
    found = []
    for row in opened.rows():
        with suppress(Fault):
            if row.record.values is not None:
                found.append(render(FORMS[opened.form].read(row.record.values), data.template, tokenizer))
    return found
