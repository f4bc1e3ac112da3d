"""Processor time to load and plan a large grid: with nothing there, and with every run complete (made-up run folders).

python benchmarks/grid.py --rates 834        # 4 ranks x 834 learning rates x 3 seeds: 10,008 runs
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import yaml

from launch.grid import Grid, load_grid
from launch.plan import plan, summary
from pipeline.config import RunConfig, signature
from pipeline.evaluate.fingerprint import content_hash, evaluation_signature, model_fingerprint
from pipeline.run_folder import RunFolder

DOCUMENTS = 100


def main() -> None:
    """Make the grid, plan it, make its run folders, plan it again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=int, default=834)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        path = write_grid(Path(name), arguments.rates)
        grid = timed("nothing there", path)
        for cell in grid.cells:
            complete(cell.config)
        timed("all complete", path)


def write_grid(folder: Path, rates: int) -> Path:
    """A grid file with its data."""
    (folder / "data.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    values = {
        "name": "bench",
        "config": {
            "model": "models/bench",
            "data": {"sources": [{"path": "data.jsonl"}]},
            "evaluation": {"tasks": ["csqa_full"], "data": {"csqa_full": "data.jsonl"}},
        },
        "axes": {"training.learning_rate": [1e-6 * (1 + rate) for rate in range(rates)], "tuning.rank": [2, 4, 8, 16]},
        "rows": {"Bitune": {"method": "bitune"}},
        "seeds": [42, 43, 44],
    }
    path = folder / "grid.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def timed(name: str, path: Path) -> Grid:
    """Load and plan; print the seconds of this process."""
    start = time.process_time()
    grid = load_grid(path)
    loaded = time.process_time()
    plans = plan(grid)
    planned = time.process_time()
    print(f"{name}: load {loaded - start:.1f} s, plan {planned - loaded:.1f} s of processor ({summary(plans)})")
    return grid


def complete(config: RunConfig) -> None:
    """A whole made-up run."""
    run = RunFolder.of(config)
    run.model.mkdir(parents=True)
    run.metrics.parent.mkdir()
    (run.root / "evaluate").mkdir()
    (run.model / "adapter_model.safetensors").write_bytes(os.urandom(64))
    source = {"source": "data.jsonl", "sha256": content_hash(Path("data.jsonl"))}
    run.prepare_manifest.write_text(
        json.dumps({"key": "k", "sources": [source], "paths": {"data.jsonl": "data.jsonl"}})
    )
    result = {"signature": signature(config), "prepared_key": "k", "steps": 1, "final_loss": 1.0,
              "model_files": {"adapter_model.safetensors": 64}}  # fmt: skip
    run.train_result.write_text(json.dumps(result))
    records = "".join(json.dumps({"doc_id": number, "correct": True}) + "\n" for number in range(DOCUMENTS))
    run.samples("csqa_full").write_text(records)
    score = {"evaluation_signature": evaluation_signature("csqa_full", config, model_fingerprint(config, run)),
             "documents": DOCUMENTS, "metrics": {"acc": 1.0}}  # fmt: skip
    run.evaluation("csqa_full").write_text(json.dumps(score))


if __name__ == "__main__":
    main()
