"""The lm-eval model: every method and every plain model through one class."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
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

from pipeline.errors import StageError
from pipeline.evaluate.grouping import Group, Scored, passes, runs
from pipeline.evaluate.progress import Progress
from pipeline.model import Batch, DualBranch

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
        max_batch_tokens: int = 4096,
        add_bos: bool = False,
        max_length: int | None = None,
        precision: str = "fp32",
        progress: Progress | None = None,
    ) -> None:
        """
        Args:
            max_batch_tokens: budget of one packed pass (`grouping.passes`).
            add_bos: as training does, one BOS in front where the tokenizer has one, and no other special token;
                otherwise whatever the tokenizer adds, as in the harness.
            max_length: longest input in tokens; default: what the model's configuration says.
            precision: `bf16` runs under autocast, as training does.
            progress: told of requests taken on and answered.
        """
        super().__init__()
        self.model = model
        self.tokenizer: Any = tokenizer
        self.max_batch_tokens = max_batch_tokens
        self.add_bos = add_bos
        self.max_length = max_length or resolve_max_length(model.model.config, tokenizer)
        self.truncated = 0
        self.precision = precision
        self.progress = progress or Progress()
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
        """Scores in the order of the requests, however they are grouped."""
        results: dict[int, tuple[float, bool]] = {}
        self.progress.start(len(requests))
        method = self.model.method
        for groups in passes(requests, len(method.branches), self.max_batch_tokens, method.shares_prompts):
            with self._autocast():
                results |= self._score_pass(groups, requests)
            self.progress.advance(sum(len(group.members) for group in groups))
        return [results[index] for index in range(len(requests))]

    def _score_pass(self, groups: list[Group], requests: list[Scored]) -> dict[int, tuple[float, bool]]:
        owners = [owner for owner, group in enumerate(groups) for _ in group.members]
        indices = [index for group in groups for index in group.members]
        packed = [requests[index] for index in indices]
        batch = Batch.pack([group.prompt for group in groups], [request.stream for request in packed], owners)
        labels = [label for request in packed for label in request.row_labels]
        losses, greedy = self.model.score(batch, torch.tensor(labels))
        rows = [len(request.stream) for request in packed]
        answers = zip(packed, losses.cpu().split(rows), greedy.cpu().split(rows), strict=True)
        scores = [request.total(loss, hits) for request, loss, hits in answers]
        return dict(zip(indices, scores, strict=True))

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[str]:
        """Greedy continuations unless the task asks for sampling, cut before the first stop string."""
        results: dict[int, str] = {}
        self.progress.start(len(requests))
        for options, indices in _by_options(requests).items():
            arguments = normalize_gen_kwargs(json.loads(options), MAX_GENERATED_TOKENS)
            results |= self._generate(dict(arguments), {index: requests[index].args[0] for index in indices})
        return [results[index] for index in range(len(requests))]

    def _generate(self, options: dict[str, Any], texts: dict[int, str]) -> dict[int, str]:
        """The continuations of contexts that share their options, long ones first."""
        stop = handle_stop_sequences(options.pop("until"), self.tokenizer.decode(self.eot_token_id))
        new = options.pop("max_gen_toks")
        prompts = {index: self._cut_prompt(text, new) for index, text in texts.items()}
        ordered = sorted(prompts, key=lambda index: -len(prompts[index]))
        branches = len(self.model.method.branches)
        results: dict[int, str] = {}
        for part in runs([branches * len(prompts[index]) + new for index in ordered], self.max_batch_tokens):
            batch = ordered[part]
            with self._autocast():
                rows = self.model.generate(
                    [prompts[index] for index in batch], new, **_sampling(options, stop), tokenizer=self.tokenizer
                )
            texts_out = (self.tokenizer.decode(row, skip_special_tokens=True) for row in rows)
            results |= {
                i: postprocess_generated_text(text, stop, None) for i, text in zip(batch, texts_out, strict=True)
            }
            self.progress.advance(len(batch))
        return results

    def _cut_prompt(self, text: str, new: int) -> list[int]:
        room = self.max_length - new
        if room < 1:
            raise StageError(f"max_gen_toks = {new} leaves no room for a context in {self.max_length} tokens")
        tokens = self.tok_encode(text) or [self.prefix_token_id]
        self.truncated += len(tokens) > room
        return tokens[-room:]


def _by_options(requests: Sequence[Instance]) -> dict[str, list[int]]:
    """Indices of requests by their generation options: only equal ones are generated together."""
    found: dict[str, list[int]] = {}
    for index, request in enumerate(requests):
        found.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(index)
    return found


def _sampling(options: dict[str, Any], stop: list[str]) -> dict[str, Any]:
    """Options for transformers: temperature 0 is greedy decoding there, not a temperature."""
    kept = {key: value for key, value in options.items() if key != "temperature" or options["do_sample"]}
    return {**kept, "stop_strings": [text for text in stop if text]}
