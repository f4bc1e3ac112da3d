"""Rows to train on from LAMBADA, for configs/slippery/finetuned_small.yaml: passages as prompts, last words as answers.

    python examples/lambada_train.py data/lambada_test_plain_text.txt data/lambada_train.jsonl

Takes the last 512 passages of the plain-text test set; the grid scores the first ones, so that none is in both. The set
is at zenodo.org/records/2630551.
"""

import json
import sys
from pathlib import Path

PASSAGES = 512


def main(source: Path, target: Path) -> None:
    rows = []
    for passage in source.read_text(encoding="utf-8").splitlines()[-PASSAGES:]:
        prompt, _, word = passage.rpartition(" ")
        rows.append(json.dumps({"prompt": prompt, "completion": word}, ensure_ascii=False) + "\n")
    target.write_text("".join(rows), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
