"""The lm-eval model: equal to the harness's own for plain models, to the training forward for branched ones."""

import json
import random

import pytest
import torch
from evaluate_inputs import DATA, generations, loglikelihoods, plain_model, trained_like
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedTokenizerBase

from pipeline.errors import StageError
from pipeline.evaluate import BranchedLM
from pipeline.evaluate.documents import choices
from pipeline.model import Batch, DualBranch

TOLERANCE = 1e-4
ODD_PAIRS = [
    ("", "Once upon a time"),
    ("", "<s>Once"),
    ("Once upon ", "a time"),
    ("Once upon  ", " a time"),
    ("<s>Once", " upon"),
    ("A dog ü 日本", " 🙂"),
    ("Lily and Tom " * 120, " went home"),
]


def real_pairs(task: str, documents: int) -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in DATA[task].read_text(encoding="utf-8").splitlines()[:documents]]
    return [(row["prompt"], f" {choice}") for row in choices(rows) for choice in row["choices"]]


def close(left: list[tuple[float, bool]], right: list[tuple[float, bool]]) -> bool:
    return all(abs(a[0] - b[0]) < TOLERANCE and a[1] == b[1] for a, b in zip(left, right, strict=True))


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    return [pair for task in DATA for pair in real_pairs(task, 6)] + ODD_PAIRS


@pytest.fixture(scope="module")
def expected(reference: HFLM, pairs: list[tuple[str, str]]) -> list[tuple[float, bool]]:
    return reference.loglikelihood(loglikelihoods(pairs), disable_tqdm=True)


@pytest.mark.parametrize("budget", [1, 700, 20_000])
def test_log_likelihoods_equal_the_harness(
    plain: DualBranch,
    tokenizer: PreTrainedTokenizerBase,
    pairs: list[tuple[str, str]],
    expected: list[tuple[float, bool]],
    budget: int,
) -> None:
    lm = BranchedLM(plain, tokenizer, max_batch_tokens=budget)
    assert close(lm.loglikelihood(loglikelihoods(pairs)), expected)
    assert any(greedy for _, greedy in expected)


def test_encoding_equals_the_harness(
    plain: DualBranch, tokenizer: PreTrainedTokenizerBase, reference: HFLM, pairs: list[tuple[str, str]]
) -> None:
    for lm in (BranchedLM(plain, tokenizer), BranchedLM(plain, tokenizer, add_bos=True)):
        for context, continuation in pairs:
            if context:
                assert lm._encode_pair(context, continuation) == reference._encode_pair(context, continuation)


def test_bos_comes_once_where_the_tokenizer_does_not_add_it(
    plain: DualBranch, tokenizer: PreTrainedTokenizerBase
) -> None:
    bos = tokenizer.bos_token_id
    lm = BranchedLM(plain, tokenizer, add_bos=True)
    with_bos = lm.tok_encode("Once upon")
    assert with_bos == lm.tok_encode("<s>Once upon") == [bos, *lm.tok_encode("Once upon", add_special_tokens=False)]
    assert with_bos.count(bos) == 1


def test_order_of_requests_does_not_matter(
    plain: DualBranch, tokenizer: PreTrainedTokenizerBase, pairs: list[tuple[str, str]]
) -> None:
    shuffled = random.Random(0).sample(range(len(pairs)), len(pairs))
    lm = BranchedLM(plain, tokenizer, max_batch_tokens=1000)
    straight = lm.loglikelihood(loglikelihoods(pairs))
    mixed = lm.loglikelihood(loglikelihoods([pairs[index] for index in shuffled]))
    assert close(mixed, [straight[index] for index in shuffled])


def test_context_that_is_too_long_is_counted(plain: DualBranch, tokenizer: PreTrainedTokenizerBase) -> None:
    lm = BranchedLM(plain, tokenizer, max_length=8)
    assert lm._cut([1, 2, 3, 4, 5, 6], [7, 8, 9], ("", "")) == ([1, 2, 3, 4, 5, 6], [7, 8, 9])
    assert lm.truncated == 0
    assert lm._cut([1, 2, 3, 4, 5, 6], [7, 8, 9, 10], ("", "")) == ([2, 3, 4, 5, 6], [7, 8, 9, 10])
    assert lm.truncated == 1


def test_continuation_that_does_not_fit_is_refused(plain: DualBranch, tokenizer: PreTrainedTokenizerBase) -> None:
    lm = BranchedLM(plain, tokenizer, max_length=4)
    with pytest.raises(StageError, match="1 to 4 can be scored"):
        lm.loglikelihood(loglikelihoods([("Once", " upon a time there was a dog")]))


@pytest.mark.parametrize("budget", [1, 900])
@pytest.mark.parametrize("method", ["bitune", "naive_bidirectional", "no_mixing", "shared_weights"])
def test_branched_scores_equal_each_choice_alone_in_training(
    tokenizer: PreTrainedTokenizerBase, method: str, budget: int
) -> None:
    model = trained_like(method)
    lm = BranchedLM(model, tokenizer, max_batch_tokens=budget)
    pairs = [*real_pairs("csqa_full", 4), ("", "Once upon")]
    scores = lm.loglikelihood(loglikelihoods(pairs))
    for (context, continuation), (score, _) in zip(pairs, scores, strict=True):
        prompt, answer = lm._encode_pair(context, continuation) if context else ([1], lm.tok_encode("Once upon", False))
        losses = model.losses(Batch.pack([prompt[:-1]], [[prompt[-1], *answer[:-1]]]), torch.tensor(answer))
        assert score == pytest.approx(-losses.sum().item(), abs=TOLERANCE)


def test_branched_scores_differ_from_plain_ones(plain: DualBranch, tokenizer: PreTrainedTokenizerBase) -> None:
    requests = loglikelihoods(real_pairs("csqa_full", 2))
    branched = BranchedLM(trained_like("bitune"), tokenizer).loglikelihood(requests)
    assert not close(branched, BranchedLM(plain, tokenizer).loglikelihood(requests))


@pytest.mark.parametrize("budget", [1, 700, 20_000])
def test_rolling_equals_the_harness(
    plain: DualBranch, tokenizer: PreTrainedTokenizerBase, reference: HFLM, budget: int
) -> None:
    texts = ["One day a dog saw a big red ball. " * 60, "hi there", "Once upon a time " * 40, ""]
    requests = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in texts]
    lm = BranchedLM(plain, tokenizer, max_batch_tokens=budget, add_bos=True)
    expected = reference.loglikelihood_rolling(requests, disable_tqdm=True)
    for ours, theirs in zip(lm.loglikelihood_rolling(requests), expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-3, rel=1e-6)


@pytest.mark.parametrize("budget", [1, 20_000])
def test_generation_equals_the_harness(
    plain: DualBranch, tokenizer: PreTrainedTokenizerBase, reference: HFLM, budget: int
) -> None:
    texts = ["Once upon a time", "Lily", "The dog and the cat " * 60]
    requests = generations(texts, until=["."], max_gen_toks=24) + generations(texts[:2], max_gen_toks=16)
    lm = BranchedLM(plain, tokenizer, max_batch_tokens=budget)
    ours = lm.generate_until(requests)
    assert ours == reference.generate_until(requests, disable_tqdm=True)
    assert lm.truncated == 0
    assert not any("." in text for text in ours[:3])


def test_generation_cuts_and_counts_long_contexts(
    plain: DualBranch, tokenizer: PreTrainedTokenizerBase, reference: HFLM
) -> None:
    requests = generations(["The dog and the cat " * 150], until=["."], max_gen_toks=40)
    lm = BranchedLM(plain, tokenizer)
    assert lm.generate_until(requests) == reference.generate_until(requests, disable_tqdm=True)
    assert lm.truncated == 1


def test_branched_generation_goes_on_as_scoring_says(tokenizer: PreTrainedTokenizerBase) -> None:
    lm = BranchedLM(trained_like("bitune"), tokenizer)
    (text,) = lm.generate_until(generations(["Once upon a time"], max_gen_toks=6))
    prompt = lm.tok_encode("Once upon a time")
    (new,) = lm.model.generate([prompt], 6)
    ((_, greedy),) = lm._loglikelihood_tokens([(("", ""), prompt, new)])
    assert greedy
    assert tokenizer.decode(new, skip_special_tokens=True) == text


def test_bf16_runs_under_autocast(tokenizer: PreTrainedTokenizerBase) -> None:
    requests = loglikelihoods(real_pairs("piqa_full", 2))
    exact = BranchedLM(plain_model(), tokenizer).loglikelihood(requests)
    rounded = BranchedLM(plain_model(), tokenizer, precision="bf16").loglikelihood(requests)
    assert not close(exact, rounded)
    assert all(abs(a[0] - b[0]) < 0.02 * abs(b[0]) + 1 for a, b in zip(rounded, exact, strict=True))
