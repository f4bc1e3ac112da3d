"""Real data sets in their original form, each prepared with one screen of configuration.

They are looked for below the folder named by DUALTUNE_DATA; without it these tests are skipped.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prepare_inputs import KINDS, MakeRun
from transformers import PreTrainedTokenizerFast

from pipeline.prepare import prepare
from pipeline.prepare.config import SourceConfig
from pipeline.prepare.forms import FORMS
from pipeline.prepare.reading import OpenedSource
from pipeline.prepare.record import Fault
from pipeline.prepare.sources import open_sources
from pipeline.prepare.templates import Rendered, render
from pipeline.prepare.tokens import encode

ROOT = Path(os.environ.get("DUALTUNE_DATA", ""))
pytestmark = pytest.mark.skipif(not os.environ.get("DUALTUNE_DATA"), reason="DUALTUNE_DATA names no folder of data")

PIQA = {"form": "question_choices", "labels": "{root}/piqa/valid-labels.lst"}
ARC = {"columns": {"prompt": "{{ doc.query }}", "completion": "{{ doc.choices[doc.gold] }}"}, "unique": "doc_id",
       "form": "prompt_completion"}  # fmt: skip
LOGIQA = {
    "lines": 8,
    "form": "prompt_completion",
    "columns": {
        "prompt": "{% set l = text.split('\n') %}{{ l[2] }}\n{{ l[3] }}\n{{ l[4:] | join('\n') }}",
        "completion": "{% set l = text.split('\n') %}{{ l[4 + 'abcd'.index(l[1].strip())][2:] }}",
    },
}
LAMBADA = {"form": "prompt_completion", "columns": {"prompt": "{{ text.rsplit(' ', 1)[0] }}",
                                                    "completion": "{{ text.split(' ')[-1] }}"}}  # fmt: skip
SIQA = "social_i_qa/socialiqa-train-dev.zip"
ZIPPED = {"form": "question_choices"}
MMLU = ["question", "A", "B", "C", "D", "answer"]
SETS: dict[str, tuple[str, dict[str, Any], int]] = {
    "piqa": ("piqa/valid.jsonl", PIQA, 1838),
    "piqa arrow": ("piqa/hf_validation/*.arrow", {}, 1838),
    "piqa requests": ("piqa/train_mc_5shot.requests.jsonl.gz",
                      {"columns": {"question": "doc.goal", "choices": "doc.choices", "answer": "doc.label"},
                       "form": "question_choices", "unique": "doc_id"}, 16113),
    "arc_challenge arrow": ("arc_challenge/hf_validation/*.arrow", {}, 299),
    "arc_challenge test": ("arc_challenge/test_mc_5shot.requests.jsonl.gz", ARC, 1172),
    "arc_challenge train": ("arc_challenge/train_mc_5shot.requests.jsonl.gz", ARC, 1119),
    "arc_easy arrow": ("arc_easy/hf_validation/*.arrow", {}, 570),
    "arc_easy test": ("arc_easy/test_mc_5shot.requests.jsonl.gz", ARC, 2376),
    "arc_easy train": ("arc_easy/train_mc_5shot.requests.jsonl.gz", ARC, 2251),
    "csqa": ("commonsense_qa/train_rand_split.jsonl", {}, 9741),
    "csqa dev": ("commonsense_qa/dev_rand_split.jsonl", {}, 1221),
    "csqa arrow": ("commonsense_qa/hf_validation/*.arrow", {}, 1221),
    "siqa": (SIQA, {**ZIPPED, "files": "*/train.jsonl", "labels": "socialiqa-train-dev/train-labels.lst"}, 33410),
    "siqa dev": (SIQA, {**ZIPPED, "files": "*-dev/dev.jsonl", "labels": "socialiqa-train-dev/dev-labels.lst"}, 1954),
    "siqa arrow": ("social_i_qa/hf_validation/*.arrow", {}, 1954),
    "mmlu": ("mmlu/mmlu.zip", {"files": "data/test/*.csv", "header": MMLU}, 14042),
    "mmlu arrow": ("mmlu/hf/abstract_algebra/test/*.arrow", {}, 100),
    "gsm8k": ("gsm8k/train.jsonl", {}, 7473),
    "gsm8k test": ("gsm8k/test.jsonl", {}, 1319),
    "lambada": ("lambada/lambada_test.jsonl", LAMBADA, 5153),
    "lambada text": ("lambada/lambada_test_plain_text.txt", LAMBADA, 5153),
    "logiqa": ("logiqa/Test.txt", LOGIQA, 651),
    "logiqa eval": ("logiqa/Eval.txt", LOGIQA, 651),
    "vicuna": ("vicuna_mtbench/dummy_conversation.json", {}, 500),
    "alpaca": ("llama_factory/alpaca_en_demo.json", {}, 999),
    "glaive": ("llama_factory/glaive_toolcall_en_demo.json", {}, 300),
    "identity": ("llama_factory/identity.json", {}, 91),
    "ultrafeedback": ("ultrafeedback/train_clean.jsonl", {}, 1000),
    "ultrafeedback eval": ("ultrafeedback/eval_clean.jsonl", {}, 200),
    "oasst": ("oasst/en_100_tree.jsonl", {}, 100),
    "tulu": ("open_instruct/sft_sample.jsonl", {}, 100),
    "tulu pairs": ("open_instruct/preference_sample.jsonl", {}, 100),
}  # fmt: skip
"""Name -> path, source, rows that the set is documented to have."""


TOOLS = "tools, for which the paper's templates have no place"


def options_of(name: str) -> dict[str, Any]:
    options = SETS[name][1]
    return {key: value.format(root=ROOT) if key == "labels" else value for key, value in options.items()}


@pytest.mark.parametrize("name", SETS)
def test_every_row_is_kept_or_named(name: str, make_run: MakeRun) -> None:
    path, _, documented = SETS[name]
    found = prepare(*make_run(ROOT / path, source=options_of(name), max_tokens=100_000)).manifest
    rows, repeated = found["rows"], found["rejected"].pop("another row has the same 'doc_id'", {"count": 0})["count"]
    print(name, rows, {reason: entry["count"] for reason, entry in found["rejected"].items()}, found["dropped"])
    assert rows["read"] - repeated == documented
    assert rows["kept"] + rows["rejected"] + rows["dropped"] == rows["read"]
    without_tools = documented - found["rejected"].get(TOOLS, {"count": 0})["count"]
    assert rows["kept"] >= 0.99 * without_tools > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SETS)
def test_labels_decode_to_the_answers(
    name: str, kind: str, tokenizers: dict[str, PreTrainedTokenizerFast], make_run: MakeRun
) -> None:
    """In the text of a whole row the labels are what stands behind the prompt, up to a token that reaches into both."""
    tokenizer = tokenizers[kind]
    texts = rendered(SourceConfig(path=str(ROOT / SETS[name][0]), **options_of(name)), tokenizer)
    compared = 0
    for text, tokens in zip(texts, encode(texts, "paper", tokenizer), strict=True):
        labels = tokens.input_ids[tokens.prompt_length : -1]
        if tokenizer.unk_token_id in tokens.input_ids:  # unknown to a vocabulary of 500: the text is lost
            continue
        decoded, whole = tokenizer.decode(labels), text.prompt + text.answer
        assert whole.endswith(decoded) or whole.endswith(decoded.lstrip())
        assert decoded.strip() == text.answer.strip() or tokens.merged
        compared += 1
    assert compared > 0


def rendered(source: SourceConfig, tokenizer: PreTrainedTokenizerFast) -> list[Rendered]:
    opened = OpenedSource.open(open_sources([source])[0], 0)
    found = []
    for row in opened.rows():
        with suppress(Fault):
            if row.record.values is not None:
                found.append(render(FORMS[opened.form].read(row.record.values), "paper", tokenizer))
    return found
