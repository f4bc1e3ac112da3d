"""What is known before any process starts: ranks from the environment, DeepSpeed's JSON, deadlines."""

import os
import signal
import time
from typing import Any

import pytest

from pipeline.config import RunConfig, signature
from pipeline.errors import UserError
from pipeline.train.config import TrainingConfig
from pipeline.train.environment import rank_variables
from pipeline.train.signals import DEADLINE, StopSignals, deadline
from pipeline.train.zero import deepspeed_json

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"
}  # fmt: skip
SRUN = {
    "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "16", "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "gpu[03-05,9],login",
}  # fmt: skip


def test_torchrun_is_honoured() -> None:
    assert rank_variables({**TORCHRUN, "HOME": "/"}) == TORCHRUN


def test_slurm_step_is_a_run_of_several() -> None:
    found = rank_variables(SRUN)
    assert [found[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")] == ["9", "16", "1", "gpu03"]
    others = [rank_variables({**SRUN, key: "1"})["MASTER_PORT"] for key in ("SLURM_JOB_ID", "SLURM_STEP_ID")]
    again = rank_variables({**SRUN, "SLURM_RESTART_COUNT": "1"})["MASTER_PORT"]
    assert len({found["MASTER_PORT"], *others, again}) == 4


@pytest.mark.parametrize("variables", [{}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, {"WORLD_SIZE": "1"}])
def test_alone(variables: dict[str, str]) -> None:
    """A batch script itself is no step of several tasks."""
    assert rank_variables(variables) == {}


def test_half_a_launcher_is_refused() -> None:
    with pytest.raises(UserError, match="WORLD_SIZE = 4 but LOCAL_RANK, MASTER_PORT not set"):
        rank_variables({key: value for key, value in TORCHRUN.items() if key not in ("LOCAL_RANK", "MASTER_PORT")})


def zero(**values: Any) -> TrainingConfig:
    return TrainingConfig.model_validate({"zero": values, "max_grad_norm": None})


def test_deepspeed_gets_our_settings_and_further_ones() -> None:
    further = {"zero_optimization": {"overlap_comm": False}, "comms_logger": {"enabled": True}}
    values = deepspeed_json(zero(stage=3, offload_optimizer="cpu", deepspeed=further))
    sharding = values["zero_optimization"]
    assert (sharding["stage"], sharding["overlap_comm"]) == (3, False)
    assert sharding["offload_optimizer"]["device"] == "cpu"
    assert (values["gradient_clipping"], values["comms_logger"]) == (0.0, {"enabled": True})


@pytest.mark.parametrize(
    "values, words",
    [
        ({"stage": 4}, "less than or equal to 3"),
        ({"stage": 2, "offload_parameters": "cpu"}, "offload_parameters needs zero.stage 3"),
        ({"offload_optimizer": "cpu"}, "offload_optimizer needs zero.stage 1"),
        ({"stage": 3, "offload_optimizer": "disk"}, "'none', 'cpu' or 'nvme'"),
        ({"stage": 2, "offload_optimizer": "nvme", "nvme_path": "/x"}, "offload_optimizer = nvme needs zero.stage 3"),
        ({"stage": 3, "offload_optimizer": "nvme"}, "offload_optimizer = nvme needs zero.nvme_path"),
        ({"stage": 3, "nvme_path": "/x"}, "nvme_path is set, but nothing is offloaded to nvme"),
        (
            {"stage": 3, "offload_parameters": "nvme", "nvme_path": "/x"},
            "offload_parameters = nvme needs zero.offload_optimizer cpu or nvme",
        ),
        (
            {"stage": 3, "deepspeed": {"zero_optimization": {"offload_param": {"nvme_path": "/x"}}}},
            "offload_param.nvme_path contradicts what is set by training.zero.nvme_path",
        ),
        ({"deepspeed": {"x": 1}}, "zero.stage is 0"),
        ({"stage": 1, "deepspeed": {"bf16": {"enabled": True}}}, "bf16 contradicts what is set by model.precision"),
        ({"stage": 1, "deepspeed": {"zero_optimization": {"stage": 2}}}, "zero_optimization.stage contradicts"),
        ({"stage": 1, "deepspeed": {"train_batch_size": 8}}, "train_batch_size contradicts .* training.batch_size"),
    ],
)
def test_contradictions_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        zero(**values)


def test_key_that_deepspeed_does_not_know_is_refused() -> None:
    with pytest.raises(UserError, match=r"refused by DeepSpeed .*stage3_max_live"):
        deepspeed_json(zero(stage=3, deepspeed={"zero_optimization": {"stage3_max_live": 1}}))


def test_how_a_run_is_shared_out_is_not_part_of_what_is_trained() -> None:
    base = {"model": "m", "data": {"sources": [{"path": "x.jsonl"}]}}

    def of(**training: Any) -> str:
        return signature(RunConfig.model_validate({**base, "model": {"name": "m"}, "training": training}))

    assert of() == of(zero={"stage": 3}) == of(grace_seconds=1) == of(micro_batch_tokens=None)
    assert of() != of(micro_batch_tokens=100)


def test_deadline_of_a_slurm_job() -> None:
    assert deadline({"SLURM_JOB_END_TIME": "1000"}, grace=240, now=0) == 760
    assert deadline({"SLURM_JOB_END_TIME": "1000"}, grace=240, now=800) == 950
    assert deadline({}, grace=240, now=0) is None
    with StopSignals(grace=60, deadline=time.time() + 3600) as early, StopSignals(60, time.time() - 1) as late:
        assert early.received is None
        assert late.received == DEADLINE == signal.SIGALRM


def test_in_a_job_only_the_first_signal_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch system and the supervisor of the job may both send one."""
    monkeypatch.setenv("DUALTUNE_SUPERVISED", "1")
    with StopSignals(grace=60) as signals:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert signals.received == signal.SIGTERM
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_weights_of_two_types_cannot_be_on_nvme() -> None:
    values: dict[str, Any] = {
        "model": {"name": "m", "precision": "bf16"},
        "tuning": {"kind": "lora"},
        "data": {"sources": [{"path": "x.jsonl"}]},
        "training": {"zero": {"stage": 3, "offload_optimizer": "cpu", "offload_parameters": "nvme", "nvme_path": "/x"}},
    }
    with pytest.raises(ValueError, match="offload_parameters = nvme keeps weights of one type"):
        RunConfig.model_validate(values)
    assert RunConfig.model_validate(values | {"tuning": {"kind": "full"}})


def test_compiled_layers_cannot_be_sharded() -> None:
    with pytest.raises(ValueError, match=r"compile = inductor cannot be used with zero\.stage 3"):
        TrainingConfig.model_validate({"compile": "inductor", "zero": {"stage": 3}})
