"""Tokenizers of every kind, small and built here, and the data that tests read."""

import json
from pathlib import Path
from typing import Any

import pytest
from prepare_inputs import DATA, KINDS, STORIES, MakeRun
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from pipeline.config import RunConfig, parse_config
from pipeline.run_folder import RunFolder

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _corpus() -> list[str]:
    rows = json.loads((DATA / "alpaca.json").read_text(encoding="utf-8"))
    text = (DATA / "arc_easy_test.jsonl").read_text(encoding="utf-8") + "é ü ß 日本 🙂 () 0 1 2 3\n\tZQXJ"
    return [row["output"] for row in rows[:60]] + [text] + ["Question: a\n\nChoices:\n\nAnswer: x"] * 50


def _byte_bpe(bos: str | None, regex: bool = True) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    backend.decoder = decoders.ByteLevel()
    special = [token for token in (bos, "<|im_start|>", "<|im_end|>", "<|end|>") if token]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_corpus(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=bos, eos_token="<|end|>", pad_token="<|end|>", chat_template=CHATML
    )


def _sentencepiece_bpe() -> PreTrainedTokenizerFast:
    """As Llama's and Gemma's: spaces are `▁`, unknown characters are bytes, BOS and EOS come from a post-processor."""
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, limit_alphabet=80, show_progress=False)
    backend.train_from_iterator(_corpus(), trainer)
    content = json.loads(backend.to_str())
    content["added_tokens"] = content["added_tokens"][:3]  # the bytes are ordinary entries of the vocabulary
    backend = Tokenizer.from_str(json.dumps(content))
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _unigram() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    backend.decoder = decoders.Metaspace(prepend_scheme="never")
    trainer = trainers.UnigramTrainer(
        vocab_size=500, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(_corpus(), trainer)
    backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>", pad_token="</s>")


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    return {
        "byte_bpe": _byte_bpe(bos="<|start|>"),
        "byte_bpe_without_bos": _byte_bpe(bos=None),
        "byte_bpe_merging": _byte_bpe(bos=None, regex=False),
        "sentencepiece_bpe": _sentencepiece_bpe(),
        "unigram": _unigram(),
        "stories": AutoTokenizer.from_pretrained(STORIES),
    }


@pytest.fixture(params=KINDS)
def tokenizer(
    request: pytest.FixtureRequest, tokenizers: dict[str, PreTrainedTokenizerFast]
) -> PreTrainedTokenizerFast:
    return tokenizers[request.param]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """A run over the given files; `data` values go to the data section."""

    def make(*paths: Path | str, model: Path = STORIES, runs: str = "runs", source: dict[str, Any] | None = None,
             **data: Any) -> tuple[RunConfig, RunFolder]:  # fmt: skip
        sources = [{"path": str(path), **(source or {})} for path in paths]
        values = {
            "model": {"name": str(model)},
            "data": {"sources": sources, "max_tokens": 400, "max_dropped_percent": 100, **data},
            "paths": {"runs": str(tmp_path / runs), "cache": str(tmp_path / "cache")},
        }
        config = parse_config(values, "test")
        return config, RunFolder.of(config)

    return make
