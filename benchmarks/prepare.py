"""How fast data are prepared, against the bare tokenizer on the same texts, and in how much memory, by filter.

python benchmarks/prepare.py                                   # speed: 20,000 rows, one process
python benchmarks/prepare.py --processes 2                     # both with two processes
python benchmarks/prepare.py --memory --rows 40000 400000      # peak memory of fresh processes, small against large

Rows are made from examples/data: each is a real row with a number in its question, and every tenth repeats an earlier
one. Rows, checks, template, labels, filters, writing, checksums and reading back are in the time; `bare` is
`tokenizer(texts)` in chunks of the same size. Processor time of all processes is printed too: others on the machine
don't change it much.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.config import RunConfig, parse_config
from pipeline.model import load_tokenizer
from pipeline.prepare import prepare
from pipeline.prepare.forms import FORMS
from pipeline.prepare.paper import paper_prompt
from pipeline.prepare.pool import in_order
from pipeline.prepare.reading import chunks
from pipeline.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
DATA = ROOT / "examples" / "data"
KINDS: dict[str, dict[str, Any]] = {
    "no filter": {"empty_answers": False},
    "default": {},
    "tokens": {"whole_tokens": {"max": 400}, "answer_tokens": {"min": 3}},
    "language": {"language": {"scripts": ["Latin"]}},
    "patterns": {"patterns": [{"pattern": r"https?://\S+"}, {"pattern": "(?i)as an ai language model"}]},
    "overlap": {"overlap": {"mode": "drop", "files": [str(DATA / "commonsense_qa_validation.jsonl")]}},
    "exact duplicates": {"duplicates": {"exact": True}},
    "near duplicates": {"duplicates": {"near": 0.8}},
}


def rows(count: int) -> Iterator[dict[str, str]]:
    """Alpaca rows, the same ones for each count."""
    examples = [json.loads(line) for line in (DATA / "commonsense_qa_train.jsonl").read_text("utf-8").splitlines()]
    instructions = json.loads((DATA / "alpaca.json").read_text("utf-8"))
    read = [FORMS["question_choices"].read(row) for row in examples] + [FORMS["alpaca"].read(r) for r in instructions]
    chance = random.Random(1)
    for number in range(count):
        chosen = chance.choice(read)
        stamp = number if number % 10 else number // 20
        yield {"instruction": f"{stamp}. {paper_prompt(chosen)}", "output": chosen.answer}


def write_rows(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows(count):
            file.write(json.dumps(row) + "\n")


def run_of(source: Path, folder: Path, model: str, filters: dict[str, Any]) -> RunConfig:
    values = {
        "model": {"name": model},
        "data": {"sources": [{"path": str(source)}], "max_dropped_percent": 100, "filters": filters},
        "paths": {"runs": str(folder / "runs"), "cache": str(folder / "cache")},
    }
    return parse_config(values, "benchmark")


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the wall, and of processors by this process and its children."""
    before, started = _processor(), time.perf_counter()
    work()
    return time.perf_counter() - started, _processor() - before


def _processor() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def speed(count: int, processes: int, repeats: int, model: str, kinds: list[str]) -> None:
    """Times of bare tokenizer and of each kind of filter, interleaved; medians, and their ratio to bare."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "rows.jsonl"
        write_rows(source, count)
        config = run_of(source, Path(name), model, {})
        tokenizer = load_tokenizer(config.model)
        texts = list(chunks(f"Question: {row['instruction']}\n\nAnswer: {row['output']}" for row in rows(count)))
        times: dict[str, list[tuple[float, float]]] = {}

        def tokenise(chunk: list[str]) -> int:
            return len(tokenizer(chunk, add_special_tokens=False)["input_ids"])

        for repeat in range(repeats):
            times.setdefault("bare", []).append(timed(lambda: sum(in_order(tokenise, texts, processes))))
            for kind in kinds:
                run = run_of(source, Path(name) / f"{kind} {repeat}", model, KINDS[kind])
                took = timed(lambda run=run: prepare(run, RunFolder.of(run), processes))
                times.setdefault(kind, []).append(took)
    bare = [statistics.median(values) for values in zip(*times["bare"], strict=True)]
    print(f"{count} rows, {processes} processes, medians of {repeats}; throughput against the bare tokenizer's")
    for kind, values in times.items():
        wall, processor = (statistics.median(one) for one in zip(*values, strict=True))
        ratios = f"{bare[0] / wall:5.2f} by wall  {bare[1] / processor:5.2f} by processor"
        print(f"{kind:18} {count / wall:9.0f} rows/s  {ratios}")


def memory(counts: list[int], processes: int, model: str, kinds: list[str]) -> None:
    """Peak memory of a process that prepares, for each number of rows."""
    with tempfile.TemporaryDirectory() as name:
        for count in counts:
            write_rows(Path(name) / f"{count}.jsonl", count)
        for kind in kinds:
            peaks = [peak(Path(name), count, processes, model, kind) for count in counts]
            ratio = f"{peaks[-1] / peaks[0]:.2f}"
            sizes = ", ".join(f"{value:.0f} MiB at {count}" for value, count in zip(peaks, counts, strict=True))
            print(f"{kind:18} {sizes} rows: {ratio}", flush=True)


def peak(folder: Path, count: int, processes: int, model: str, kind: str) -> float:
    """MiB of the largest process."""
    source = str(folder / f"{count}.jsonl")
    command = [sys.executable, __file__, "--one", source, kind, "--processes", str(processes), "--model", model]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def one(source: Path, kind: str, processes: int, model: str) -> None:
    with tempfile.TemporaryDirectory(dir=source.parent) as name:
        config = run_of(source, Path(name), model, KINDS[kind])
        prepare(config, RunFolder.of(config), processes)
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(max(usage.ru_maxrss for usage in usages) / 1024)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--model", default=str(ROOT / "models" / "SmolLM2-135M-Instruct"))
    parser.add_argument("--one", nargs=2, metavar=("FILE", "KIND"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(Path(arguments.one[0]), arguments.one[1], arguments.processes, arguments.model)
    elif arguments.memory:
        memory(arguments.rows, arguments.processes, arguments.model, arguments.kinds)
    else:
        speed(arguments.rows[0], arguments.processes, arguments.repeats, arguments.model, arguments.kinds)


if __name__ == "__main__":
    main()
