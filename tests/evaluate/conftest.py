"""One model, tokenizer and reference for all tests of evaluation."""

import sys
from pathlib import Path

import pytest
import torch
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

sys.path.insert(0, str(Path(__file__).parent))

from evaluate_inputs import STORIES, plain_model

from pipeline.model import DualBranch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def plain() -> DualBranch:
    return plain_model()


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    tokenizer = AutoTokenizer.from_pretrained(STORIES)
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@pytest.fixture(scope="session")
def reference(tokenizer: PreTrainedTokenizerBase) -> HFLM:
    """The harness's own model class over the same weights."""
    model = AutoModelForCausalLM.from_pretrained(STORIES, dtype=torch.float32)
    # Its reuse of logits mixes up requests whose texts are equal but split at different places.
    return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=8, logits_cache=False)
