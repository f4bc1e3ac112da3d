"""From cells to arrays; attempts; the states of cells. No Slurm is needed."""

import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launch_inputs import tiny_grid, write_grid

from launch.attempts import Attempts
from launch.flights import in_flight
from launch.grid import Grid, load_grid
from launch.jobs import Task, index_list, plan_jobs
from launch.plan import CellPlan
from launch.profile import Profile
from launch.slurm import Queued, clean_environment, is_available, own_job
from launch.submission import Record, Submission, submissions
from pipeline.errors import StageError
from pipeline.stages import STAGES, State, stages_of

ROWS: dict[str, dict[str, Any]] = {"Pretrained": {"tuning": "none"}, "LoRA": {}, "Bitune": {"method": "bitune"}}


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    """Five cells: one that is not trained, two rows of two seeds."""
    changes = {"paths": {"runs": str(tmp_path / "runs")}}
    return load_grid(write_grid(tmp_path, {**tiny_grid(ROWS, **changes), "seeds": [1, 2]}))


def plans(grid: Grid, **complete: tuple[str, ...]) -> list[CellPlan]:
    """Plans in which the named stages of a run folder are complete."""
    return [
        CellPlan(cell, {s: State(s in complete.get(f"cell{n}", ()), "") for s in stages_of(cell.config)})
        for n, cell in enumerate(grid.cells)
    ]


def shapes(grid: Grid, found: list[CellPlan], flights: Any = None, largest: int = 1000, **profile: Any) -> list[Any]:
    plan = plan_jobs(found, Profile.model_validate(profile), largest, flights or {})
    return [(a.job, list(a.tasks.values()), a.after or a.after_job) for a in plan.arrays]


def test_evaluations_follow_their_own_trainings(grid: Grid) -> None:
    assert shapes(grid, plans(grid)) == [("evaluate", [0], None), ("train", [1, 2, 3, 4], None),
                                         ("evaluate", [1, 2, 3, 4], 2)]  # fmt: skip


def test_what_is_complete_needs_no_job(grid: Grid) -> None:
    found = plans(grid, cell0=("evaluate",), cell1=STAGES, cell2=("prepare", "train"))
    assert shapes(grid, found) == [("evaluate", [2], None), ("train", [3, 4], None), ("evaluate", [3, 4], 2)]
    done = plans(grid, cell0=STAGES, cell1=STAGES, cell2=STAGES, cell3=STAGES, cell4=STAGES)
    assert shapes(grid, done) == []


def test_arrays_are_split_at_the_cluster_s_size_and_by_what_they_ask_for(grid: Grid) -> None:
    special = [{"cells": "Bitune*", "train": {"nodes": 2}}]
    found = shapes(grid, plans(grid, cell0=STAGES), largest=1, special=special)
    assert [shape[0] for shape in found] == ["train", "evaluate"] * 4
    found = shapes(grid, plans(grid, cell0=STAGES), special=special)
    assert found == [("train", [1, 2], None), ("evaluate", [1, 2], 1), ("train", [3, 4], None), ("evaluate", [3, 4], 3)]


def test_jobs_in_the_queue_are_adopted(grid: Grid) -> None:
    names = [cell.folder.root.name for cell in grid.cells]
    training = {(names[3], "train"): Task("77", 5)}
    plan = plan_jobs(plans(grid, cell0=STAGES, cell1=STAGES, cell2=STAGES, cell4=STAGES), Profile(), 9, training)
    (array,) = plan.arrays  # its evaluation was not submitted yet: it follows index by index
    assert (array.job, array.tasks, array.after_job) == ("evaluate", {5: 3}, "77")
    both = {**training, (names[3], "evaluate"): Task("78", 5)}
    assert shapes(grid, plans(grid, cell0=STAGES, cell1=STAGES, cell2=STAGES, cell4=STAGES), both) == []


@pytest.mark.parametrize(("indices", "text"), [([0], "0"), ([0, 1, 2], "0-2"), ([7, 0, 1, 3], "0-1,3,7"), ([], "")])
def test_indices_as_slurm_writes_them(indices: list[int], text: str) -> None:
    assert index_list(indices) == text


def test_a_job_inherits_nothing_of_the_job_that_submits_it() -> None:
    outer = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_CONF": "/c", "HOME": "/h", "RANK": "3",
             "CUDA_VISIBLE_DEVICES": "2", "SBATCH_ACCOUNT": "mine"}  # fmt: skip
    assert clean_environment(outer) == {"SLURM_CONF": "/c", "HOME": "/h", "SBATCH_ACCOUNT": "mine"}
    assert clean_environment({"CUDA_VISIBLE_DEVICES": "2"}) == {"CUDA_VISIBLE_DEVICES": "2"}


@pytest.mark.parametrize(("told", "status"), [("is DOWN", 1), ("is UP", 0), ("no configuration", 1)])
def test_a_controller_that_does_not_answer_is_not_taken_for_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, status: int
) -> None:
    for name, words in (("sbatch", ""), ("scontrol", f"echo 'Slurmctld(primary) at head {told}'; exit {status}")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{words}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    if told == "is DOWN":
        with pytest.raises(StageError, match="Slurm does not answer"):
            is_available()
    else:
        assert is_available() == (told == "is UP")


def test_a_task_names_itself_and_not_its_whole_array() -> None:
    """Slurm gives the last task of an array the id of the array."""
    task = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    assert own_job(task) == "7_2"
    assert own_job({"SLURM_JOB_ID": "7"}) == "7" and own_job({}) == ""


def test_a_submission_is_read_back_as_it_was(grid: Grid) -> None:
    grid = replace(grid, blocks="model", reference={"Paper": {"csqa_full": "50"}})
    submission = Submission.create(grid, Profile(max_parallel=3))
    (found,) = submissions(grid.runs)
    assert found.path == submission.path
    assert found.grid() == grid
    assert found.cell(3) == grid.cells[3]
    assert found.profile.max_parallel == 3
    assert (found.path / "code" / "launch" / "supervisor.py").is_file()
    record = Record(1, "train", "x.train.1", {0: "a", 5: "b"}, {0: 1, 5: 2}, "9")
    submission.write(record)
    assert found.records() == [record]


def test_a_job_whose_id_was_not_written_is_found_by_its_name(grid: Grid) -> None:
    submission = Submission.create(grid, Profile())
    submission.write(Record(1, "train", "mine.train.1", {0: "a", 1: "b"}, {0: 0, 1: 1}))
    queue = [Queued(Task("12", slot), str(12 + slot), "PENDING", "Resources", "mine.train.1") for slot in (0, 1)]
    other = Queued(Task("13", 0), "13", "RUNNING", "None", "another")
    flights = in_flight([submission], [*queue, other])
    assert {key: flight.queued.task for key, flight in flights.items()} == {
        ("a", "train"): Task("12", 0), ("b", "train"): Task("12", 1)}  # fmt: skip
    (record,) = submission.records()
    assert record.id == "12"
    submission.cancel(record, [1])
    assert list(in_flight([submission], queue)) == [("a", "train")]


def test_two_submissions_of_one_second_have_folders_of_their_own(grid: Grid) -> None:
    names = {Submission.create(replace(grid, name="same"), Profile()).path for _ in range(3)}
    assert len(names) == 3


def test_a_submission_that_cannot_be_written_names_its_folder(grid: Grid) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(StageError, match=r"\.submissions/.*: cannot be written \(\[Errno 27\] File too large"):
            Submission.create(grid, Profile())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert submissions(grid.runs) == []


def attempts(tmp_path: Path, *events: tuple[str, int], submission: str = "s") -> Attempts:
    found = Attempts(tmp_path / "attempts.jsonl", submission, "train")
    for event, reached in events:
        if event == "begin":
            found.begin(reached)
        else:
            found.finish(event, reached, 1)  # type: ignore[arg-type]
    return found


def test_three_failures_at_one_step_are_enough(tmp_path: Path) -> None:
    twice = attempts(tmp_path, *[("begin", 0), ("failed", 7)] * 2)
    assert twice.verdict(7) == ""
    thrice = attempts(tmp_path, ("begin", 7), ("failed", 7))
    assert "failed 3 times" in thrice.verdict(7)
    assert thrice.verdict(8) == ""
    assert attempts(tmp_path, submission="another").verdict(7) == ""


def test_failures_before_the_furthest_point_count(tmp_path: Path) -> None:
    """Killed at some step between two checkpoints, each time at another one."""
    events = [event for step in (57, 55, 56) for event in (("begin", 50), ("failed", step))]
    assert "failed 3 times and got no further" in attempts(tmp_path, *events).verdict(56)
    assert attempts(tmp_path, ("begin", 50), ("stopped", 100)).verdict(100) == ""


def test_progress_and_preemption_are_no_reason_to_give_up(tmp_path: Path) -> None:
    moving = attempts(tmp_path, *[event for step in range(20) for event in (("begin", step), ("failed", step + 1))])
    assert moving.verdict(20) == ""
    stopped = attempts(tmp_path, *[("begin", 20), ("stopped", 20)] * 8)
    assert stopped.verdict(20) == ""


def test_starts_that_get_nowhere_end(tmp_path: Path) -> None:
    found = attempts(tmp_path, *[("begin", 4)] * 10)  # nothing wrote their end
    assert "got no further" in found.verdict(4)
