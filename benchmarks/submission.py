"""How planning, submitting and watching grow with the size of a grid.

python benchmarks/submission.py --cells 10000

Slurm's commands are stand-ins that answer at once (they count submissions and show all tasks as pending), so that only
our own work is measured. Prints processor seconds and seconds for each command, and the number of submissions.
"""

import argparse
import os
import resource
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = {
    "sbatch": """
import pathlib, re, sys
place = pathlib.Path(__file__).parent / "jobs"; place.mkdir(exist_ok=True)
script = pathlib.Path(sys.argv[-1]).read_text()
job = str(len(list(place.iterdir())) * 100000 + 1)
spans = re.search(r"--array=([0-9,-]+)", script); name = re.search(r"--job-name=(\\S+)", script)[1]
(place / job).write_text(f"{name} {spans[1] if spans else ''}"); print(job)
""",
    "squeue": """
import pathlib
for file in (pathlib.Path(__file__).parent / "jobs").glob("*"):
    name, spans = file.read_text().split(" ")
    for span in spans.split(","):
        first, _, last = span.partition("-")
        for slot in range(int(first or 0), int(last or first or 0) + 1):
            print(f"{file.name}|{slot}|{file.name}|PENDING|Resources|{name}")
""",
    "scontrol": """
import os, sys
print("Slurmctld(primary) at here is UP" if sys.argv[1] == "ping" else f"MaxArraySize = {os.environ['MAX_ARRAY_SIZE']}")
""",
    "sacct": "",
}


def main() -> None:
    """Make the grid, run the commands, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=10000)
    parser.add_argument("--max-array-size", type=int, default=1001)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _write_commands(folder / "bin")
        _write_grid(folder, options.cells)
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        os.environ |= {"PATH": path, "MAX_ARRAY_SIZE": str(options.max_array_size), "PYTHONPATH": str(ROOT)}
        print(f"{options.cells} cells, MaxArraySize {options.max_array_size}")
        for command in ("plan", "submit", "status"):
            _measure(folder, command)
        jobs = len(list((folder / "bin" / "jobs").iterdir()))
        parts = -(-options.cells // options.max_array_size)
        print(f"submissions: {jobs}, {jobs / parts:.2f} for each {options.max_array_size} cells of one resource shape")


def _write_commands(folder: Path) -> None:
    folder.mkdir()
    for name, text in COMMANDS.items():
        file = folder / name
        file.write_text(f"#!{sys.executable} -S\n{text}")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)


def _write_grid(folder: Path, cells: int) -> None:
    config = {
        "model": str(ROOT / "tests" / "fixtures" / "stories260K"),
        "data": {"sources": [{"path": "train.jsonl"}]},
        "evaluation": {"tasks": ["csqa_full"]},
    }
    rows = {"LoRA": {"method": "causal"}, "Bitune": {"method": "bitune"}}
    grid = {"name": "large", "config": config, "rows": rows, "seeds": list(range(cells // 2))}
    (folder / "grid.yaml").write_text(yaml.safe_dump(grid))


def _measure(folder: Path, command: str) -> None:
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    words = [sys.executable, "-m", "pipeline.cli", "grid", command, "grid.yaml", "--executor", "slurm"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - started
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{command:7} {used:6.2f} s of one processor, {seconds:6.2f} s in all")


if __name__ == "__main__":
    main()
