"""Duplicates against plain references: equality of rows, and Jaccard similarity of all pairs."""

import json
import random
from pathlib import Path

import numpy
import pyarrow as pa
import pytest
from prepare_inputs import DATA, MakeRun

import pipeline.prepare.duplicates as duplicates
from pipeline.prepare import prepare
from pipeline.prepare.duplicates import DuplicateFinder
from pipeline.prepare.filter_config import DuplicatesConfig
from pipeline.prepare.fingerprints import columns_for, shingles, signatures

QUESTIONS = [json.loads(line)["question"] for line in
             (DATA / "gsm8k_train.jsonl").read_text(encoding="utf-8").splitlines()][:60]  # fmt: skip


def _texts() -> list[str]:
    """Real questions, and copies of some with some words changed."""
    random.seed(3)
    texts = list(QUESTIONS)
    for text in QUESTIONS[:30]:
        words = text.split()
        for _ in range(random.randrange(0, 5)):
            words[random.randrange(len(words))] = "something"
        texts.append(" ".join(words))
    return texts


def _similarity(left: str, right: str, n: int) -> float:
    a, b = {*shingles(left, n)}, {*shingles(right, n)}
    return len(a & b) / len(a | b)


def _find(folder: Path, texts: list[str], config: DuplicatesConfig) -> numpy.ndarray:
    finder = DuplicateFinder(folder, config)
    for start in range(0, len(texts), 7):
        column = pa.array(signatures(texts[start : start + 7], config), pa.binary(4 * config.permutations))
        finder.add(pa.record_batch([column], names=["near"]))
    return finder.find()[0]


@pytest.mark.parametrize("part", [4_000_000, 16])
def test_near_duplicates_are_those_of_all_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    """Those far above the threshold are found, those far below are not; a margin for MinHash's error lies between."""
    monkeypatch.setattr(duplicates, "PART", part)
    monkeypatch.setattr(duplicates, "BLOCK", 13)
    texts, config = _texts(), DuplicatesConfig(near=0.7, permutations=256)
    earlier = _find(tmp_path, texts, config)
    best = [max((_similarity(text, other, 3) for other in texts[:n]), default=0.0) for n, text in enumerate(texts)]
    surely = [n for n, similarity in enumerate(best) if similarity > 0.85]
    assert len(surely) > 5
    assert all(earlier[n] >= 0 for n in surely)
    for n in numpy.flatnonzero(earlier >= 0):
        assert earlier[n] < n
        assert _similarity(texts[n], texts[earlier[n]], 3) > 0.6


def test_signatures_estimate_jaccard_similarity() -> None:
    config = DuplicatesConfig(near=0.5, permutations=512)
    texts = _texts()
    matrix = numpy.array([numpy.frombuffer(one, "<u4") for one in signatures(texts, config)])
    for n in range(60, 90):
        exact = _similarity(texts[n], texts[n - 60], 3)
        assert abs((matrix[n] == matrix[n - 60]).mean() - exact) < 4 * 0.5 / 512**0.5


@pytest.mark.parametrize("processes", [1, 2])
def test_exact_duplicates_in_the_stage(tmp_path: Path, make_run: MakeRun, processes: int) -> None:
    random.seed(5)
    rows = [{"prompt": f"Say {random.randrange(300)}.", "completion": f"{random.randrange(3)}"} for _ in range(1300)]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    seen: dict[str, int] = {}
    for line, row in enumerate(rows, start=1):
        seen.setdefault(json.dumps(row), line)
    everything = prepare(*make_run(tmp_path / "x.jsonl"))
    prepared = prepare(*make_run(tmp_path / "x.jsonl", filters={"duplicates": {"exact": True}}), processes=processes)
    assert [row.id for row in prepared.rows()] == [f"x.jsonl:{line}" for line in seen.values()]
    first = {row.id: row for row in everything.rows()}
    assert all(row == first[row.id] for row in prepared.rows())
    manifest = prepared.manifest
    assert manifest["dropped"]["exact duplicate"]["count"] == 1300 - len(seen) == manifest["rows"]["dropped"]
    for line in (prepared.path / "rejects.jsonl").read_text().splitlines():
        reject = json.loads(line)
        original = seen[json.dumps(rows[int(reject["line"]) - 1])]
        assert reject["detail"] == f"of x.jsonl:{original}"
    assert sorted(path.name for path in prepared.path.iterdir()) == ["manifest.json", "rejects.jsonl", "rows.arrow"]


def test_near_duplicates_in_the_stage(tmp_path: Path, make_run: MakeRun) -> None:
    texts = _texts()
    (tmp_path / "x.jsonl").write_text("\n".join(json.dumps({"prompt": text, "completion": "7"}) for text in texts))
    prepared = prepare(*make_run(tmp_path / "x.jsonl", filters={"duplicates": {"exact": True, "near": 0.8}}))
    dropped = prepared.manifest["dropped"]
    assert dropped["exact duplicate"]["count"] == 90 - len({*texts})
    assert dropped["near duplicate"]["count"] > 5
    assert len(prepared) + prepared.manifest["rows"]["dropped"] == 90


def test_without_the_filter_no_fingerprint_is_made() -> None:
    assert columns_for(DuplicatesConfig()) == []
