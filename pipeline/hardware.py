"""GPUs by name: memory and peak arithmetic, from NVIDIA's data sheets."""

import re
from dataclasses import dataclass

from pipeline.errors import UserError

TERA = 10**12
VARIANT = re.compile(r"( (SXM\d?|PCIE|\d+GB|HBM\d\w?))*", re.IGNORECASE)
"""What may follow in a name without a change of the peak; others (Ti, D, Laptop, MIG) are other devices."""


@dataclass(frozen=True)
class Gpu:
    gib: int
    """Memory. The data sheets' GB; what such a device reports is within 2 % of as many GiB."""
    tflops: float | None
    """10^12 bf16 operations a second with float32 sums and without sparsity; None where the device has no bf16."""


GPUS = {
    "T4": Gpu(16, None),  # Turing T4 data sheet: 65 in fp16
    "V100-16": Gpu(16, None),  # V100 data sheet: 125 in fp16
    "V100-32": Gpu(32, None),
    "A10": Gpu(24, 125),  # A10 data sheet
    "A30": Gpu(24, 165),  # A30 data sheet
    "A40": Gpu(48, 149.7),  # A40 data sheet
    "A100-40": Gpu(40, 312),  # A100 data sheet
    "A100-80": Gpu(80, 312),
    "RTX 3090": Gpu(24, 71),  # GA102 white paper, appendix A
    "RTX 4090": Gpu(24, 165.2),  # Ada white paper, appendix A
    "L4": Gpu(24, 121),  # L4 data sheet: 242 with sparsity
    "L40S": Gpu(48, 362),  # L40S data sheet
    "H100 PCIe": Gpu(80, 756),  # H100 data sheet: 1,513 with sparsity
    "H100 NVL": Gpu(94, 835),  # H100 data sheet: 1,671 with sparsity
    "H100": Gpu(80, 989),  # H100 data sheet, SXM: 1,979 with sparsity
    "H200 NVL": Gpu(141, 835),  # H200 data sheet: 1,671 with sparsity
    "H200": Gpu(141, 989),  # H200 data sheet, SXM: 1,979 with sparsity
    "B200": Gpu(180, 2250),  # HGX B200 data sheet: 36 x 10^15 for eight, with sparsity
}
"""A key is what follows NVIDIA (GeForce) in the device's name, and its memory where there are several."""


def gpu_named(name: str) -> Gpu:
    """One of the table, whatever the case of letters.

    Raises:
        UserError: not in the table.
    """
    found = [gpu for key, gpu in GPUS.items() if key.lower() == name.lower()]
    if not found:
        raise UserError(f"--gpu {name}: not known; give --memory and --tflops, or one of {', '.join(GPUS)}")
    return found[0]


def peak_flops(device: str) -> float | None:
    """bf16 operations a second of a device as PyTorch names it, such as `NVIDIA H100 80GB HBM3`; None if unknown."""
    words = device.removeprefix("NVIDIA ").removeprefix("GeForce ").replace("-", " ")
    models = {key: key.split("-")[0] for key in GPUS}
    fitting = [
        key for key, model in models.items() if words.startswith(model) and VARIANT.fullmatch(words[len(model) :])
    ]
    peak = GPUS[max(fitting, key=len)].tflops if fitting else None
    return peak * TERA if peak else None
