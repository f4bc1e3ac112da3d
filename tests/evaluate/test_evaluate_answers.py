"""Answers are kept through kills, shared between processes, and given once."""

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from evaluate_inputs import BASE, STORIES, generations, run_config, trained_like
from test_evaluate_stage import records_of, trained_run
from transformers import PreTrainedTokenizerBase

from pipeline.cli import main
from pipeline.config import RunConfig, to_yaml
from pipeline.errors import StageError, UserError
from pipeline.evaluate import BranchedLM, evaluate, evaluate_share, missing_tasks, stage
from pipeline.evaluate.answers import Answers
from pipeline.evaluate.worker import Worker
from pipeline.run_folder import RunFolder
from pipeline.share import Share

BUDGET = 600


def test_answers_are_there_for_the_next_process(tmp_path: Path) -> None:
    first, second = Answers(tmp_path / "a", "x"), Answers(tmp_path / "a", "x")
    first.add({"1": [-0.1234567890123, True]})
    first.add({"2": "two\nlines"})
    second.add({"3": [-1.0, False]})
    assert Answers(tmp_path / "a", "x").known == {"1": [-0.1234567890123, True], "2": "two\nlines", "3": [-1.0, False]}
    assert Answers(tmp_path / "a", "another model").known == {}
    second.reload()
    assert second.holds(["1", "2", "3"]) and not second.holds(["4"])


@pytest.mark.parametrize("bytes_lost", range(1, 34, 4))
def test_a_torn_last_line_is_left_out(tmp_path: Path, bytes_lost: int) -> None:
    answers = Answers(tmp_path, "x")
    answers.add({"1": "ü", "2": "whole"})
    answers.add({"3": "a continuation torn in the writing"})
    (path,) = tmp_path.glob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-bytes_lost])
    known = Answers(tmp_path, "x").known
    assert known.items() >= {"1": "ü", "2": "whole"}.items()
    assert known.get("3") in (None, "a continuation torn in the writing")


@pytest.mark.parametrize("text", ["", "1", "0/4", "5/4", "a/4", "1/0", "1/4/2", "-1/4"])
def test_a_wrong_share_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="share"):
        Share.parse(text)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shares_cover_everything_once(count: int) -> None:
    shares = [Share.parse(f"{number}/{count}") for number in range(1, count + 1)]
    assert all(sum(share.holds(index) for share in shares) == 1 for index in range(20))


def in_fives(requests: Mapping[str, int], budget: int) -> Iterator[list[str]]:
    keys = list(requests)
    size = max(1, min(5, budget))
    for start in range(0, len(keys), size):
        yield keys[start : start + size]


def test_memory_that_does_not_suffice_halves_the_pass() -> None:
    sizes = []

    def work(requests: dict[str, int]) -> dict[str, int]:
        sizes.append(len(requests))
        if len(requests) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")
        return {key: 2 * value for key, value in requests.items()}

    worker = Worker(budget=8)
    worker.answer({f"{n}": n for n in range(12)}, in_fives, work)
    assert worker.answers.known == {f"{n}": 2 * n for n in range(12)}
    assert worker.room == 2
    assert sizes.count(5) == 1  # later passes are cut before they are tried
    assert max(sizes[3:]) <= 2


def test_one_request_too_many_is_an_error() -> None:
    def work(requests: dict[str, int]) -> dict[str, int]:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: 9 bytes")

    with pytest.raises(StageError, match="out of memory with a single request"):
        Worker(budget=8).answer({"a": 1, "b": 2}, in_fives, work)


def test_another_error_is_not_taken_for_memory() -> None:
    def work(requests: dict[str, int]) -> dict[str, int]:
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes"):
        Worker(budget=8).answer({"a": 1}, in_fives, work)


def short(config: RunConfig) -> RunConfig:
    """Passes of a few documents, so that there are many."""
    return config.model_copy(
        update={"evaluation": config.evaluation.model_copy(update={"max_batch_tokens": BUDGET, "limit": 40})}
    )


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    config, folder = trained_run(tmp_path_factory.mktemp("straight"))
    evaluate(short(config), folder)
    assert not folder.answers("csqa_full").exists()
    return records_of(folder, "csqa_full")


@pytest.mark.parametrize("count", [2, 3])
def test_shares_in_any_order_give_the_same_records(tmp_path: Path, count: int, straight: list[dict[str, Any]]) -> None:
    config, folder = trained_run(tmp_path)
    for number in range(count, 1, -1):
        assert evaluate_share(short(config), folder, Share(number, count)) == ["csqa_full"]
        assert not folder.evaluation("csqa_full").exists()
    assert evaluate_share(short(config), folder, Share(1, count)) == []
    assert records_of(folder, "csqa_full") == straight
    assert not folder.answers("csqa_full").exists()


def test_processes_give_the_same_records(tmp_path: Path, straight: list[dict[str, Any]]) -> None:
    config, folder = trained_run(tmp_path)
    file = tmp_path / "run.yaml"
    file.write_text(to_yaml(short(config)), encoding="utf-8")
    assert main(["evaluate", str(file), "--processes", "2"]) == 0
    assert records_of(folder, "csqa_full") == straight
    assert main(["evaluate", str(file), "--processes", "2", "--share", "1/2"]) == 2


def _evaluate_slowly(config: RunConfig, folder: RunFolder) -> None:
    torch.set_num_threads(1)
    score = BranchedLM._score_pass

    def slow(lm: BranchedLM, requests: Any) -> Any:
        time.sleep(0.05)
        return score(lm, requests)

    BranchedLM._score_pass = slow  # type: ignore[method-assign]
    evaluate(config, folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
def test_a_killed_evaluation_goes_on(
    tmp_path: Path, straight: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    config, folder = trained_run(tmp_path)
    process = multiprocessing.get_context("fork").Process(target=_evaluate_slowly, args=(short(config), folder))
    process.start()
    while sum(path.read_text().count("\n") for path in folder.answers("csqa_full").glob("*")) < 120:  # of 200
        time.sleep(0.02)
        assert process.is_alive()
    os.kill(process.pid or 0, number)
    process.join()
    assert process.exitcode == -number
    answered, score = [], BranchedLM._score_pass

    def counted(lm: BranchedLM, requests: Any) -> Any:
        answered.extend(requests)
        return score(lm, requests)

    monkeypatch.setattr(BranchedLM, "_score_pass", counted)
    assert evaluate(short(config), folder)["csqa_full"]["documents"] == 40
    assert 0 < len(answered) <= 81
    assert records_of(folder, "csqa_full") == straight


def test_answers_of_another_model_are_not_taken(tmp_path: Path, straight: list[dict[str, Any]]) -> None:
    config, folder = trained_run(tmp_path)
    evaluate_share(short(config), folder, Share(1, 2))
    (path,) = folder.answers("csqa_full").glob("*.jsonl")
    head, *lines = path.read_text().splitlines()
    wrong = [json.dumps([json.loads(line)[0], [-99.0, False]]) for line in lines]
    path.write_text("\n".join([json.dumps({"identity": "another model"}), *wrong]) + "\n")
    assert json.loads(head) != {"identity": "another model"}
    evaluate(short(config), folder)
    assert records_of(folder, "csqa_full") == straight


def test_a_process_that_dies_costs_only_time(
    tmp_path: Path, straight: list[dict[str, Any]], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.evaluate.processes._work", _die)
    config, folder = trained_run(tmp_path)
    evaluate(short(config), folder, processes=2)
    assert "process 2 ended with status -9: its share is done here" in capfd.readouterr().err
    assert records_of(folder, "csqa_full") == straight


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_sampling_is_the_same_in_every_repetition(tokenizer: PreTrainedTokenizerBase) -> None:
    requests = generations(["Once upon a time"] * 3 + ["Lily"], do_sample=True, temperature=1.0, max_gen_toks=12)
    model = trained_like("bitune")
    first, second = (BranchedLM(model, tokenizer).generate_until(requests) for _ in range(2))
    assert first == second
    assert len(set(first[:3])) == 3
    greedy = generations(["Once upon a time"], max_gen_toks=12)
    assert BranchedLM(model, tokenizer).generate_until(greedy)[0] not in first


def test_a_config_without_changes_has_its_old_settings(tmp_path: Path) -> None:
    config = run_config(tmp_path, ["piqa_full"])
    settings = evaluate(config, RunFolder.of(config))["piqa_full"]["settings"]
    assert settings["add_bos"] and not settings["apply_chat_template"]


GARBAGE = [
    '[["a"], 1]',
    "null",
    "[" * 100_000,
    '["KEY", null]',
    '["KEY", ["a", 5]]',
    '["KEY", [5.5, true]]',
    '["KEY", [-1.0]]',
    "\x00\x01",
    "",
]


@pytest.mark.parametrize("line", GARBAGE, ids=range(len(GARBAGE)))
def test_what_is_no_answer_is_left_out(tmp_path: Path, line: str) -> None:
    Answers(tmp_path, "x").add({"1": [-1.0, True]})
    (path,) = tmp_path.glob("*.jsonl")
    path.write_text(path.read_text() + line.replace("KEY", "2") + "\n" + '["3", "text"]\n')
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "dangling.jsonl").symlink_to(tmp_path / "nowhere")
    assert Answers(tmp_path, "x").known == {"1": [-1.0, True], "3": "text"}


def test_a_file_may_be_removed_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Answers(tmp_path, "x").add({"1": "a"})
    opened = Path.open

    def opened_at_last(path: Path, *arguments: Any, **options: Any) -> Any:
        file = opened(path, *arguments, **options)
        path.unlink()
        return file

    monkeypatch.setattr(Path, "open", opened_at_last)
    assert Answers(tmp_path, "x").known == {}


def test_a_folder_may_be_removed_while_it_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_dir", lambda path: True)  # it was there a moment ago
    answers = Answers(tmp_path / "gone", "x")
    answers.remove()
    assert answers.known == {}


def test_only_the_answers_to_the_own_question_are_removed(tmp_path: Path) -> None:
    own, same, other = Answers(tmp_path / "a", "x"), Answers(tmp_path / "a", "x"), Answers(tmp_path / "a", "y")
    own.add({"1": "a"})
    same.add({"2": "b"})
    other.add({"3": "c"})
    own.remove()
    assert Answers(tmp_path / "a", "x").known == {} and Answers(tmp_path / "a", "y").known == {"3": "c"}
    same.add({"4": "d"})  # its file has gone meanwhile
    assert Answers(tmp_path / "a", "x").known == {"4": "d"}
    same.remove()
    other.remove()
    assert not (tmp_path / "a").exists()
    same.add({"5": "e"})
    assert Answers(tmp_path / "a", "x").known == {"5": "e"}


def test_a_share_that_comes_too_late_leaves_nothing(
    tmp_path: Path, straight: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = trained_run(tmp_path)
    own = stage.answer

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(stage, "answer", own)
        evaluate(short(config), folder)
        own(*arguments)

    monkeypatch.setattr(stage, "answer", overtaken)
    assert evaluate_share(short(config), folder, Share(1, 2)) == []
    assert not folder.answers("csqa_full").exists()
    assert records_of(folder, "csqa_full") == straight


def test_shares_leave_what_an_evaluation_leaves(tmp_path: Path) -> None:
    config, folder = trained_run(tmp_path)
    file = tmp_path / "run.yaml"
    file.write_text(to_yaml(short(config)), encoding="utf-8")
    weights = folder.model / "adapter_model.safetensors"
    weights.rename(weights.with_suffix(".gone"))
    assert main(["evaluate", str(file), "--share", "1/2"]) == 2
    assert folder.failure.exists()
    weights.with_suffix(".gone").rename(weights)
    for number in (2, 1):
        assert main(["evaluate", str(file), "--share", f"{number}/2"]) == 0
    assert not folder.failure.exists()
    assert folder.versions.exists() and folder.config.exists()
    assert sorted(path.name for path in (folder.root / "evaluate").iterdir()) == ["csqa_full.json", "csqa_full.jsonl"]


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_every_file_of_a_model_counts(tmp_path: Path, name: str) -> None:
    base = tmp_path / "base"
    shutil.copytree(STORIES, base)
    config = run_config(tmp_path, ["piqa_full"], model={**BASE.model_dump(), "name": str(base)})
    evaluate(config, RunFolder.of(config))
    assert missing_tasks(config, RunFolder.of(config)) == []
    values = json.loads((base / name).read_text()) if (base / name).exists() else {}
    (base / name).write_text(json.dumps(values | {"something": "else"}))
    assert missing_tasks(config, RunFolder.of(config)) == ["piqa_full"]
