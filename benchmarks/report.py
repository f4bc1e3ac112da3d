"""How long a table takes from many run folders, and how large the page gets: synthetic runs, real report.

python benchmarks/report.py --runs 10000 --updates 20      # a table from 10,000 folders
python benchmarks/report.py --runs 500 --updates 1000 --layers 32   # the page at 500 runs
"""

import argparse
import cProfile
import io
import json
import pstats
import random
import tempfile
import time
from pathlib import Path

from rich.console import Console

from pipeline.config import RunConfig, parse_config, signature
from pipeline.report import Cell, cells_of, report
from pipeline.run_folder import RunFolder

TASKS = ("piqa_full", "arc_full", "csqa_full", "siqa_full", "mmlu")


class Clock:
    """Seconds since it was made: on the wall, and of this process alone, which others on the machine don't change."""

    def __init__(self) -> None:
        self.wall, self.processor = time.perf_counter(), time.process_time()

    def __str__(self) -> str:
        return f"{time.perf_counter() - self.wall:.1f} s ({time.process_time() - self.processor:.1f} s of processor)"


def main() -> None:
    """Make the folders, report them as bare folders and as a grid with a baseline, print times and sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--layers", type=int, default=0, help="of the mixing ratios")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clock = Clock()
        cells = [make_run(folder, number, arguments) for number in range(arguments.runs)]
        print(f"made {arguments.runs} run folders in {clock}", flush=True)
        profile = cProfile.Profile()
        if arguments.profile:
            profile.enable()
        measure("bare folders", cells_from_folders(cells), None, folder / "bare")
        measure("grid with a baseline", cells, "row 0", folder / "grid")
        if arguments.profile:
            pstats.Stats(profile).sort_stats("cumulative").print_stats(35)


def cells_from_folders(cells: list[Cell]) -> list[Cell]:
    """The same runs, found by their folders; timed too."""
    clock = Clock()
    found = cells_of([cell.folder for cell in cells])
    print(f"grouped the folders in {clock}", flush=True)
    return found


def measure(name: str, cells: list[Cell], baseline: str | None, output: Path) -> None:
    """One report; its time and the size of its page."""
    clock = Clock()
    table = report(cells, name, baseline, output, Console(file=io.StringIO()))
    page = output / "report.html"
    size = f"{page.stat().st_size / 1e6:.2f} MB" if page.exists() else "left out"
    print(f"{name}: {len(table.rows)} rows in {clock}, page {size}", flush=True)


def make_run(folder: Path, number: int, arguments: argparse.Namespace) -> Cell:
    """A whole made-up run: three seeds a row, rows differ in the learning rate."""
    row, seed = divmod(number, 3)
    config = parse_config(
        {
            "name": f"bench-{number}",
            "seed": 42 + seed,
            "model": {"name": "models/bench"},
            "method": {"name": "bitune" if row % 2 else "causal"},
            "data": {"sources": [{"path": "train.jsonl"}]},
            "training": {"learning_rate": 1e-4 * (1 + row)},
            "evaluation": {"tasks": list(TASKS)},
            "paths": {"runs": str(folder / "runs")},
        },
        "benchmark",
    )
    run = RunFolder.of(config)
    run.create(config)
    run.model.mkdir()
    (run.root / "train").mkdir()
    (run.root / "evaluate").mkdir()
    write_training(run, config, arguments)
    for task in TASKS:
        write_evaluation(run, config, task, arguments.documents)
    return Cell(f"row {row}", config.seed, run, TASKS, config=config)


def write_training(run: RunFolder, config: RunConfig, arguments: argparse.Namespace) -> None:
    """train/result.json and train/metrics.jsonl."""
    result = {"signature": signature(config), "prepared_key": "data", "wall_seconds": 100.0, "tokens_per_second": 300.0,
              "peak_memory_bytes": 2e9, "trainable_parameters": 10**6, "versions": {"commit": "0" * 12}}  # fmt: skip
    run.train_result.write_text(json.dumps(result))
    with run.metrics.open("w") as file:
        for step in range(1, arguments.updates + 1):
            values = {"step": step, "loss": 2 / step + random.random(), "learning_rate": 1e-3 / step,
                      "tokens_per_second": 300 + random.random(), "peak_memory_bytes": 2 * 10**9,
                      "samples": list(range(10))}  # fmt: skip
            if arguments.layers and step % max(1, arguments.updates // 10) == 0:
                values["alphas"] = [{"key": random.random(), "value": random.random()} for _ in range(arguments.layers)]
            file.write(json.dumps(values) + "\n")


def write_evaluation(run: RunFolder, config: RunConfig, task: str, documents: int) -> None:
    """evaluate/TASK.json and TASK.jsonl."""
    rights = [float(random.random() < 0.6) for _ in range(documents)]
    content = {
        "task": task, "signature": signature(config), "evaluation_signature": "e", "model_fingerprint": "m",
        "limit": None, "documents": documents, "metrics": {"acc": sum(rights) / documents}, "main_metric": "acc",
        "higher_is_better": {"acc": True}, "task_version": 1.0, "task_hash": task, "versions": {"commit": "0" * 12},
    }  # fmt: skip
    run.evaluation(task).write_text(json.dumps(content))
    lines = [
        json.dumps({"task": task, "doc_id": i, "doc_hash": "d" * 64, "prompt_hash": "p" * 64,
                    "choices": ["one", "two", "three", "four"], "log_likelihoods": [-1.0, -2.0, -3.0, -4.0],
                    "answer": 0, "prediction": 0, "correct": bool(right), "metrics": {"acc": right}})
        for i, right in enumerate(rights)
    ]  # fmt: skip
    run.samples(task).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
