"""Chat templates, system prompts and examples: the requests are the harness's own."""

from pathlib import Path
from typing import Any

import pytest
from evaluate_inputs import DATA, run_config
from lm_eval.models.huggingface import HFLM
from test_evaluate_stage import trained_run
from transformers import PreTrainedTokenizerBase

from pipeline.errors import UserError
from pipeline.evaluate import BranchedLM, evaluate, missing_tasks
from pipeline.evaluate.score import run_task
from pipeline.evaluate.suite import check_tasks, load_task
from pipeline.model import DualBranch
from pipeline.run_folder import RunFolder

CHAT = (
    "{% for m in messages %}{% if m.role == 'system' and no_system %}{{ raise_exception('no system') }}{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}{% if not (loop.last and continue_final_message) %}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def samples(lm: Any, changes: dict[str, Any], tmp_path: Path) -> list[dict[str, Any]]:
    data = {"piqa_full": {"test": str(DATA["piqa_full"]), "fewshot": str(DATA["csqa_full"])}}
    config = run_config(tmp_path, ["piqa_full"], evaluation={"data": data, "limit": 3, **changes}).evaluation
    loaded = load_task(check_tasks(config), "piqa_full", config.data["piqa_full"], config.shots("piqa_full"))
    return list(run_task(lm, loaded, config)["samples"]["piqa_full"])


@pytest.mark.parametrize("shots", [0, 2])
@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize("template", [None, CHAT, "{% set no_system = true %}" + CHAT])
def test_prompts_and_scores_equal_the_harness(
    plain: DualBranch, reference: HFLM, tmp_path: Path, shots: int, system: str | None, template: str | None
) -> None:
    if template is None and system and shots:
        pytest.skip("the same code as with one of them")
    tokenizer: PreTrainedTokenizerBase = reference.tokenizer
    tokenizer.chat_template = template
    changes = {"num_fewshot": shots, "system_prompt": system, "chat_template": template is not None}
    ours = samples(BranchedLM(plain, tokenizer), changes, tmp_path)
    theirs = samples(reference, changes, tmp_path)
    tokenizer.chat_template = None
    assert [s["arguments"] for s in ours] == [s["arguments"] for s in theirs]
    for mine, its in zip(ours, theirs, strict=True):
        found, expected = ([score for score, _ in s["filtered_resps"]] for s in (mine, its))
        assert found == pytest.approx(expected, abs=1e-4)


def test_each_setting_makes_another_result(tmp_path: Path) -> None:
    config = run_config(tmp_path, ["piqa_full"])
    evaluate(config, RunFolder.of(config))
    for changes in ({"add_bos": False}, {"max_length": 64}, {"system_prompt": "Be brief."}, {"limit": 7}):
        other = run_config(tmp_path, ["piqa_full"], evaluation={"limit": 6, **changes})
        assert missing_tasks(other, RunFolder.of(other)) == ["piqa_full"]


def test_a_chat_template_around_the_trained_one_is_refused(tmp_path: Path) -> None:
    config, folder = trained_run(tmp_path, evaluation={"chat_template": True})
    with pytest.raises(UserError, match=r"evaluation\.chat_template: csqa_full"):
        evaluate(config, folder)


def test_the_longest_input_is_a_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = run_config(tmp_path, ["csqa_full"], evaluation={"max_length": 64})
    result = evaluate(config, RunFolder.of(config))["csqa_full"]
    assert result["truncated_requests"] > 0 and result["settings"]["max_length"] == 64
    assert f"{result['truncated_requests']} contexts cut from the left" in capsys.readouterr().err
