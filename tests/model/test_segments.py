"""Segments of a prompt in a batch: what the pattern of that name lets tokens see."""

import pytest
import torch
from tiny import answer_logits, samples, tiny_model

from pipeline.model import Batch
from pipeline.model.config import MethodConfig
from pipeline.model.layout import lay_out
from pipeline.model.patterns import PATTERNS


def test_segments_reach_the_mask() -> None:
    batch = Batch.pack([[5, 6, 7, 8], [9, 10]], [[3], [4]], segments=[(1, 3), ()])
    layout = lay_out(batch, MethodConfig.model_validate("segment"))
    mask = layout.prompts.mask(PATTERNS["segment"])
    assert mask is not None
    assert mask[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert mask[1, 0, :2].int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0]]


def test_one_segment_is_bidirectional_and_single_tokens_are_causal() -> None:
    prompts, answers = samples([(7, 4), (3, 2), (0, 2)])
    model = tiny_model("segment", tuning="none")
    single = [tuple(range(1, len(prompt))) for prompt in prompts]
    for name, segments in (("naive_bidirectional", [(), (), ()]), ("causal", single)):
        hidden = model(Batch.pack(prompts, answers, segments=segments))
        expected = torch.cat(answer_logits(tiny_model(name, tuning="none"), prompts, answers))
        torch.testing.assert_close(model.logits(hidden), expected, atol=1e-6, rtol=1e-5)


def test_generation_reads_segments_as_training_does() -> None:
    model = tiny_model("segment", tuning="none").eval()
    (prompt,), _ = samples([(9, 1)])
    cut, whole = (model(Batch.pack([prompt[:-1]], [prompt[-1:]], segments=[part])) for part in ((4,), ()))
    assert not torch.allclose(cut, whole)
    generated = model.generate([prompt], 1, segments=[(4,)], do_sample=False, eos_token_id=None)
    assert generated == [[model.logits(cut)[-1].argmax().item()]]


def test_segments_of_some_prompts_only_are_refused() -> None:
    with pytest.raises(ValueError, match="segments of 1 prompts, but there are 2"):
        Batch.pack([[1], [2]], [[3], [4]], segments=[(0,)])
