"""Templates: the text of prompt and answer. Training and evaluation both take it from here."""

from typing import TYPE_CHECKING, Any

from pipeline.config import digest
from pipeline.errors import UserError
from pipeline.prepare import paper
from pipeline.prepare.chat import PINNED_DATE, render_chat
from pipeline.prepare.chat import chat_prompt as chat_prompt
from pipeline.prepare.config import Template as Template
from pipeline.prepare.config import TemplateTexts
from pipeline.prepare.example import Example
from pipeline.prepare.example import Rendered as Rendered
from pipeline.prepare.own_template import check_own, render_own
from pipeline.prepare.paper import Layout as Layout
from pipeline.prepare.paper import paper_answers, reasoned_answer, render_paper
from pipeline.prepare.paper import paper_prompt as paper_prompt
from pipeline.prepare.record import Fault

if TYPE_CHECKING:  # evaluation's state is asked for without loading the library
    from transformers import PreTrainedTokenizerFast


def writes_special_tokens(template: Template) -> bool:
    """Whether the text of special tokens in the template means these tokens. Elsewhere it is plain text, so that a row
    can't end itself early; these templates refuse rows that hold such text."""
    return template == "chat" or isinstance(template, TemplateTexts)


def render(example: Example, template: Template, tokenizer: "PreTrainedTokenizerFast") -> Rendered:
    """Prompt and right answer as text, without the BOS and EOS that tokenising adds.

    Raises:
        Fault: the template has no place for something in the example.
    """
    if isinstance(template, TemplateTexts):
        return render_own(example, template, tokenizer)
    if template == "chat":
        return render_chat(example, tokenizer)
    right = example.index if example.choices else 0
    return render_paper(example, reasoned_answer(example) if template == "cot" else paper_answers(example)[right])


def check_template(template: Template, tokenizer: "PreTrainedTokenizerFast") -> None:
    """Refuse a template that this tokenizer can't serve, before any row is read.

    Raises:
        UserError: no EOS token, no chat template, a chat template whose prompt is not a prefix of the whole, or texts
            that leave no prompt or no answer.
    """
    name = tokenizer.name_or_path
    if tokenizer.eos_token_id is None:
        raise UserError(f"{name}: the tokenizer has no EOS token, so an answer could never end")
    if isinstance(template, TemplateTexts):
        check_own(template, tokenizer)
    if template != "chat":
        return
    if not tokenizer.chat_template:
        raise UserError(f"{name}: the tokenizer has no chat template, use data.template: paper")
    try:
        render_chat(Example("Is water wet?", "Yes."), tokenizer)
    except Fault as fault:
        raise UserError(f"{name}: data.template: chat can't be used: {fault}") from None


def template_hash(template: Template, tokenizer: "PreTrainedTokenizerFast | None" = None) -> str:
    """Identity of a template's text, equal on every machine. Stored with a model, compared at evaluation.

    Only the chat template needs a tokenizer, of which it is part.
    """
    if isinstance(template, TemplateTexts):
        return digest({"template": template.model_dump()})
    values: dict[str, Any] = {
        "template": template, "prompt": paper.PROMPT, "answer": paper.ANSWER, "bodies": paper.BODIES,
        "lines": paper.CHOICE_LINES, "answers": paper.CHOICE_ANSWERS,
    }  # fmt: skip
    if template == "cot":
        values["reasoned"] = paper.REASONED
    if template == "chat":
        assert tokenizer is not None
        values["chat"] = [tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token, PINNED_DATE]
    return digest(values)
