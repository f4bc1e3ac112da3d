"""The training stage on real text, from rows to a saved model."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from train_runs import STORIES, numbers

from pipeline.cli import main
from pipeline.config import RunConfig, as_dict, parse_config, signature, to_yaml
from pipeline.errors import StageError, UserError
from pipeline.files import read_json, write_json
from pipeline.model import Batch, DualBranch
from pipeline.run_folder import RunFolder
from pipeline.train import is_complete, stage, train
from pipeline.train.checkpoint import Checkpoints
from pipeline.train.metrics import MetricsLog, read_metrics

QUESTIONS = (
    ("What does the sun give us?", "light"),
    ("Where do fish live?", "in the water, far below the boats"),
    ("Who says moo?", "a cow"),
    ("What is in a nest?", "eggs and then small birds"),
    ("What do bees make?", "honey"),
    ("What falls in winter?", "snow falls and covers the trees"),
    ("What barks?", "a dog"),
    ("What opens a door?", "a key"),
    ("What is red and sweet?", "an apple"),
)


def config_of(folder: Path, kind: str = "lora", **training: object) -> RunConfig:
    """9 rows as 4 + 4 + 1, over 2 epochs. Run folders differ, signatures don't."""
    data = folder.parent / "rows.jsonl"
    if not data.exists():
        rows = (json.dumps({"instruction": question, "output": answer}) + "\n" for question, answer in QUESTIONS)
        data.write_text("".join(rows))
    settings = {"batch_size": 4, "micro_batch_size": 2, "epochs": 2, "learning_rate": 1e-2, "checkpoint_every": 2}
    values = {
        "model": {"name": str(STORIES), "precision": "fp32"},
        "method": "bitune",
        "tuning": {"kind": kind, "rank": 4, "dropout": 0.1},
        "training": settings | training,
        "paths": {"runs": str(folder), "cache": str(folder.parent / "cache")},
    }
    if kind != "none":
        values["data"] = {"sources": [{"path": str(data)}]}
    return parse_config(values, "test")


def templated(folder: Path) -> RunConfig:
    """The same in a template of the user's own, packed to a budget, and without dropout, which ranks draw apart."""
    values = as_dict(config_of(folder, micro_batch_tokens=60))
    values["data"]["template"] = {"prompt": "### {{ question }}\n", "answer": "=> {{ answer }}"}
    values["tuning"]["dropout"] = 0.0
    return parse_config(values, "test")


def run(config: RunConfig) -> tuple[RunFolder, dict]:
    folder = RunFolder.of(config)
    return folder, train(config, folder)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_run_leaves_a_model_equal_to_memory(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[DualBranch] = []
    build = stage.build_model
    monkeypatch.setattr(stage, "build_model", lambda *arguments: built.append(build(*arguments)) or built[0])
    config = config_of(tmp_path / "runs", kind)
    folder, result = run(config)

    assert is_complete(config, folder)
    assert result == read_json(folder.train_result)
    assert (result["signature"], result["steps"], result["epochs"]) == (signature(config), 6, 2.0)
    assert 0 < result["trainable_parameters"] <= result["total_parameters"]
    assert result["tokens_per_second"] > 0 and result["peak_memory_bytes"] > 0 and result["wall_seconds"] > 0
    assert len(result["alphas"]) == 5

    rows = read_metrics(folder.metrics)
    assert [row["step"] for row in rows] == list(range(1, 7))
    assert rows[-1]["loss"] == result["final_loss"] < rows[0]["loss"]
    assert any(folder.tensorboard.iterdir())
    assert not folder.checkpoints.exists()
    assert {"tokenizer.json", "dualtune.json"} <= {path.name for path in folder.model.iterdir()}

    loaded, batch = DualBranch.from_pretrained(folder.model), Batch.pack([[1, 40, 50], []], [[60, 70], [1, 80, 90]])
    assert set(loaded.facts) == {"signature", "prepared_key", "base_model", "template_hash"}
    assert (loaded.facts["signature"], loaded.facts["prepared_key"]) == (result["signature"], result["prepared_key"])
    with torch.no_grad():
        assert torch.equal(loaded(batch), built[0].eval()(batch))


@pytest.mark.slow
def test_resume_from_a_named_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    config = config_of(tmp_path / "runs", keep_checkpoints=9)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "remove_all", lambda _: None)
        folder, straight = run(config)
    file, named = tmp_path / "config.yaml", folder.checkpoints / "step-000002"
    file.write_text(to_yaml(config))
    command = ["train", str(file), "--resume", str(named)]
    rows = numbers(read_metrics(folder.metrics))

    assert main(command) == 2
    assert "is trained already" in capsys.readouterr().err
    folder.train_result.unlink()
    shutil.copytree(named, tmp_path / "copy" / named.name)
    (named / "weights.safetensors").write_bytes(b"torn")
    assert main(command) == 1
    assert f"{named}: weights.safetensors is damaged" in capsys.readouterr().err
    assert main([*command[:-1], str(tmp_path / "none")]) == 1
    assert "none: there is no such folder" in capsys.readouterr().err
    copied = [*command[:-1], str(tmp_path / "copy" / named.name)]
    assert main([*copied, "seed=7"]) == 1
    assert "written with signature" in capsys.readouterr().err
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == [f"step-{step:06d}" for step in (2, 4, 6)]

    assert main(copied) == 0
    messages = capsys.readouterr().err
    assert "resumed after step 2 of 6" in messages
    assert "newer checkpoints removed, to be made again: step-000006, step-000004" in messages
    found = read_json(folder.train_result)
    assert found["final_loss"] == straight["final_loss"]
    assert numbers(read_metrics(folder.metrics)) == rows


def test_complete_run_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path / "runs", max_steps=1)
    _, result = run(config)
    monkeypatch.setattr(stage, "build_model", None)
    assert run(config)[1] == result


def test_completeness_is_judged_by_content(tmp_path: Path) -> None:
    config = config_of(tmp_path / "runs", max_steps=1)
    folder = RunFolder.of(config)
    assert not is_complete(config, folder)
    _, result = run(config)
    assert is_complete(config, folder)
    for change in ({"signature": "other"}, {"model_files": {}}, {"model_files": {"dualtune.json": 1}}):
        write_json(folder.train_result, result | change)
        assert not is_complete(config, folder)
    text = json.dumps(result)
    folder.train_result.write_text(text[: len(text) // 2])
    assert not is_complete(config, folder)
    folder.train_result.write_text(text)
    assert is_complete(config, folder)
    (folder.model / "adapter_model.safetensors").unlink()
    assert not is_complete(config, folder)


def test_changed_data_are_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path / "runs", max_steps=1)
    run(config)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"instruction": "What is new?", "output": "this"}\n')
    with pytest.raises(UserError, match="trained on data that have changed since"):
        run(config)


def test_nothing_to_train(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    config = config_of(tmp_path / "runs", "none")
    folder, result = run(config)
    assert result == {}
    assert "not needed" in capsys.readouterr().err
    assert not folder.root.exists()
    assert is_complete(config, folder)


def test_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path / "runs")
    write = MetricsLog.write

    def full(self: MetricsLog, values: dict) -> None:
        if values["step"] == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "metrics.jsonl")
        write(self, values)

    monkeypatch.setattr(MetricsLog, "write", full)
    with pytest.raises(StageError, match=r"metrics.jsonl: No space left on device"):
        run(config)
    monkeypatch.undo()
    folder, _ = run(config)
    assert [row["step"] for row in read_metrics(folder.metrics)] == list(range(1, 7))


def test_out_of_memory_says_what_to_lower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(DualBranch, "losses", exhausted)
    with pytest.raises(StageError, match=r"out of memory on the GPU: lower training.micro_batch_size"):
        run(config_of(tmp_path / "runs"))


def test_nan_names_step_and_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DualBranch, "losses", lambda self, batch, labels: self(batch).sum(-1) * torch.nan)
    config = config_of(tmp_path / "runs", batch_size=1)
    with pytest.raises(StageError, match=r"^step 1: the loss is nan, from the samples rows.jsonl:\d$"):
        run(config)
    assert not is_complete(config, RunFolder.of(config))


def test_damaged_export_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path / "runs", max_steps=2)
    folder = RunFolder.of(config)
    save = DualBranch.save_pretrained

    def forgetful(self: DualBranch, target: Path, **facts: object) -> None:
        save(self, target, **facts)
        (target / "prompt_branch.safetensors").unlink()

    monkeypatch.setattr(DualBranch, "save_pretrained", forgetful)
    with pytest.raises(StageError, match=r"10 trained tensors were not saved"):
        run(config)
    assert not folder.model.exists() and not is_complete(config, folder)
    monkeypatch.undo()
    assert run(config)[1]["steps"] == 2  # from the checkpoint of the last step


def test_checkpoint_of_other_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path / "runs")
    monkeypatch.setattr(stage, "export", None)
    with pytest.raises(TypeError):
        run(config)
    monkeypatch.undo()
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"instruction": "What is new?", "output": "this"}\n')
    with pytest.raises(StageError, match=r"step-000006: written with prepared_key .* remove the checkpoints"):
        run(config)


COMMAND = (
    "import sys, torch; torch.set_num_threads(1)\n"
    "from pipeline.config import load_config; from pipeline.run_folder import RunFolder\n"
    "from pipeline.train import train; from pipeline.errors import UserError\n"
    "config = load_config(sys.argv[1])\n"
    "try: train(config, RunFolder.of(config))\n"
    "except UserError as error: print(error); sys.exit(error.status)\n"
)


def start_and_signal(config: RunConfig, folder: RunFolder, after: int, number: int) -> subprocess.Popen:
    """Train in another process and send it the signal once `after` updates are logged."""
    file = folder.root.parent / "config.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(to_yaml(config))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(file)], env=environment, stdout=subprocess.PIPE, text=True
    )
    while len(read_metrics(folder.metrics)) < after and child.poll() is None:
        time.sleep(0.01)
    child.send_signal(number)
    return child


@pytest.mark.slow
def test_killed_and_terminated_process_ends_with_the_same_model(tmp_path: Path) -> None:
    options = {"epochs": 14, "checkpoint_every": 5, "micro_batch_size": 4}
    straight, expected = run(config_of(tmp_path / "straight", **options))
    config = config_of(tmp_path / "killed", **options)
    folder = RunFolder.of(config)
    with start_and_signal(config, folder, 7, signal.SIGKILL) as child:
        assert child.wait() == -signal.SIGKILL
    with start_and_signal(config, folder, 20, signal.SIGTERM) as child:
        assert child.wait() == 128 + signal.SIGTERM
        assert "a checkpoint is saved, the same command goes on from it" in child.stdout.read()
    assert Checkpoints(folder.checkpoints, {}, 1).latest()[0].step >= 20
    _, result = run(config)
    assert result["final_loss"] == expected["final_loss"]
    assert numbers(read_metrics(folder.metrics)) == numbers(read_metrics(straight.metrics))
    for file in ("adapter_model.safetensors", "prompt_branch.safetensors"):
        assert (folder.model / file).read_bytes() == (straight.model / file).read_bytes()


@pytest.mark.slow
def test_two_commands_at_once_train_once(tmp_path: Path) -> None:
    """The second waits for the first, or comes when it has ended."""
    config, file = config_of(tmp_path / "runs"), tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pipeline.cli", "train", str(file)]
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    texts = [child.communicate(timeout=600)[0] for child in both]
    assert [child.returncode for child in both] == [0, 0], texts
    assert sorted("step 6/6" in text for text in texts) == [False, True]
    assert sorted("train: complete, skipped" in text for text in texts) == [False, True]
    assert [row["step"] for row in read_metrics(RunFolder.of(config).metrics)] == list(range(1, 7))


def test_weights_that_the_last_update_spoils_stop_the_run(tmp_path: Path) -> None:
    config = config_of(tmp_path / "runs", learning_rate=1e300, warmup_ratio=0.0, max_steps=1)
    with pytest.raises(StageError, match=r"step 1: the mixing ratios are not finite after the update: lower training"):
        run(config)
    assert not RunFolder.of(config).train_result.exists()
