"""The lm-eval model: every method and every plain model through one class."""

import json
import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from jinja2.exceptions import TemplateError
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    has_bos_prefix,
    normalize_gen_kwargs,
    postprocess_generated_text,
    resolve_max_length,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from transformers import PreTrainedTokenizerBase

from pipeline.config import digest
from pipeline.errors import StageError, UserError
from pipeline.evaluate.grouping import Continued, Scored, by_prompt, continued_keys, continued_passes, scored_passes
from pipeline.evaluate.progress import Progress
from pipeline.evaluate.worker import Worker
from pipeline.model import Batch, DualBranch, longest_input

BUDGETS = {"cpu": 1024, "cuda": 16_384}
"""Tokens of a pass: more would leave a CPU's caches."""
MAX_GENERATED_TOKENS = 256
"""Where a task does not say, as in the harness."""


class BranchedLM(TemplateLM):
    """A `DualBranch` as lm-eval sees a model. Requests that share a context read it once.

    Tokenisation is the harness's own: spaces at the end of the context move to the continuation, both are
    tokenised together and then split; an empty context becomes the BOS (else EOS) token; a context that is
    too long loses tokens on its left, and `truncated` counts such requests.
    """

    def __init__(
        self,
        model: DualBranch,
        tokenizer: PreTrainedTokenizerBase,
        max_batch_tokens: int | None = None,
        add_bos: bool = False,
        max_length: int | None = None,
        precision: str = "fp32",
        progress: Progress | None = None,
    ) -> None:
        """
        Args:
            max_batch_tokens: budget of one packed pass; default: by device.
            add_bos: as training does, one BOS in front where the tokenizer has one, and no other special token;
                otherwise whatever the tokenizer adds, as in the harness.
            max_length: longest input in tokens; default: what the model's configuration says.
            precision: `bf16` runs under autocast, as training does.
            progress: told of requests taken on and answered.
        """
        super().__init__()
        self.model = model
        self.tokenizer: Any = tokenizer
        self.worker = Worker(max_batch_tokens or BUDGETS.get(model.device.type, BUDGETS["cuda"]), progress)
        self.add_bos = add_bos
        self.max_length = max_length or resolve_max_length(model.model.config, tokenizer)
        if max_length and max_length > longest_input(model.model.config):
            raise UserError(f"max_length = {max_length}: the model reads {longest_input(model.model.config)} tokens")
        self.truncated = 0
        self.precision = precision
        self._encode = lru_cache(maxsize=4096)(self._encode_once)

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as the tokenizer's template writes it; without the system message where it has no place."""
        try:
            return self._chat(chat_history, add_generation_prompt)
        except TemplateError:
            turns = [turn for turn in chat_history if turn["role"] != "system"]
        try:
            return self._chat(turns, add_generation_prompt)
        except TemplateError as error:
            raise UserError(f"the chat template of {self.tokenizer_name} does not take the prompt: {error}") from None

    def _chat(self, turns: list[dict[str, str]], opens_answer: bool) -> str:
        if not self.tokenizer.chat_template:
            raise UserError(f"chat_template: the tokenizer {self.tokenizer_name} has no chat template")
        return str(
            self.tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=opens_answer, continue_final_message=not opens_answer
            )
        )

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The text of the template, which the harness records."""
        name = chat_template if isinstance(chat_template, str) else None
        return str(self.tokenizer.get_chat_template(name)) if chat_template else None

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids; a BOS that the text already spells out is not added a second time."""
        return list(self._encode(string, add_special_tokens, self.add_bos))

    def _encode_once(self, text: str, special: bool | None, add_bos: bool) -> tuple[int, ...]:
        if special is None and add_bos:
            ids = tuple(self.tokenizer.encode(text, add_special_tokens=False))
            bos = self.tokenizer.bos_token_id
            return ids if bos is None or ids[:1] == (bos,) else (bos, *ids)
        if special is None:
            special = not has_bos_prefix(text, self.tokenizer.decode(self.prefix_token_id))
        return tuple(self.tokenizer.encode(text, add_special_tokens=special))

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Sum of log-probabilities of each continuation (nats), and whether greedy decoding would say it."""
        return super().loglikelihood(list(requests), disable_tqdm=True)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        return self._score([Scored.of(*self._cut(context, answer, text)) for text, context, answer in requests])

    def _cut(self, context: list[int], continuation: list[int], text: tuple[str, str]) -> tuple[list[int], list[int]]:
        """The pair with the context shortened from the left to what the model can read."""
        if not continuation or len(continuation) > self.max_length:
            raise StageError(
                f"continuation {text[1][:80]!r} has {len(continuation)} tokens; 1 to {self.max_length} can be scored"
            )
        context = context or [self.prefix_token_id]
        room = self.max_length + 1 - len(continuation)
        self.truncated += len(context) > room
        return context[-room:], continuation

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[float]:
        """Log-probability of each whole text in windows, every token predicted once, read without a prompt."""
        windows = [self._windows(request.args[0]) for request in requests]
        scores = iter(self._score([window for text in windows for window in text]))
        return [sum(next(scores)[0] for _ in text) for text in windows]

    def _windows(self, text: str) -> list[Scored]:
        tokens = list(self._encode(text, None, False))  # the windows begin with BOS themselves
        pairs = get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1)
        return [Scored.without_prompt(*make_disjoint_window(pair)) for pair in pairs]

    def _score(self, requests: list[Scored]) -> list[tuple[float, bool]]:
        """Scores in the order of the requests, however they are grouped; nan for those of another share."""
        method = self.model.method
        plan = partial(scored_passes, len(method.branches), share=method.shares_prompts)
        self.worker.answer({request.key: request for request in requests}, plan, self._score_pass)
        known = self.worker.answers.known
        return [
            (score, bool(hit)) for score, hit in (known.get(request.key, (math.nan, False)) for request in requests)
        ]

    def _score_pass(self, requests: dict[str, Scored]) -> dict[str, tuple[float, bool]]:
        prompts = by_prompt(requests)
        owners = [owner for owner, keys in enumerate(prompts.values()) for _ in keys]
        keys = [key for keys in prompts.values() for key in keys]
        packed = [requests[key] for key in keys]
        batch = Batch.pack(list(prompts), [request.stream for request in packed], owners)
        labels = [label for request in packed for label in request.row_labels]
        with self._autocast():
            losses, greedy = self.model.score(batch, torch.tensor(labels))
        rows = [len(request.stream) for request in packed]
        answers = zip(packed, losses.cpu().split(rows), greedy.cpu().split(rows), strict=True)
        return dict(zip(keys, (request.total(loss, hits) for request, loss, hits in answers), strict=True))

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[str]:
        """Greedy continuations unless the task asks for sampling, cut before the first stop string.

        A sampled continuation is drawn with a seed made from its requests: it is the same in every repetition.
        """
        found = [self._continued(*request.args) for request in requests]
        keys = continued_keys(found)
        plan = partial(continued_passes, len(self.model.method.branches))
        self.worker.answer(dict(zip(keys, found, strict=True)), plan, self._generate)
        return [self.worker.answers.known.get(key, "") for key in keys]

    def _continued(self, context: str, options: dict[str, Any]) -> Continued:
        settings: dict[str, Any] = dict(normalize_gen_kwargs(dict(options), MAX_GENERATED_TOKENS))
        stop = handle_stop_sequences(settings.pop("until"), self.tokenizer.decode(self.eot_token_id))
        new = settings.pop("max_gen_toks")
        # For transformers, temperature 0 is not greedy decoding but an error.
        kept = {key: value for key, value in settings.items() if key != "temperature" or settings["do_sample"]}
        return Continued(tuple(self._cut_prompt(context, new)), new, tuple(stop), json.dumps(kept, sort_keys=True))

    def _cut_prompt(self, text: str, new: int) -> list[int]:
        room = self.max_length - new
        if room < 1:
            raise StageError(f"max_gen_toks = {new} leaves no room for a context in {self.max_length} tokens")
        tokens = self.tok_encode(text) or [self.prefix_token_id]
        self.truncated += len(tokens) > room
        return tokens[-room:]

    def _generate(self, requests: dict[str, Continued]) -> dict[str, str]:
        new, stop, settings = next(iter(requests.values())).options
        torch.manual_seed(int(digest(sorted(requests))[:8], 16))
        with self._autocast():
            rows = self.model.generate(
                [request.prompt for request in requests.values()],
                new,
                **json.loads(settings),
                stop_strings=[text for text in stop if text],
                tokenizer=self.tokenizer,
            )
        texts = (self.tokenizer.decode(row, skip_special_tokens=True) for row in rows)
        return {k: postprocess_generated_text(text, list(stop), None) for k, text in zip(requests, texts, strict=True)}
