"""Packing plans: equal to what each update would be given alone, kept once, and never taken for another's."""

from pathlib import Path
from typing import Any

import pytest
from train_runs import STORIES, Samples, samples

from pipeline.cli import main
from pipeline.files import write_json
from pipeline.prepare.entries import entries
from pipeline.train import plan
from pipeline.train.batches import SampleOrder
from pipeline.train.plan import PLANS, Plans
from pipeline.train.share import Packing
from pipeline.train.split import Subset

ROWS = samples(41, turns=2)


def plans(folder: Path | None, rows: Any = ROWS, budget: int = 60, branches: int = 2, ranks: int = 2, seed: int = 7,
          batch_size: int = 9, keeps: bool = True) -> Plans:  # fmt: skip
    packing = Packing(1, budget, branches)
    return Plans(rows, SampleOrder(len(rows), batch_size, seed), packing, ranks, folder, keeps)


def all_of(found: Plans, epochs: int = 2) -> list[Any]:
    return [found.of(step) for step in range(1, epochs * found.order.steps_per_epoch + 1)]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_it_is_what_each_update_would_be_given_alone(ranks: int, tmp_path: Path) -> None:
    found, packing = plans(tmp_path, ranks=ranks), Packing(1, 60, branches=2)
    for step, parts in enumerate(all_of(found), start=1):
        rows = [ROWS[number] for number in found.order.batch(step)]
        assert parts == packing.plan(rows, ranks)
        assert sorted(index for rank in parts for part in rank for index in part) == list(range(len(rows)))


def test_it_is_worked_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = all_of(plans(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2, "one file an epoch"
    monkeypatch.setattr(plan, "balanced", None)
    assert all_of(plans(tmp_path)) == all_of(plans(tmp_path, keeps=False)) == expected


@pytest.mark.parametrize("harm", [lambda c: b"", lambda c: c[:-1], lambda c: c[4:], lambda c: c + c,
                                  lambda c: bytes([c[0] ^ 1]) + c[1:]])  # fmt: skip
def test_a_damaged_one_is_worked_out_anew(harm: Any, tmp_path: Path) -> None:
    expected = all_of(plans(tmp_path))
    whole = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for path, content in whole.items():
        path.write_bytes(harm(content))
    assert all_of(plans(tmp_path)) == expected
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == whole


@pytest.mark.parametrize("other", [{"rows": samples(41, seed=1)}, {"rows": ROWS[:40]}, {"rows": Samples(ROWS[::-1])},
                                   {"budget": 61}, {"branches": 1}, {"ranks": 1}, {"seed": 8}, {"batch_size": 8}],
                         ids=lambda other: next(iter(other)))  # fmt: skip
def test_another_is_never_taken_for_it(other: dict[str, Any], tmp_path: Path) -> None:
    assert {plans(tmp_path).path(epoch) for epoch in range(2)}.isdisjoint(
        {plans(tmp_path, **other).path(epoch) for epoch in range(2)}
    )


def test_rows_held_out_leave_the_plan_of_the_others(tmp_path: Path) -> None:
    kept = [number for number in range(len(ROWS)) if number % 5]
    alone = Samples(ROWS[number] for number in kept)
    assert all_of(plans(tmp_path, Subset(ROWS, kept))) == all_of(plans(None, alone))


def test_a_cache_that_cannot_be_written_serves_as_well(tmp_path: Path) -> None:
    (tmp_path / "plans").write_text("in the way")
    assert all_of(plans(tmp_path / "plans")) == all_of(plans(None))


def test_only_one_rank_writes(tmp_path: Path) -> None:
    assert all_of(plans(tmp_path, keeps=False)) == all_of(plans(None))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_keeps_it_in_the_cache_and_another_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another method with as many branches, over the same rows in the same order; cleaned away with the rows."""
    write_json(tmp_path / "rows.json", [{"prompt": f"Say {n}." * (n % 4 + 1), "completion": "It."} for n in range(12)])
    values = {
        "model": {"name": str(STORIES), "precision": "fp32"}, "tuning": {"kind": "lora", "rank": 2},
        "data": {"sources": [{"path": str(tmp_path / "rows.json")}], "validation_fraction": 0.2},
        "training": {"batch_size": 4, "micro_batch_tokens": 60, "epochs": 2, "trackers": []},
        "paths": {"runs": str(tmp_path / "runs"), "cache": str(tmp_path / "cache")},
    }  # fmt: skip
    write_json(tmp_path / "run.yaml", values)
    assert main(["train", str(tmp_path / "run.yaml"), "method=bitune"]) == 0
    (entry,) = entries(tmp_path / "cache", tmp_path / "runs")
    kept = sorted((entry.path / PLANS).iterdir())
    assert len(kept) == 2 and entry.size > sum(path.stat().st_size for path in kept)
    monkeypatch.setattr(plan, "balanced", None)
    assert main(["train", str(tmp_path / "run.yaml"), "method=only_causal"]) == 0
    assert sorted((entry.path / PLANS).iterdir()) == kept
    assert main(["data", "clean", entry.key, "--yes", f"--cache={tmp_path / 'cache'}"]) == 0
    assert not entry.path.exists()
