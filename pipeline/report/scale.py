"""In which scale lm-eval reports a metric. Its name and its task decide, never a value: 0.9 may be 90% or 0.9%."""

from functools import lru_cache

UNBOUNDED = (
    "perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "bleu", "smoothed_bleu", "chrf", "ter", "wer",
    "rouge", "mcc", "pearsonr", "brier_score", "mse", "mae", "likelihood", "difference", "eqbench", "percent_parseable",
    "average_len", "summary_length",
)  # fmt: skip
"""How metrics of lm-eval 0.4 begin that are no shares: they are shown as they are. So are those named a bias."""

IN_PERCENT = {
    "squadv2": ("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1", "best_exact", "best_f1"),
    "scrolls_": ("em", "f1"),
}
"""How tasks of lm-eval begin -> their metrics from 0 to 100. All other shares are fractions."""


@lru_cache(maxsize=1000)
def full_score(task: str, metric: str) -> int | None:
    """What the metric (with or without its filter, `exact_match,strict-match`) is when all is right: 1, or 100 where
    the task reports percent. None: it is no share of anything."""
    name = metric.partition(",")[0]
    if any(task.startswith(beginning) and name in names for beginning, names in IN_PERCENT.items()):
        return 100
    if name.endswith("_acc"):  # TruthfulQA's share of answers nearer to a true one: rouge1_acc
        return 1
    return None if name.startswith(UNBOUNDED) or "bias" in name else 1
