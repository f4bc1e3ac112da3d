"""Models whose weights are sharded over the processes of a run (DeepSpeed ZeRO-3).

A sharded parameter is empty but while a module that owns it runs, or while it is gathered.
"""

import copy
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.integrations.deepspeed import deepspeed_config, is_deepspeed_zero3_enabled
from transformers.modeling_utils import set_zero3_state
from transformers.utils.hub import cached_file, get_checkpoint_shard_files

from pipeline.errors import UserError
from pipeline.model.config import ModelConfig

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
Saved = tuple[str, str, tuple[int, ...]]
"""File, key in it, shape."""


def is_sharded(parameter: nn.Parameter) -> bool:
    return hasattr(parameter, "ds_id")


def is_active() -> bool:
    """Is this process one of a run under ZeRO-3?"""
    return is_deepspeed_zero3_enabled()


def size(parameter: nn.Parameter) -> int:
    """Elements of the whole parameter, also while it is sharded."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


@contextmanager
def gathered(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """The whole parameters, on every rank, to look at. All ranks must enter together."""
    sharded = [parameter for parameter in parameters if is_sharded(parameter)]
    with ExitStack() as stack:
        if sharded:
            from deepspeed import zero

            stack.enter_context(zero.GatheredParameters(sharded))
        yield


def whole_state(model: nn.Module, with_frozen: bool) -> dict[str, Tensor]:
    """The state dictionary of a model, sharded or not, on rank 0; without the frozen parameters, unless asked for.

    Sharded parameters are gathered one at a time. All ranks must call it together; the others get nothing then.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    frozen = {name for name, parameter in parameters.items() if not (with_frozen or parameter.requires_grad)}
    if not any(map(is_sharded, parameters.values())):
        return {name: tensor for name, tensor in model.state_dict().items() if name not in frozen}
    found: dict[int, Tensor] = {}
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in parameters}
    for name, parameter in parameters.items():
        if name not in frozen:
            state[name] = _whole(parameter, found)  # tied parameters stay one tensor
    return state if dist.get_rank() == 0 else {}


def _whole(parameter: nn.Parameter, found: dict[int, Tensor]) -> Tensor:
    if id(parameter) not in found:
        with gathered([parameter]):
            tensor = parameter.detach().cpu().clone() if dist.get_rank() == 0 else torch.empty(0)
        found[id(parameter)] = tensor
    return found[id(parameter)]


def load_sharded(config: PreTrainedConfig, model: ModelConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The pretrained model, built and filled one tensor at a time: no rank ever holds more than one whole layer.

    Raises:
        UserError: no safetensors, or weights that are missing or of another shape than config.json says.
    """
    from deepspeed.runtime.zero.partition_parameters import DeepSpeedTensorOverride, Init

    saved = _saved(_files(model))
    # Only the device is overridden: DeepSpeed's override of the dtype would spoil float32 buffers (rotary embedding).
    sharding = Init(config_dict_or_path=deepspeed_config(), tensor_overrides=(DeepSpeedTensorOverride.device,))
    with no_init_weights(), set_zero3_state(), sharding:
        base = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=model.trust_remote_code)
    base.tie_weights()
    _fill(base, saved, model)
    return base.eval()


def _files(model: ModelConfig) -> list[str]:
    def find(name: str) -> str | None:
        return cached_file(
            model.name, name, revision=model.revision,
            _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False,
        )  # fmt: skip

    if whole := find(WEIGHTS):
        return [whole]
    index = find(INDEX)
    if index is None:
        raise UserError(f"model.name = {model.name!r}: has no {WEIGHTS} or {INDEX}, which ZeRO-3 needs")
    files, _ = get_checkpoint_shard_files(model.name, index, revision=model.revision)
    return list(files)


def _fill(base: PreTrainedModel, saved: dict[str, Saved], model: ModelConfig) -> None:
    parameters = dict(base.named_parameters())
    places = _places(saved, base.base_model_prefix, parameters)
    odd = sorted(
        name for name, parameter in parameters.items() if places.get(name, ("", "", ()))[2] != _shape(parameter)
    )
    if odd:
        raise UserError(
            f"model.name = {model.name!r}: {len(odd)} weights are missing or of another shape than config.json says, "
            f"the first is {odd[0]}"
        )
    for name, parameter in parameters.items():
        file, key, _ = places[name]
        write(parameter, lambda file=file, key=key: _read(file, key))  # type: ignore[misc]


def _shape(parameter: nn.Parameter) -> tuple[int, ...]:
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _saved(files: list[str]) -> dict[str, Saved]:
    """What the files hold, by its key."""
    found = {}
    for file in files:
        with safe_open(file, framework="pt") as content:  # type: ignore[no-untyped-call]
            for key in content.keys():  # noqa: SIM118  not a dictionary
                found[key] = (file, key, tuple(content.get_slice(key).get_shape()))
    return found


def _places(saved: dict[str, Saved], prefix: str, names: Iterable[str]) -> dict[str, Saved]:
    """The same by parameter. A checkpoint may have been saved without its head, then keys lack the prefix."""
    known = set(names)
    return {key if key in known else f"{prefix}.{key}": place for key, place in saved.items()}


def _read(file: str, key: str) -> Tensor:
    with safe_open(file, framework="pt") as content:  # type: ignore[no-untyped-call]
        tensor: Tensor = content.get_tensor(key)
        return tensor


def write(parameter: nn.Parameter, read: Any) -> None:
    """Put what rank 0 reads into a parameter, sharded or not."""
    with torch.no_grad(), ExitStack() as stack:
        if is_sharded(parameter):
            from deepspeed import zero

            stack.enter_context(zero.GatheredParameters([parameter], modifier_rank=0))
            if dist.get_rank() > 0:
                return
        parameter.copy_(read())


def copy_sharded(module: nn.Module) -> nn.Module:
    """A copy of a sharded module with sharded parameters of its own. `copy.deepcopy` would copy empty tensors."""
    from deepspeed import zero

    twin = copy.deepcopy(module, memo={id(parameter): parameter for parameter in module.parameters()})
    with gathered(module.parameters()):
        for part in twin.modules():
            for name, parameter in list(part.named_parameters(recurse=False)):
                setattr(part, name, nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad))
    # Each new swapper (NVMe) would delete the files of those before.
    swapper = next(getattr(parameter, "nvme_swapper") for parameter in module.parameters())  # noqa: B009
    zero.Init(module=twin, config_dict_or_path=deepspeed_config(), param_swapper=swapper)
    return twin


def make_leaves(model: nn.Module, kinds: tuple[type, ...]) -> bool:
    """Gather the weights of these modules when they are entered: they read weights of modules inside them.

    Returns:
        Whether there are any.
    """
    from deepspeed.utils import set_z3_leaf_modules

    present = {type(module) for module in model.modules() if isinstance(module, kinds)}
    if present:
        set_z3_leaf_modules(model, list(present))
    return bool(present)
