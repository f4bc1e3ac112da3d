"""Keeping the terminal for what the user must see: progress, results and errors."""

import logging
import os
import warnings

ENVIRONMENT = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_VERBOSITY": "error",
    "TRANSFORMERS_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "LMEVAL_LOG_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "DS_LOG_LEVEL": "error",
    "PYTHONWARNINGS": "ignore",  # reaches loader workers and compilers that are started later
}
LOUD = ("accelerate", "datasets", "deepspeed", "DeepSpeed", "lm_eval", "lm-eval", "peft", "torch", "transformers")


def debugging() -> bool:
    """Whether DUALTUNE_DEBUG=1 asks for every log line and for stack traces."""
    return os.environ.get("DUALTUNE_DEBUG", "") not in ("", "0")


def silence() -> None:
    """Let the libraries report errors only. Must run before they are imported: most read their level then.

    What the user has set in the environment wins, and DUALTUNE_DEBUG=1 silences nothing.
    """
    if debugging():
        return
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
    for name in LOUD:
        logging.getLogger(name).setLevel(logging.ERROR)


def hush_deepspeed() -> None:
    """On a machine without GPU, tell DeepSpeed so: where installed, others import it, and it would guess aloud."""
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
