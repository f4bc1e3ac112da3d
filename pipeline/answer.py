"""Asking a model: an instruction in the template of its training, and the answer as text."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from pipeline.errors import UserError
from pipeline.model import DualBranch, load_tokenizer, longest_input
from pipeline.model.config import ModelConfig
from pipeline.model.opening import is_trained, open_model
from pipeline.prepare.forms import Example
from pipeline.prepare.templates import apply_chat_template, check_template, paper_prompt, template_hash
from pipeline.prepare.tokens import encode_prompt

TEMPLATES = ("paper", "cot", "chat")


def answer(
    model: str, prompts: Sequence[str], max_new_tokens: int, temperature: float, seed: int, template: str | None
) -> list[str]:
    """The model's answers to several instructions, without special tokens.

    Args:
        model: a trained model folder, or a base model (folder or hub id).
        temperature: 0 takes the likeliest token, above 0 samples with `seed`.
        template: "paper", "cot", "chat", or None: the one trained with (a base model: its own chat template, if any).

    Raises:
        UserError: no such model, an unknown template, or an empty prompt.
    """
    if not all(prompt.strip() for prompt in prompts):
        raise UserError("a prompt is empty")
    loaded = open_model(model)
    tokenizer: Any = load_tokenizer(ModelConfig(name=model if is_trained(model) else loaded.base.name))
    name = template or _template_of(loaded, tokenizer)
    if name not in TEMPLATES:
        raise UserError(f"template {name!r} is unknown: use one of {', '.join(TEMPLATES)}")
    check_template(name, tokenizer)  # type: ignore[arg-type]
    ids = [encode_prompt(_wrap(prompt, name, tokenizer), name, tokenizer) for prompt in prompts]  # type: ignore[arg-type]
    _check_room(loaded, max(map(len, ids)), max_new_tokens)
    torch.manual_seed(seed)
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    found = loaded.generate(ids, max_new_tokens, eos_token_id=_ends(loaded, tokenizer), **sampling)
    return [tokenizer.decode(tokens, skip_special_tokens=True).strip() for tokens in found]


def _check_room(model: DualBranch, longest: int, max_new_tokens: int) -> None:
    limit = longest_input(model.model.config)
    if longest + max_new_tokens > limit:
        raise UserError(
            f"the longest prompt has {longest} tokens and the model reads {limit}: "
            f"there is room for {max(limit - longest, 0)} new tokens, not {max_new_tokens}"
        )


def _template_of(model: DualBranch, tokenizer: Any) -> str:
    trained = model.facts.get("template_hash")
    if trained is None:
        return "chat" if tokenizer.chat_template else "paper"
    for name in TEMPLATES:
        if (name != "chat" or tokenizer.chat_template) and trained == template_hash(name, tokenizer):  # type: ignore[arg-type]
            return name
    raise UserError(f"the model was trained with another template (hash {trained}): name one with --template")


def _wrap(prompt: str, template: str, tokenizer: Any) -> str:
    if template != "chat":
        return paper_prompt(Example(prompt, ""))
    return apply_chat_template(tokenizer, [{"role": "user", "content": prompt}], add_generation_prompt=True)


def _ends(model: DualBranch, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Training closes every answer with the tokenizer's EOS; a chat model may know further ends of a turn."""
    own: Any = getattr(model.model.generation_config, "eos_token_id", None)
    known = own if isinstance(own, list) else [own]
    return sorted({int(token) for token in [tokenizer.eos_token_id, *known] if token is not None})
