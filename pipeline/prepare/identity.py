"""The key of prepared data: a digest of all that the result depends on, and of nothing else."""

import hashlib
import json
from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from pipeline.config import digest
from pipeline.prepare.config import DataConfig
from pipeline.prepare.filters import Filters
from pipeline.prepare.sources import Source
from pipeline.prepare.templates import template_hash

PREPARE_VERSION = 8
"""Raised whenever this package's code makes other rows, or other columns, from the same input."""


def tokenizer_hash(tokenizer: PreTrainedTokenizerFast) -> str:
    """Identity of a tokenizer's content, wherever it lies: vocabulary, merges, normalisation and special tokens.

    Padding and truncation are left out: they are settings of the last call, and rows are neither padded nor cut.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content.pop("padding", None)
    content.pop("truncation", None)
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return digest({"tokenizer": hashlib.sha256(json.dumps(content).encode()).hexdigest(), "special": special})


def prepared_key(
    data: DataConfig, sources: Sequence[Source], tokenizer: PreTrainedTokenizerFast, content: str, filters: Filters
) -> str:
    """Equal on every machine for equal content: paths and output folders don't count, file names do (row ids).

    Args:
        content: `tokenizer_hash(tokenizer)`, which takes as long as preparing thousands of rows.
    """
    turns = {} if data.turns == "last" else {"turns": data.turns}  # a younger key: others keep their rows
    return digest({
        **turns,
        "version": PREPARE_VERSION,
        "sources": [source.identity for source in sources],
        "template": template_hash(data.template, tokenizer),
        "tokenizer": content,
        "max_tokens": data.max_tokens,
        "filters": filters.identity(),
    })  # fmt: skip
