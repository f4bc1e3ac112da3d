"""A user's mistake in a configuration: one sentence that names the culprit and what was allowed."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch.grid import load_grid
from pipeline.config import RunConfig, load_config, parse_config, signature
from pipeline.errors import UserError
from pipeline.model.config import refuse_missing_folder

VALID: dict[str, Any] = {
    "model": "models/tiny",
    "method": "bitune",
    "data": {"sources": [{"path": "train.jsonl"}]},
}
WriteConfig = Callable[..., Path]


@pytest.fixture
def write_config(tmp_path: Path) -> WriteConfig:
    """`write_config(training={"epochs": 3})` writes a valid configuration with these changes."""

    def write(name: str = "run.yaml", **changes: Any) -> Path:
        path = tmp_path / name
        path.write_text(yaml.safe_dump({**VALID, **changes}), encoding="utf-8")
        return path

    return write


def message(path: Path, overrides: Sequence[str] = ()) -> str:
    """The error without the path, checked to be one line that names the file."""
    with pytest.raises(UserError) as caught:
        load_config(path, overrides)
    text = str(caught.value)
    assert text.startswith(str(path)) and "\n" not in text and caught.value.status == 2
    return text.removeprefix(str(path)).removeprefix(": ")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"trainig": {}}, "unknown key 'trainig', did you mean 'training'? (allowed here: audit, data, evaluation,"),
        ({"learning_rate": 1}, "unknown key 'learning_rate', did you mean 'training.learning_rate'? (allowed here:"),
        ({"training": {"epoch": 3}}, "unknown key 'training.epoch', did you mean 'epochs'? (allowed here: batch_size,"),
        ({"data": {"sources": [{"path": "a", "colums": {}}]}},
         "unknown key 'data.sources.0.colums', did you mean 'columns'? (allowed here: answered_by, columns,"),
        ({"method": {"name": "mine", "branches": [{"patern": "causal"}]}}, "method.branches.0.pattern is missing"),
        ({"tuning": {"zzz": 1}}, "unknown key 'tuning.zzz' (allowed here: alpha, dropout, kind, rank, target_modules)"),
    ],
)  # fmt: skip
def test_a_misspelt_key_is_named(write_config: WriteConfig, changes: dict[str, Any], expected: str) -> None:
    assert message(write_config(**changes)).startswith(expected)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("trainig.epochs=3", "unknown key 'trainig', did you mean 'training'?"),
        ("training.epoch=3", "unknown key 'training.epoch', did you mean 'epochs'?"),
        ("training.epochs=many", "training.epochs = 'many': must be a number"),
        ("method=bitun", "method: unknown method 'bitun', did you mean 'bitune'? (use one of causal,"),
        ("training=3", "training = 3: must hold keys and values"),
    ],
)
def test_a_wrong_override_is_named(write_config: WriteConfig, override: str, expected: str) -> None:
    text = message(write_config(), ["seed=43", override])
    assert text.startswith(f" with {override}: {expected}")


def test_a_key_that_is_given_twice_is_refused(write_config: WriteConfig) -> None:
    """The last one would win unseen, where two runs were meant."""
    for load in (load_config, load_grid):
        with pytest.raises(UserError, match=r"^seed=1 seed=2: a key can be given once"):
            load(write_config(), ["seed=1", "training.epochs=1", "seed=2"])


@pytest.mark.parametrize("override", ["training.epochs", "=3", "training.epochs=[1"])
def test_an_override_of_another_form_is_named(write_config: WriteConfig, override: str) -> None:
    with pytest.raises(UserError, match=r"^override '.*' is not of the form key=value|not a YAML value$"):
        load_config(write_config(), [override])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"training": {"epochs": "many"}}, "training.epochs = 'many': must be a number"),
        ({"training": {"batch_size": 2.5}}, "training.batch_size = 2.5: must be a whole number"),
        ({"training": {"batch_size": True}}, "training.batch_size = True: must not be true or false"),
        ({"training": {"batch_size": 0}}, "training.batch_size = 0: must be at least 1"),
        ({"training": {"learning_rate": -1}}, "training.learning_rate = -1: must be greater than 0"),
        ({"training": {"learning_rate": float("inf")}}, "training.learning_rate = inf: must be a finite number"),
        ({"training": {"warmup_ratio": 1}}, "training.warmup_ratio = 1: must be less than 1"),
        ({"training": {"trackers": ["tensorbord"]}},
         "training.trackers.0 = 'tensorbord': must be one of 'tensorboard', 'wandb' or 'mlflow', "
         "did you mean 'tensorboard'?"),
        ({"training": {"trackers": ["wandb", "wandb"]}}, "training.trackers: wandb is named twice"),
        ({"training": {"loss_reduction": "tokens"}},
         "training.loss_reduction = 'tokens': must be one of 'token' or 'sample', did you mean 'token'?"),
        ({"training": {"betas": [0.9]}}, "training.betas.1 is missing"),
        ({"training": None}, "training = None: must hold keys and values"),
        ({"data": {"sources": []}}, "data.sources: must have 1 or more entries, not 0"),
        ({"data": {"sources": "train.jsonl"}}, "data.sources = 'train.jsonl': must be a list"),
        ({"data": {"sources": [3]}}, "data.sources.0 = 3: must hold keys and values"),
        ({"data": {"sources": [{}]}}, "data.sources.0.path is missing"),
        ({"data": None}, "data is missing: a run that trains"),
        ({"model": " "}, "model.name = ' ': must not be empty"),
        ({"method": "bitun"}, "method: unknown method 'bitun', did you mean 'bitune'? (use one of causal, naive_"),
        ({"method": {"name": "bitune", "branches": [{"pattern": "causal"}]}},
         "method: the branches are not those of the preset 'bitune'"),
        ({"method": {"name": "mine", "branches": [{"pattern": "casual"}]}},
         "method.branches.0.pattern = 'casual': must be one of 'causal',"),
        ({"tuning": {"kind": "lorra"}}, "tuning.kind = 'lorra': must be one of 'none', 'full', 'lora'"),
        ({"evaluation": {"tasks": "piqa"}}, "evaluation.tasks = 'piqa': must be a list"),
        ({"evaluation": {"limit": 0}}, "evaluation.limit = 0: must be at least 1"),
        ({"evaluation": {"data": {"piqa": 3}}}, "evaluation.data.piqa = 3: must be a file, or {test: file,"),
        ({"evaluation": {"data": {"piqa": {"tst": "a"}}}},
         "evaluation.data.piqa.test is missing; unknown key 'evaluation.data.piqa.tst', did you mean 'test'? (allowed "
         "here: fewshot, test)"),
        ({"evaluation": {"num_fewshot": -1}}, "evaluation.num_fewshot = -1: must be a whole number from 0, or such a"),
        ({"evaluation": {"num_fewshot": {"piqa": "5"}}}, "evaluation.num_fewshot: must be a whole number from 0, or"),
        ({"evaluation": {"num_fewshot": True}}, "evaluation.num_fewshot = True: must be a whole number"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named(write_config: WriteConfig, changes: dict[str, Any], expected: str) -> None:
    text = message(write_config(**changes))
    assert text.removeprefix("configuration: ").startswith(expected)
    assert "Input should" not in text and "validation" not in text


def test_all_faults_are_named_at_once(write_config: WriteConfig) -> None:
    text = message(write_config(seeed=1, training={"epochs": 0, "batch": 2}))
    assert all(part in text for part in ("'seeed'", "training.epochs = 0: must be greater than 0", "'training.batch'"))


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("tuning: none\n", encoding="utf-8")
    assert message(path) == "model is missing"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"model: caf\xe9\n", "is not UTF-8 text (at byte 10)"),
        (b"model: tiny\ntraining: [1, 2\nseed: 3\n", " line 3: not valid YAML ("),
        (b"model: \x00\n", "not valid YAML ("),
        (b"model: tiny\ntraining: {epochs: 1}\ntraining: {}\n",
         " line 3: not valid YAML (key 'training' is given twice)"),
        (b"- model\n", "must hold keys and values, not a list"),
        (b"", "must hold keys and values, not nothing"),
        (b"model: ${nothing}\n", "Interpolation key 'nothing' not found"),
        (b"base: 3\n", "base: must be a list of YAML files, not 3"),
    ],
)  # fmt: skip
def test_an_unreadable_file_is_named(tmp_path: Path, content: bytes | None, expected: str) -> None:
    path = tmp_path / "run.yaml"
    if content is not None:
        path.write_bytes(content)
    assert message(path).startswith(expected)


def test_a_pipe_is_no_configuration(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.yaml")
    assert message(tmp_path / "run.yaml").startswith("is no regular file (it is read more than once")


def test_a_home_folder_of_nobody_is_named(write_config: WriteConfig) -> None:
    config = load_config(write_config(model="~nobody_of_this_name/model"))
    with pytest.raises(UserError, match="~nobody_of_this_name/model: there is no such user"):
        refuse_missing_folder(config.model)


def test_a_folder_is_no_configuration(tmp_path: Path) -> None:
    assert message(tmp_path) == "cannot be read (Is a directory)"


def test_a_missing_base_is_named(write_config: WriteConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml: cannot be read"):
        load_config(write_config(base="nowhere.yaml"))


def test_bases_in_a_circle_are_refused(write_config: WriteConfig) -> None:
    write_config("a.yaml", base="b.yaml")
    path = write_config("b.yaml", base=["a.yaml"])
    assert message(path) == "its base files include each other in a circle"
    assert message(write_config("c.yaml", base="c.yaml")) == "its base files include each other in a circle"


def test_a_base_used_twice_is_no_circle(write_config: WriteConfig) -> None:
    write_config("shared.yaml", seed=7)
    write_config("left.yaml", base="shared.yaml")
    write_config("right.yaml", base="shared.yaml")
    assert load_config(write_config(base=["left.yaml", "right.yaml"])).seed == 7


def test_defaults_base_file_and_overrides_in_that_order(write_config: WriteConfig) -> None:
    write_config("first.yaml", training={"epochs": 2, "batch_size": 2, "micro_batch_size": 2})
    write_config("second.yaml", training={"epochs": 3, "batch_size": 3})
    path = write_config(base=["first.yaml", "second.yaml"], training={"epochs": 4})
    found = load_config(path, ["training.log_every=5", "seed=9"])
    training = found.training
    assert (training.epochs, training.batch_size, training.micro_batch_size, training.log_every) == (4, 3, 2, 5)
    assert found.seed == 9 and training.learning_rate == 3e-4


def test_an_override_refines_a_short_form(write_config: WriteConfig) -> None:
    path = write_config(method="bitune", tuning="dora")
    found = load_config(path, ["method.theta_init=0.1", "tuning.rank=16", "model.precision=fp32"])
    assert (found.method.name, found.method.theta_init, len(found.method.branches)) == ("bitune", 0.1, 2)
    assert (found.tuning.kind, found.tuning.rank) == ("dora", 16)
    assert (found.model.name, found.model.precision) == ("models/tiny", "fp32")


def test_an_override_replaces_the_method_and_keeps_its_settings(write_config: WriteConfig) -> None:
    found = load_config(write_config(method={"name": "bitune", "theta_init": 0.1}), ["method=shared_weights"])
    assert (found.method.name, found.method.theta_init) == ("shared_weights", 0.1)


def run(**changes: Any) -> RunConfig:
    return parse_config({**VALID, "model": {"name": "models/tiny"}, **changes}, "test")


def test_equal_configurations_have_equal_signatures(write_config: WriteConfig) -> None:
    spelt = load_config(write_config(method={"name": "bitune"}, training={"learning_rate": "3e-4", "epochs": 1}))
    assert signature(spelt) == signature(run()) == signature(run(seed=42, tuning={"kind": "lora"}))


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 43},
        {"model": {"name": "models/tiny", "precision": "fp32"}},
        {"method": "only_causal"},
        {"method": {"name": "bitune", "theta_init": 0.1}},
        {"tuning": {"alpha": 2}},
        {"training": {"warmup_ratio": 0.2}},
        {"training": {"loss_reduction": "token"}},
        {"data": {"sources": [{"path": "other.jsonl"}]}},
        {"data": {"sources": [{"path": "train.jsonl"}], "max_tokens": 256}},
    ],
)
def test_what_changes_the_result_changes_the_signature(changes: dict[str, Any]) -> None:
    assert signature(run(**changes)) != signature(run())


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"paths": {"runs": "elsewhere", "cache": "elsewhere"}},
        {"evaluation": {"tasks": ["piqa_full"], "limit": 3}},
        {"training": {"checkpoint_every": None, "keep_checkpoints": 5, "log_every": 10, "trackers": []}},
    ],
)
def test_what_cannot_change_the_result_keeps_the_signature(changes: dict[str, Any]) -> None:
    assert signature(run(**changes)) == signature(run())


def test_a_pretrained_model_depends_on_no_training() -> None:
    pretrained = run(tuning={"kind": "none"})
    for changes in ({"seed": 1}, {"data": None}, {"training": {"epochs": 9}}):
        assert signature(run(tuning={"kind": "none"}, **changes)) == signature(pretrained)
    assert signature(run(tuning={"kind": "none"}, method="causal")) != signature(pretrained)


def test_the_signature_of_a_fixed_configuration() -> None:
    """Changed? Then every finished run counts as not done: intended only when a default changed on purpose."""
    assert signature(run()) == "e40d268b7f756f73"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed=-1", "seed = -1"),
        ("training.betas=[0.9,1.5]", "training.betas"),
        ("name=../elsewhere", "name = '../elsewhere'"),
        ("evaluation.tasks=[csqa_full,csqa_full]", "csqa_full twice"),
        ("data.sources.0.limit=2", "a list is replaced as a whole"),
    ],
)
def test_values_that_would_fail_only_later(override: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: m\ndata: {sources: [{path: x.jsonl}]}\n")
    with pytest.raises(UserError) as caught:
        load_config(path, [override])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert override in str(caught.value)


def test_a_grid_is_no_run(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text("name: g\nrows: {a: {}}\n")
    with pytest.raises(UserError, match=r"grid.yaml: is a grid"):
        load_config(path)
