"""Conversations: OpenAI's `messages` and ShareGPT's `conversations`, read as question, answer and what went before."""

import json
from collections.abc import Mapping
from typing import Any

from pipeline.prepare.example import Example, Turn, text_of
from pipeline.prepare.record import Fault

ROLES = {
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant",
    "function_call": "assistant", "system": "system", "developer": "system",
    "tool": "tool", "function": "tool", "observation": "tool", "ipython": "tool",
}  # fmt: skip
"""Names of roles in public sets -> ours."""


def read_messages(row: dict[str, Any], system: str = "") -> Example:
    """OpenAI's form: [{role, content}, ...], with tool calls, tool results and `weight`.

    Args:
        system: of a form in which it may stand beside the messages.

    Raises:
        Fault: not a list of messages, an unknown role, an empty message, two system messages, or no answer to learn.
    """
    turns = [_message(message) for message in _list(row, "messages")]
    return as_example(_opened(turns, system), tools=tools_of(row))


def read_sharegpt(row: dict[str, Any]) -> Example:
    """ShareGPT's form: [{from, value}, ...]; `system` and `tools` may stand beside it.

    Raises:
        Fault: as for `read_messages`.
    """
    turns = [_turn(turn.get("from"), turn, "value") for turn in _list(row, "conversations")]
    return as_example(_opened(turns, text_of(row, "system", optional=True)), tools=tools_of(row))


def _opened(turns: list[Turn], system: str) -> list[Turn]:
    """The turns behind the system message that stands beside them, if one does."""
    if system and turns and turns[0].role == "system":
        raise Fault("two system messages")
    return [Turn("system", system)] * bool(system) + turns


def as_example(turns: list[Turn], tools: str = "") -> Example:
    """Question and answer of a conversation's last answer, of those that may be learnt.

    Turns behind an answer with weight 0 that ends the conversation are left out with it: nothing of them is learnt.

    Raises:
        Fault: the last turn is no answer, no answer may be learnt, or nothing is asked.
    """
    if not turns or turns[-1].role != "assistant":
        raise Fault("no answer: the last message is not the assistant's")
    last = max((place for place, turn in enumerate(turns) if turn.role == "assistant" and turn.trained), default=None)
    if last is None:
        raise Fault("every answer has weight 0")
    system = turns[0].text if turns[0].role == "system" else ""
    earlier = turns[bool(turns[0].role == "system") : last]
    if not earlier or earlier[-1].role not in ("user", "tool"):
        raise Fault("no question: the answer follows no message of the user or a tool")
    *history, question = earlier
    return Example(
        question.text, turns[last].text, system=system, history=tuple(history), asker=question.role, tools=tools
    )


def _list(row: dict[str, Any], column: str) -> list[dict[str, Any]]:
    turns = row.get(column)
    if turns is None:
        raise Fault(f"{'null' if column in row else 'missing'} field {column!r}")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise Fault(f"wrong type in {column!r}", "not a list of messages")
    return turns


def _message(message: dict[str, Any]) -> Turn:
    call = message.get("tool_calls") or message.get("function_call")
    if not call:
        return _turn(message.get("role"), _joined(message), "content")
    if message.get("role") != "assistant":
        raise Fault("a tool call that is not the assistant's")
    said = text_of(_joined(message), "content", optional=True)
    return Turn("assistant", "\n".join([said] * bool(said) + _calls(call)), _trained(message))


def _joined(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its content as one text; OpenAI also writes a list of parts."""
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    if not all(isinstance(part, dict) and part.get("type", "text") == "text" for part in parts):
        raise Fault("a message with parts that are not text")
    return {**message, "content": "".join(map(_part, parts))}


def _part(part: dict[str, Any]) -> str:
    text = part.get("text")
    return text if isinstance(text, str) else text_of(part, "text", optional=True)  # a space may be a part of its own


def _calls(call: Any) -> list[str]:
    """Each call as JSON, name and arguments, on a line of its own."""
    calls = call if isinstance(call, list) else [call]
    functions = [one.get("function", one) if isinstance(one, dict) else None for one in calls]
    if not all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in functions):
        raise Fault("wrong type in 'tool_calls'", "not a list of functions with names")
    return [
        json.dumps({"name": one["name"], "arguments": _plain(one.get("arguments"))}, ensure_ascii=False)
        for one in functions
        if one
    ]


def _plain(arguments: Any) -> Any:
    """OpenAI writes arguments as JSON within a string."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _turn(role: Any, values: Mapping[str, Any], column: str) -> Turn:
    if not isinstance(role, str):
        raise Fault("a message without a role")
    if role not in ROLES:
        raise Fault("unknown role", f"{role[:40]!r}, not one of {', '.join(ROLES)}")
    text = text_of(values, column, optional=ROLES[role] in ("system", "tool"))  # a tool may return nothing
    return Turn(ROLES[role], text, _trained(values))


def _trained(values: Mapping[str, Any]) -> bool:
    """OpenAI's `weight`: 0 keeps an answer in the conversation and out of the loss. `train` is the same elsewhere."""
    weight = next((values[name] for name in ("weight", "train") if values.get(name) is not None), 1)
    if weight not in (0, 1):
        raise Fault("a message's weight is neither 0 nor 1", repr(weight)[:40])
    return bool(weight)


def tools_of(row: Mapping[str, Any]) -> str:
    """The field `tools` as JSON, however the set holds it.

    Raises:
        Fault: it is no list, nor the JSON of one.
    """
    tools = row.get("tools")
    if tools in (None, "", [], "[]"):
        return ""
    if isinstance(tools, list):
        return json.dumps(tools, ensure_ascii=False)
    if not isinstance(tools, str):
        raise Fault("wrong type in 'tools'", f"{type(tools).__name__}, neither a list nor JSON")
    try:
        known = isinstance(json.loads(tools), list)
    except (ValueError, RecursionError):
        known = False
    if not known:
        raise Fault("'tools' is not a JSON list")
    return tools
