"""The harness's own command line with our model in it: `dualtune lm-eval run --model dualtune ...`."""

import logging
import sys
from typing import Annotated, Any, Literal

import torch
from lm_eval._cli import HarnessCLI
from lm_eval.api.registry import model_registry
from pydantic import AfterValidator, Field, ValidationError

from pipeline.errors import StageError, UserError, did_you_mean
from pipeline.evaluate.harness import BranchedLM
from pipeline.faults import explain
from pipeline.model import load_tokenizer
from pipeline.model.config import PRESETS, ModelConfig
from pipeline.model.opening import is_trained, open_model
from pipeline.schema import Schema

NAME = "dualtune"


def _known_method(name: str) -> str:
    if name not in PRESETS:
        raise ValueError(f"must be one of {', '.join(PRESETS)}{did_you_mean(name, PRESETS)}")
    return name


class Arguments(Schema):
    """What `--model_args` may say."""

    pretrained: Annotated[str, Field(min_length=1)]
    """A trained model folder (RUN/model), or a base model."""
    base: str | None = None
    """Where the base model of trained adapters lies, if it has moved."""
    method: Annotated[str, AfterValidator(_known_method)] = "causal"
    """Of a base model."""
    precision: Literal["bf16", "fp32"] | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    max_batch_tokens: Annotated[int, Field(ge=1)] | None = None
    max_length: Annotated[int, Field(ge=2)] | None = None
    add_bos: bool | None = None
    """Default: as trained (one BOS) with a trained model, as the tokenizer does with a base model."""
    device: str | None = None
    batch_size: Literal["1", "auto"] = "1"
    """Of the harness; passes are bounded by `max_batch_tokens` here, whatever the number of requests."""


class CommandLineLM(BranchedLM):
    """`BranchedLM`, made from the harness's model arguments."""

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Called where the harness is to keep answers.

        Raises:
            UserError: always.
        """
        raise UserError("--use_cache: the harness's cache knows no model: it would give the answers of another")

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> Any:
        given = {**arg_dict, **(additional_config or {})}
        given = {key: value for key, value in given.items() if value is not None}
        return open_lm(check(given | ({"batch_size": str(given["batch_size"])} if "batch_size" in given else {})))


def check(given: dict[str, Any]) -> Arguments:
    """
    Raises:
        UserError: naming the argument and what was allowed.
    """
    try:
        return Arguments.model_validate(given)
    except ValidationError as error:
        raise UserError("--model_args: " + "; ".join(explain(error, Arguments))) from None


def open_lm(arguments: Arguments) -> BranchedLM:
    """The model as lm-eval sees it."""
    trained = is_trained(arguments.pretrained)
    _check_use(arguments, trained)
    own = ("base", "precision") if trained else ("precision", "revision", "trust_remote_code")
    asked = (arguments.device or "").startswith("cuda")  # the harness's default, on machines without a GPU too
    device = None if asked and not torch.cuda.is_available() else arguments.device
    model = open_model(arguments.pretrained, arguments.method, device, **{key: getattr(arguments, key) for key in own})
    name = arguments.pretrained if trained else model.base.name
    return CommandLineLM(
        model,
        load_tokenizer(ModelConfig(name=name, trust_remote_code=arguments.trust_remote_code)),
        max_batch_tokens=arguments.max_batch_tokens,
        add_bos=trained if arguments.add_bos is None else arguments.add_bos,
        max_length=arguments.max_length,
        precision=model.base.precision,
    )


def _check_use(arguments: Arguments, trained: bool) -> None:
    """Refuse what would mean nothing for this model."""
    useless = ("method", "revision") if trained else ("base",)
    kind = "a trained model" if trained else "a base model"
    for key in useless:
        if key in arguments.model_fields_set:
            raise UserError(f"--model_args: {key} means nothing for {arguments.pretrained}, {kind}")


def run(arguments: list[str]) -> None:
    """Hand the arguments to the harness, which knows `--model dualtune` now.

    Raises:
        StageError: the harness could not save a result, which it says in its log only.
    """
    if NAME not in model_registry:
        model_registry.register(NAME, target=CommandLineLM)
    unsaved = Unsaved()
    logger = logging.getLogger("lm_eval.loggers.evaluation_tracker")
    logger.setLevel(logging.WARNING)
    logger.addHandler(unsaved)
    sys.argv = ["dualtune lm-eval", *arguments]
    command = HarnessCLI()
    parsed = command.parse_args()
    if getattr(parsed, "cache_requests", None):
        raise UserError("--cache_requests: the harness's cache knows no few-shot seed: it would give those of another")
    command.execute(parsed)
    if unsaved.said:
        raise StageError(f"lm-eval: {unsaved.said[0]}")


class Unsaved(logging.Handler):
    """Hears what was not saved."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("Could not save"):
            self.said.append(record.getMessage())
