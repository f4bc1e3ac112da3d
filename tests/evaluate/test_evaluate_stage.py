"""The stage: what it writes, what counts as finished, what it refuses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from evaluate_inputs import BASE, DATA, ROOT, STORIES, run_config, trained_like
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedTokenizerBase

from pipeline.config import RunConfig, signature
from pipeline.errors import StageError, UserError
from pipeline.evaluate import evaluate, missing_tasks, stage
from pipeline.evaluate.fingerprint import own_hash
from pipeline.evaluate.score import run_task
from pipeline.evaluate.suite import check_tasks, load_task
from pipeline.model import build_model
from pipeline.run_folder import RunFolder
from pipeline.train import train

TASKS = ("csqa_full", "piqa_full")


def records_of(folder: RunFolder, task: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.samples(task).read_text(encoding="utf-8").splitlines()]


def trained_run(runs: Path, kind: str = "lora", method: str = "bitune", **changes: Any) -> tuple[RunConfig, RunFolder]:
    """A run whose model folder is there, as training leaves it."""
    data = {"sources": [{"path": "train.jsonl"}]}
    tuning = {"kind": kind, "rank": 4}
    config = run_config(runs, ["csqa_full"], method=method, tuning=tuning, data=data, **changes)
    folder = RunFolder.of(config)
    trained_like(method, kind).save_pretrained(folder.model, template_hash=own_hash("csqa_full"))
    return config, folder


def test_results_follow_the_contract(tmp_path: Path) -> None:
    config = run_config(tmp_path, TASKS)
    folder = RunFolder.of(config)
    assert missing_tasks(config, folder) == list(TASKS)
    results = evaluate(config, folder)
    assert missing_tasks(config, folder) == []
    for task in TASKS:
        result, found = results[task], records_of(folder, task)
        assert json.loads(folder.evaluation(task).read_text()) == result
        assert (result["task"], result["limit"], result["documents"]) == (task, 6, len(found))
        assert result["signature"] == signature(config)
        assert result["template_hash"] == own_hash("csqa_full")
        assert result["metrics"]["acc"] == sum(record["correct"] for record in found) / len(found)
        assert result["metrics"]["acc_norm"] == sum(record["correct_norm"] for record in found) / len(found)


def test_accuracies_equal_the_harness(tmp_path: Path, reference: HFLM) -> None:
    config = run_config(tmp_path, list(DATA), evaluation={"limit": 12})
    ours = evaluate(config, RunFolder.of(config))
    known = check_tasks(config.evaluation)
    for task, path in DATA.items():
        results = run_task(reference, load_task(known, task, str(path)), config.evaluation)  # type: ignore[arg-type]
        theirs = {metric: results["results"][task][f"{metric},none"] for metric in ("acc", "acc_norm")}
        assert ours[task]["metrics"] == theirs


def test_finished_tasks_are_not_scored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = run_config(tmp_path, ["piqa_full"])
    first = evaluate(config, RunFolder.of(config))
    monkeypatch.setattr(stage, "load_model", lambda *_: pytest.fail("the model was loaded"))
    assert evaluate(config, RunFolder.of(config)) == first


def test_the_model_is_loaded_once_and_only_missing_tasks_are_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_config(tmp_path, ["piqa_full"])
    evaluate(first, RunFolder.of(first))
    loads, load = [], stage.load_model
    monkeypatch.setattr(stage, "load_model", lambda *arguments: loads.append(1) or load(*arguments))
    config = run_config(tmp_path, ["piqa_full", "csqa_full", "arc_full"])
    assert missing_tasks(config, RunFolder.of(config)) == ["csqa_full", "arc_full"]
    assert set(evaluate(config, RunFolder.of(config))) == {"piqa_full", "csqa_full", "arc_full"}
    assert loads == [1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: folder.evaluation("piqa_full").write_text('{"task": "piqa_full", "acc'),
        lambda folder: folder.evaluation("piqa_full").write_text(""),
        lambda folder: folder.evaluation("piqa_full").unlink(),
        lambda folder: folder.samples("piqa_full").unlink(),
        lambda folder: folder.samples("piqa_full").write_text("\n".join(lines_of(folder)[:-1]) + "\n"),
        lambda folder: folder.samples("piqa_full").write_text("\n".join(lines_of(folder))[:-9]),
        lambda folder: change(folder, metrics={}),
        lambda folder: change(folder, evaluation_signature="other"),
    ],
    ids=["torn", "empty", "absent", "no records", "a record less", "torn record", "no metrics", "other signature"],
)
def test_a_damaged_result_counts_as_missing(tmp_path: Path, damage: Any, finished: tuple[RunConfig, RunFolder]) -> None:
    config, original = finished
    config = config.model_copy(update={"paths": config.paths.model_copy(update={"runs": tmp_path})})
    folder = RunFolder.of(config)
    for path in (original.evaluation("piqa_full"), original.samples("piqa_full")):
        target = folder.root / "evaluate" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    assert missing_tasks(config, folder) == []
    damage(folder)
    assert missing_tasks(config, folder) == ["piqa_full"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, RunFolder]:
    config = run_config(tmp_path_factory.mktemp("finished"), ["piqa_full"])
    evaluate(config, RunFolder.of(config))
    return config, RunFolder.of(config)


def lines_of(folder: RunFolder) -> list[str]:
    return folder.samples("piqa_full").read_text().splitlines()


def change(folder: RunFolder, **values: Any) -> None:
    path = folder.evaluation("piqa_full")
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_other_data_limit_or_model_is_another_result(tmp_path: Path) -> None:
    data = tmp_path / "piqa.jsonl"
    data.write_bytes(DATA["piqa_full"].read_bytes())
    config = run_config(tmp_path, ["piqa_full"], {"piqa_full": data})
    folder = RunFolder.of(config)
    evaluate(config, folder)
    full = run_config(tmp_path, ["piqa_full"], {"piqa_full": data}, evaluation={"limit": None})
    assert missing_tasks(full, folder) == ["piqa_full"]
    budget = run_config(tmp_path, ["piqa_full"], {"piqa_full": data}, evaluation={"max_batch_tokens": 9})
    assert missing_tasks(budget, folder) == []
    data.write_bytes(DATA["piqa_full"].read_bytes().replace(b'"label": 0', b'"label": 1', 1))
    assert missing_tasks(config, folder) == ["piqa_full"]


def test_trained_weights_are_scored(tmp_path: Path) -> None:
    config, folder = trained_run(tmp_path)
    results = evaluate(config, folder)
    plain = run_config(tmp_path, ["csqa_full"])
    base = evaluate(plain, RunFolder.of(plain))
    assert results["csqa_full"]["model_fingerprint"] != base["csqa_full"]["model_fingerprint"]
    ours, theirs = (records_of(f, "csqa_full") for f in (folder, RunFolder.of(plain)))
    assert [r["log_likelihoods"] for r in ours] != [r["log_likelihoods"] for r in theirs]
    assert [r["prompt_hash"] for r in ours] == [r["prompt_hash"] for r in theirs]
    weights = folder.model / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert missing_tasks(config, folder) == ["csqa_full"]


@pytest.mark.parametrize(
    ("kind", "method"),
    [("lora", "causal"), ("dora", "causal"), ("ia3", "bitune"), ("vera", "causal"), ("full", "bitune")],
)
def test_a_model_that_training_left_untouched_is_refused(tmp_path: Path, kind: str, method: str) -> None:
    config, folder = trained_run(tmp_path, kind, method)
    untouched = build_model(config.model, config.method, config.tuning, seed=config.seed)
    untouched.save_pretrained(folder.model, template_hash=own_hash("csqa_full"))
    with pytest.raises(StageError, match="all have their initial values"):
        evaluate(config, folder)
    trained_like(method, kind).save_pretrained(folder.model, template_hash=own_hash("csqa_full"))
    assert evaluate(config, folder)["csqa_full"]["documents"] == 6


def copied_base(folder: Path) -> Path:
    base = folder / "base"
    base.mkdir()
    for path in STORIES.iterdir():
        (base / path.name).write_bytes(path.read_bytes())
    return base


def flip(path: Path) -> None:
    """The last bit of a file."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_what_the_training_stage_leaves_is_accepted_until_it_changes(tmp_path: Path) -> None:
    source = {"path": str(ROOT / "examples" / "data" / "commonsense_qa_train.jsonl"), "limit": 8}
    base = copied_base(tmp_path)
    config = run_config(
        tmp_path,
        ["csqa_full"],
        model={**BASE.model_dump(), "name": str(base)},
        method="bitune",
        tuning={"kind": "lora"},
        data={"sources": [source]},
        training={"max_steps": 2, "batch_size": 4, "micro_batch_size": 4, "tensorboard": False},
        paths={"cache": str(tmp_path / "cache")},
    )
    folder = RunFolder.of(config)
    train(config, folder)
    assert evaluate(config, folder)["csqa_full"]["signature"] == signature(config)
    assert missing_tasks(config, folder) == []

    changes = {
        folder.model / "adapter_model.safetensors": "adapter_model.safetensors: not what the training wrote",
        base / "model.safetensors": "base: has changed since .* was trained on it",
    }
    for file, words in changes.items():
        flip(file)
        assert missing_tasks(config, folder) == ["csqa_full"]
        with pytest.raises(StageError, match=words):
            evaluate(config, folder)
        flip(file)
    assert missing_tasks(config, folder) == []


def test_another_template_is_refused(tmp_path: Path) -> None:
    config, folder = trained_run(tmp_path)
    trained_like("bitune").save_pretrained(folder.model, template_hash="0123456789abcdef")
    with pytest.raises(UserError, match=r"0123456789abcdef.*csqa_full.*data.template: paper"):
        evaluate(config, folder)


def test_an_untrained_run_is_refused(tmp_path: Path) -> None:
    data = {"sources": [{"path": "train.jsonl"}]}
    config = run_config(tmp_path, TASKS, tuning={"kind": "lora"}, data=data)
    assert missing_tasks(config, RunFolder.of(config)) == list(TASKS)
    with pytest.raises(StageError, match="train the run first"):
        evaluate(config, RunFolder.of(config))


def test_missing_data_is_refused_before_a_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "load_model", lambda *_: pytest.fail("the model was loaded"))
    config = run_config(tmp_path, ["piqa_full"], {"piqa_full": tmp_path / "nowhere.jsonl"})
    with pytest.raises(UserError, match=r"evaluation.data.piqa_full: there is no file or folder .*nowhere.jsonl"):
        evaluate(config, RunFolder.of(config))


def test_a_result_that_cannot_be_saved_fails(tmp_path: Path) -> None:
    config = run_config(tmp_path, ["piqa_full"])
    folder = RunFolder.of(config)
    folder.root.mkdir(parents=True)
    (folder.root / "evaluate").write_text("in the way")
    with pytest.raises(StageError, match=r"piqa_full.answers: cannot be written"):
        evaluate(config, folder)
    assert missing_tasks(config, folder) == ["piqa_full"]


def test_cut_contexts_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"goal": "a dog and a cat " * 300, "sol1": "yes", "sol2": "no", "label": 0},
        {"goal": "b", "sol1": "c", "sol2": "d", "label": 1},
    ]
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    config = run_config(tmp_path, ["piqa_full"], {"piqa_full": path})
    assert evaluate(config, RunFolder.of(config))["piqa_full"]["truncated_requests"] == 2
    assert "2 contexts cut from the left" in capsys.readouterr().err


@pytest.mark.slow
def test_the_harness_knows_more_tasks(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """One test for all that needs the harness's index, which takes ten seconds to build."""
    text = tmp_path / "lambada.jsonl"
    text.write_text(
        '{"text": "Once upon a time there was a dog"}\n{"text": "Lily likes her red ball"}\n', encoding="utf-8"
    )
    data = {"lambada_standard": text, "arc_easy": DATA["arc_easy_full"], "mmlu": tmp_path / "mmlu.jsonl"}
    row = {"question": "2 + 2 is", "choices": ["1", "2", "3", "4"], "answer": 3}
    data["mmlu"].write_text(json.dumps(row) + "\n", encoding="utf-8")
    config = run_config(tmp_path, list(data), data, evaluation={"limit": None})
    results = evaluate(config, RunFolder.of(config))
    assert results["lambada_standard"]["higher_is_better"] == {"perplexity": False, "acc": True}
    assert (results["lambada_standard"]["template_hash"], results["arc_easy"]["documents"]) == (None, 128)
    assert (results["mmlu"]["template_hash"], results["mmlu"]["documents"]) == (own_hash("csqa_full"), 1)
    unknown = run_config(tmp_path, ["piqa_fulll"], {})
    with pytest.raises(
        UserError, match=r"unknown task 'piqa_fulll', did you mean 'piqa_full'\? \(ours are .*piqa_full"
    ):
        evaluate(unknown, RunFolder.of(unknown))


@pytest.mark.parametrize("key", ["data", "num_fewshot"])
def test_an_entry_meant_for_another_task_is_refused(tmp_path: Path, key: str) -> None:
    """Entries of tasks that are not scored are allowed: one file maps all tasks of a cluster."""
    meant = {"data": {"csqa": str(DATA["csqa_full"])}, "num_fewshot": {"csqa": 0}}[key]
    config = run_config(tmp_path, ["piqa_full"], evaluation={key: meant, "data": {}} | {key: meant})
    check_tasks(config.evaluation)
    config = run_config(tmp_path, ["csqa_full"], evaluation={key: meant, "data": {}} | {key: meant})
    with pytest.raises(UserError, match=rf"evaluation\.{key}: 'csqa' is none of .* did you mean 'csqa_full'\?"):
        evaluate(config, RunFolder.of(config))


def test_importing_the_configuration_is_light() -> None:
    code = (
        "import sys; import pipeline.evaluate.config, pipeline.evaluate; pipeline.evaluate.missing_tasks; "
        "sys.exit(bool({'torch', 'lm_eval'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_local_base_that_changed_is_another_model(tmp_path: Path) -> None:
    base = copied_base(tmp_path)
    config = run_config(tmp_path, ["piqa_full"], model={**BASE.model_dump(), "name": str(base)})
    folder = RunFolder.of(config)
    evaluate(config, folder)
    assert missing_tasks(config, folder) == []
    flip(base / "model.safetensors")
    assert missing_tasks(config, folder) == ["piqa_full"]
