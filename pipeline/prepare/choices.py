"""Questions with choices: the layouts in which public sets write choices and the right one's key."""

import json
import math
from typing import Any

from pipeline.prepare.record import Fault

CHOICE_COLUMNS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("sol1", "sol2"): ("0", "1"),  # PIQA
    ("answerA", "answerB", "answerC"): ("1", "2", "3"),  # Social IQA
    ("A", "B", "C", "D"): ("A", "B", "C", "D"),  # MMLU
}
"""One column per choice -> the keys by which the answer column names them."""

ANSWER_COLUMNS = ("answer", "answerKey", "label")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def has_choices(row: dict[str, Any]) -> bool:
    """Whether the row holds choices in any known layout."""
    stem = row.get("question")
    nested = isinstance(stem, dict) and "choices" in stem
    return "choices" in row or nested or any(row.keys() >= set(columns) for columns in CHOICE_COLUMNS)


def read_choices(row: dict[str, Any]) -> tuple[tuple[str, ...], int]:
    """Texts of the choices and the index of the right one.

    Raises:
        Fault: unknown layout, an empty or missing choice, or a key that names no single choice.
    """
    texts, keys = _texts_and_keys(row)
    if len(texts) < 2:
        raise Fault("fewer than two choices")
    for text in texts:
        if not isinstance(text, str):
            raise Fault("wrong type in 'choices'", f"{type(text).__name__}, not text")
        if not text.strip():
            raise Fault("empty choice")
    return tuple(texts), _right_one(_answer(row), texts, keys)


def _texts_and_keys(row: dict[str, Any]) -> tuple[list[Any], list[str] | None]:
    stem = row.get("question")
    choices = stem["choices"] if isinstance(stem, dict) and "choices" in stem else row.get("choices")
    for columns, keys in CHOICE_COLUMNS.items():
        if choices is None and row.keys() >= set(columns):
            return [row[column] for column in columns], list(keys)
    if isinstance(choices, str):  # a CSV cell holds them as JSON
        choices = _json(choices)
    if isinstance(choices, dict):
        return _labelled(choices.get("text"), choices.get("label"))
    if isinstance(choices, list) and choices and all(isinstance(choice, dict) for choice in choices):
        return _labelled([choice.get("text") for choice in choices], [choice.get("label") for choice in choices])
    if isinstance(choices, list):
        return choices, None
    raise Fault("wrong type in 'choices'", f"{type(choices).__name__}, not a list")


def _json(cell: str) -> Any:
    try:
        return json.loads(cell)
    except ValueError:
        raise Fault("wrong type in 'choices'", "text that is not a JSON list") from None


def _labelled(texts: Any, labels: Any) -> tuple[list[Any], list[str]]:
    if not isinstance(texts, list) or not isinstance(labels, list) or len(texts) != len(labels):
        raise Fault("choices and labels differ in number")
    keys = [str(label) for label in labels]
    if len(set(keys)) < len(keys):
        raise Fault("two choices with one label")
    return texts, keys


def _answer(row: dict[str, Any]) -> str | int:
    column = next((column for column in ANSWER_COLUMNS if column in row), None)
    if column is None:
        raise Fault("missing field 'answer'")
    value = row[column]
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # tables turn a column of integers with a gap into floats
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        raise Fault("empty field 'answer'")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Fault("wrong type in 'answer'", f"{type(value).__name__}, neither key nor text")
    return value


def _right_one(answer: str | int, texts: list[str], keys: list[str] | None) -> int:
    """A label decides. Without labels every reading of the answer must point at the same choice:
    public mirrors disagree whether "1" is the first or the second, so a doubtful row is set aside."""
    if keys is not None and str(answer).strip() in keys:
        return keys.index(str(answer).strip())
    found = {index for index, text in enumerate(texts) if text == answer}
    if keys is None:
        found |= {index for index in _positions(answer) if 0 <= index < len(texts)}
    if len(found) > 1:
        raise Fault("ambiguous answer", f"{answer!r} fits several choices")
    if not found:
        raise Fault("answer names no choice", f"{answer!r}")
    return found.pop()


def _positions(answer: str | int) -> set[int]:
    if isinstance(answer, int):
        return {answer}
    if answer in LETTERS and len(answer) == 1:
        return {LETTERS.index(answer)}
    return {int(answer)} if answer.isascii() and answer.isdigit() and len(answer) < 3 else set()
