"""Forms in which a prompt has several answers, of which one is learnt: preference pairs, rated completions, trees."""

import math
from typing import Any

from pipeline.prepare.conversations import as_example, read_messages, tools_of
from pipeline.prepare.example import Example, Turn, text_of
from pipeline.prepare.record import Fault

SCORES = ("overall_score", "fine-grained_score", "score")


def read_prompt(row: dict[str, Any], answer: str) -> Example:
    """Prompt and answer, each a text or a list of messages; the answer's list may hold the whole conversation.

    Raises:
        Fault: a field is missing or of a wrong type, or nothing is asked or answered.
    """
    prompt, said = row.get("prompt"), row.get(answer)
    system = text_of(row, "system", optional=True)
    if isinstance(said, str) and not isinstance(prompt, list):
        return Example(text_of(row, "prompt"), text_of(row, answer), system=system, tools=tools_of(row))
    if said is None or isinstance(said, str):
        said = [{"role": "assistant", "content": text_of(row, answer)}]
    if not isinstance(said, list):
        raise Fault(f"wrong type in {answer!r}", f"{type(said).__name__}, neither text nor messages")
    before = [] if len(said) > 1 else _messages(row, prompt)
    return read_messages({"messages": [*before, *said], "tools": row.get("tools")}, system)


def _messages(row: dict[str, Any], prompt: Any) -> list[Any]:
    return prompt if isinstance(prompt, list) else [{"role": "user", "content": text_of(row, "prompt")}]


def read_completions(row: dict[str, Any]) -> Example:
    """UltraFeedback's form: an instruction, and completions {model, response, overall_score}; the best score is learnt.

    Raises:
        Fault: no completions, or several without a score.
    """
    completions = row.get("completions")
    if not isinstance(completions, list) or not all(isinstance(one, dict) for one in completions):
        raise Fault("missing field 'completions'" if completions is None else "wrong type in 'completions'")
    if not completions:
        raise Fault("empty field 'completions'")
    best = completions[0] if len(completions) == 1 else max(completions, key=_score)
    return Example(text_of(row, "instruction"), text_of(best, "response"))


def _score(completion: dict[str, Any]) -> float:
    value = next((completion[name] for name in SCORES if completion.get(name) is not None), None)
    try:
        score = float(value)  # type: ignore[arg-type]  # some are text, some "N/A"
    except (TypeError, ValueError, OverflowError):
        raise Fault("a completion without a score", repr(value)[:40]) from None
    if math.isnan(score):
        raise Fault("a completion without a score", "nan")
    return score


def read_tree(row: dict[str, Any]) -> Example:
    """OpenAssistant's form: a message with replies to it, and so on. Of the replies the best ranked one is followed,
    as far as there is an answer at the end.

    Raises:
        Fault: not a tree of messages, or no answer in it.
    """
    turns: list[Turn] = []
    message = row.get("prompt")
    while message is not None:
        if not isinstance(message, dict):
            raise Fault("wrong type in 'prompt'", f"{type(message).__name__}, not a message with replies")
        role = {"prompter": "user", "assistant": "assistant"}.get(str(message.get("role")))
        if role is None:
            raise Fault("unknown role", repr(message.get("role"))[:40])
        turns.append(Turn(role, text_of(message, "text")))
        message = _best(message.get("replies"))
    while turns and turns[-1].role != "assistant":
        turns.pop()
    return as_example(turns)


def _best(replies: Any) -> Any:
    if not replies:
        return None
    if not isinstance(replies, list) or not all(isinstance(reply, dict) for reply in replies):
        raise Fault("wrong type in 'replies'", "not a list of messages")
    kept = [reply for reply in replies if not reply.get("deleted")]
    return min(kept, key=_rank, default=None)


def _rank(reply: dict[str, Any]) -> float:
    rank = reply.get("rank")
    return float(rank) if isinstance(rank, int | float) else math.inf
