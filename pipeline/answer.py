"""Asking a model: an instruction in the template of its training, and the answer as text."""

import sys
from collections.abc import Sequence
from typing import Any, get_args

import torch
from transformers import PreTrainedTokenizerBase

from pipeline.errors import UserError, did_you_mean
from pipeline.model import DualBranch, load_tokenizer, longest_input
from pipeline.model.config import PRESETS, ModelConfig
from pipeline.model.opening import is_trained, open_model
from pipeline.prepare.chat import refuse_special
from pipeline.prepare.config import Template, TemplateName, TemplateTexts
from pipeline.prepare.forms import Example
from pipeline.prepare.own_template import own_prompt, own_segments
from pipeline.prepare.record import Fault
from pipeline.prepare.templates import chat_prompt, check_template, paper_prompt, template_hash
from pipeline.prepare.tokens import encode_prompt

TEMPLATES: tuple[TemplateName, ...] = get_args(TemplateName)


def answer(
    model: str,
    prompts: Sequence[str],
    max_new_tokens: int,
    temperature: float,
    seed: int,
    template: str | None,
    method: str | None = None,
    system: str = "",
    max_length: int | None = None,
) -> list[str]:
    """The model's answers to several instructions, without special tokens.

    Args:
        model: a trained model folder, or a base model (folder or hub id).
        temperature: 0 takes the likeliest token, above 0 samples with `seed`.
        template: "paper", "cot", "chat", or None: the one trained with (a base model: its own chat template, if any).
        method: how a base model reads the prompt; a preset, by default causal.
        system: a system message before each instruction, in the chat template.
        max_length: tokens of prompt and answer at most; default: those that the model was made for.

    Raises:
        UserError: no such model, an unknown template or method, or a prompt that is empty or too long.
    """
    if not all(prompt.strip() for prompt in prompts):
        raise UserError("a prompt is empty")
    loaded = _open(model, method)
    tokenizer: Any = load_tokenizer(ModelConfig(name=model if is_trained(model) else loaded.base.name))
    chosen = _template_of(loaded, tokenizer) if template is None else _named(template)
    check_template(chosen, tokenizer)
    wrapped = [_wrap(prompt, system, chosen, tokenizer) for prompt in prompts]
    encoded = [encode_prompt(text, chosen, tokenizer, segments) for text, segments in wrapped]
    ids, segments = [tokens for tokens, _ in encoded], [starts for _, starts in encoded]
    _check_room(loaded, max(map(len, ids)), max_new_tokens, max_length)
    torch.manual_seed(seed)
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    found = loaded.generate(ids, max_new_tokens, segments=segments, eos_token_id=_ends(loaded, tokenizer), **sampling)
    return [tokenizer.decode(tokens, skip_special_tokens=True).strip() for tokens in found]


def _open(model: str, method: str | None) -> DualBranch:
    if method is None:
        return open_model(model)
    if is_trained(model):
        raise UserError(f"{model}: is a trained model, which reads prompts as in its training: leave out --method")
    if method not in PRESETS:
        raise UserError(f"method {method!r} is unknown{did_you_mean(method, PRESETS)}: use one of {', '.join(PRESETS)}")
    return open_model(model, method)


def _check_room(model: DualBranch, longest: int, max_new_tokens: int, max_length: int | None) -> None:
    made_for, needed = longest_input(model.model.config), longest + max_new_tokens
    limit = max_length or made_for
    if needed > limit:
        raise UserError(
            f"the longest prompt has {longest} tokens and the model reads {limit}: "
            f"there is room for {max(limit - longest, 0)} new tokens, not {max_new_tokens}"
            + ("" if max_length else " (--max-length goes further, beyond what the model was made for)")
        )
    if needed > made_for:
        print(f"warning: {needed} tokens, but the model was made for {made_for}: expect bad answers", file=sys.stderr)


def _named(template: str) -> TemplateName:
    for name in TEMPLATES:
        if name == template:
            return name
    raise UserError(f"template {template!r} is unknown: use one of {', '.join(TEMPLATES)}")


def _template_of(model: DualBranch, tokenizer: Any) -> Template:
    trained = model.facts.get("template_hash")
    if trained is None:
        return "chat" if tokenizer.chat_template else "paper"
    if texts := model.facts.get("template"):
        return TemplateTexts.model_validate(texts)
    for name in TEMPLATES:
        if (name != "chat" or tokenizer.chat_template) and trained == template_hash(name, tokenizer):
            return name
    raise UserError(f"the model was trained with another template (hash {trained}): name one with --template")


def _wrap(prompt: str, system: str, template: Template, tokenizer: Any) -> tuple[str, tuple[int, ...]]:
    """The text of the whole prompt, and where its segments start."""
    example = Example(prompt, "", system=system)
    try:
        if isinstance(template, TemplateTexts):
            refuse_special(example, tokenizer)
            text = own_prompt(example, template)
            return text, own_segments(example, template, text)
        if template == "chat":
            return chat_prompt(example, tokenizer)
    except Fault as fault:
        raise UserError(f"{'--system' if system else 'the instruction'}: {fault}") from None
    if system:
        raise UserError(f"--system: the template {template!r} has no place for a system message, use chat")
    return paper_prompt(example), ()


def _ends(model: DualBranch, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Training closes every answer with the tokenizer's EOS; a chat model may know further ends of a turn."""
    own: Any = getattr(model.model.generation_config, "eos_token_id", None)
    known = own if isinstance(own, list) else [own]
    return sorted({int(token) for token in [tokenizer.eos_token_id, *known] if token is not None})
