"""Step-by-step decoding with the cache equals the training forward."""

from pathlib import Path

import pytest
import torch
from tiny import FAMILIES, samples, tiny_base, tiny_model, tokens
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.model import Batch, DualBranch, build_model
from pipeline.model.config import PRESETS, MethodConfig, ModelConfig, TuningConfig

STORIES = Path(__file__).parents[1] / "fixtures" / "stories260K"


def greedy_by_training_forward(model: DualBranch, prompt: list[int], count: int) -> list[int]:
    """The plain way: the whole answer again for every token."""
    answer = [prompt[-1]]
    for _ in range(count):
        hidden = model(Batch.pack([prompt[:-1]], [answer]))
        answer.append(model.logits(hidden)[-1].argmax().item())
    return answer[1:]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", [name for name in PRESETS if name != "slippery_input"])
def test_decoding_equals_the_training_forward(method: str, family: str) -> None:
    model = tiny_model(method, family=family).eval()
    prompts = [tokens(length, length) for length in (6, 1, 9, 2)]
    generated = model.generate(prompts, 7, do_sample=False, eos_token_id=None)
    assert generated == [greedy_by_training_forward(model, prompt, 7) for prompt in prompts]


def test_prompts_of_one_token() -> None:
    model = tiny_model().eval()
    assert model.generate([[5], [9]], 4, do_sample=False, eos_token_id=None) == [
        greedy_by_training_forward(model, [token], 4) for token in (5, 9)
    ]


def test_generation_stops_after_the_end_token() -> None:
    model = tiny_model().eval()
    prompt = tokens(5, 3)
    free = model.generate([prompt], 8, do_sample=False, eos_token_id=None)[0]
    end = free[3]
    assert model.generate([prompt], 8, do_sample=False, eos_token_id=end)[0] == free[: free.index(end) + 1]


def test_logits_of_decoding_steps_equal_those_of_training() -> None:
    from pipeline.model.generation import prefill

    model = tiny_model().eval()
    (prompt,), (answer,) = samples([(6, 5)])
    expected = model.logits(model(Batch.pack([prompt], [answer])))
    cache = prefill(model, [prompt])
    for place, token in enumerate(answer):
        with torch.no_grad():
            output = model.model(torch.tensor([[token]]), cache=cache)
        torch.testing.assert_close(output.logits[0, 0], expected[place], atol=1e-5, rtol=1e-5)


def test_a_plain_causal_model_generates_what_stock_transformers_does() -> None:
    stock = tiny_base()
    prompt = tokens(8, 1)
    ids = torch.tensor([prompt])
    expected = stock.generate(ids, max_new_tokens=9, do_sample=False, eos_token_id=None, pad_token_id=0)[0, 8:].tolist()
    model = tiny_model("causal", tuning="none")
    assert model.eval().generate([prompt], 9, do_sample=False, eos_token_id=None) == [expected]


def test_a_real_model_tells_the_story_it_is_known_for() -> None:
    tokenizer = AutoTokenizer.from_pretrained(STORIES)
    config = ModelConfig(name=str(STORIES), precision="fp32")
    none = TuningConfig(kind="none")
    model = build_model(config, MethodConfig.model_validate("causal"), none, 0).eval()
    start = tokenizer("Once upon a time").input_ids
    ours = model.generate([start], 30, do_sample=False)[0]
    stock = AutoModelForCausalLM.from_pretrained(STORIES)
    theirs = stock.generate(torch.tensor([start]), max_new_tokens=30, do_sample=False)[0, len(start) :].tolist()
    assert ours == theirs
    assert "there was a little girl" in tokenizer.decode(ours)
