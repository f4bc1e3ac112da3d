"""Where the inputs of these tests lie."""

from collections.abc import Callable
from pathlib import Path

from pipeline.config import RunConfig
from pipeline.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs" / "data"
DATA = ROOT / "examples" / "data"
STORIES = ROOT / "tests" / "fixtures" / "stories260K"
KINDS = ("byte_bpe", "byte_bpe_without_bos", "byte_bpe_merging", "sentencepiece_bpe", "unigram", "stories")

MakeRun = Callable[..., tuple[RunConfig, RunFolder]]
