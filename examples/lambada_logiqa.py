"""LAMBADA and LogiQA for the slippery-attention grids, from the files their authors publish.

    python examples/lambada_logiqa.py lambada_test_plain_text.txt Test.txt data

Writes data/lambada_standard.jsonl and data/logiqa.jsonl, the first 300 rows of each in the form of lm-eval's tasks, and
data/lambada_train.jsonl, further passages of LAMBADA as prompts with their last word as completion, none of which is
among the scored ones. The sources: the LAMBADA data set (zenodo.org/records/2630551) and
github.com/lgw863/LogiQA-dataset. Neither is shipped here: LogiQA states no licence.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROWS, TRAINING = 300, 512


def main() -> None:
    lambada, logiqa, folder = (Path(name) for name in sys.argv[1:4])
    folder.mkdir(parents=True, exist_ok=True)
    passages = lambada.read_text(encoding="utf-8").splitlines()
    write(folder / "lambada_standard.jsonl", ({"text": text} for text in passages[:ROWS]))
    write(folder / "lambada_train.jsonl", map(completion, passages[-TRAINING:]))
    write(folder / "logiqa.jsonl", questions(logiqa.read_text(encoding="utf-8").splitlines(), ROWS))


def completion(passage: str) -> dict[str, str]:
    prompt, _, word = passage.rpartition(" ")
    return {"prompt": prompt, "completion": word}


def questions(lines: list[str], count: int) -> Iterable[dict[str, Any]]:
    """Eight lines each: a blank one, the right letter, context, question, four options `A.text`."""
    for start in range(0, 8 * count, 8):
        _, label, context, question, *options = lines[start : start + 8]
        yield {
            "label": label,
            "context": context,
            "question": question,
            "options": [text[2:].strip() for text in options],
        }


def write(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main()
