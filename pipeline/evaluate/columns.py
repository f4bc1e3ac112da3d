"""Columns: local rows of any known form in the columns that the harness's own tasks read."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.prepare.choices import LETTERS
from pipeline.prepare.forms import FORMS, Example
from pipeline.prepare.record import Fault, Record, check_text

Row = dict[str, Any]


@dataclass(frozen=True)
class Columns:
    """What the tasks over one data set read, and how a row is brought into that form."""

    names: tuple[str, ...]
    convert: Callable[[Row], Row]
    read_text: Callable[[str], Iterator[tuple[int, Row]]] | None = None
    """Rows of the data set's own text file (.txt), with their lines."""

    def of(self, row: Row) -> Row:
        """The row with those columns, and the others as they are.

        Raises:
            Fault: it does not hold what the columns need.
        """
        return {**row, **self.convert(row)}


def _question(row: Row, choices: int = 0) -> Example:
    """The row in the form of questions with choices."""
    example = FORMS["question_choices"].read(row)
    if not example.choices:
        raise Fault("no choices")
    if choices and len(example.choices) != choices:
        raise Fault(f"{len(example.choices)} choices, not {choices}")
    return example


def _piqa(row: Row) -> Row:
    example = _question(row, 2)
    return {"goal": example.question, "sol1": example.choices[0], "sol2": example.choices[1], "label": example.index}


def _labelled(row: Row, choices: int = 0) -> Row:
    example = _question(row, choices)
    labels = list(LETTERS[: len(example.choices)])
    choices_ = {"text": list(example.choices), "label": labels}
    return {"question": example.question, "choices": choices_, "answerKey": labels[example.index]}


def _siqa(row: Row) -> Row:
    example = _question(row, 3)
    named = zip(("answerA", "answerB", "answerC"), example.choices, strict=True)
    return {
        "context": _text(row, "context"),
        "question": example.question,
        **dict(named),
        "label": str(example.index + 1),
    }


def _mmlu(row: Row) -> Row:
    example = _question(row, 4)
    return {"question": example.question, "choices": list(example.choices), "answer": example.index}


def _gsm8k(row: Row) -> Row:
    return {name: _text(row, name) for name in ("question", "answer")}


def _logiqa(row: Row) -> Row:
    if isinstance(row.get("options"), list):
        row = {**row, "choices": row["options"], "answer": row.get("label", row.get("answer"))}
    letter = row.get("answer")
    example = _question({**row, "answer": letter.strip().upper() if isinstance(letter, str) else letter}, 4)
    options, label = list(example.choices), LETTERS[example.index].lower()
    return {"context": _text(row, "context"), "question": example.question, "options": options, "label": label}


def _logiqa_text(text: str) -> Iterator[tuple[int, Row]]:
    """LogiQA's own files: blocks of letter, context, question and four options, with a blank line between them.

    Full stops get the space behind them that the hub's data set gives them.
    """
    for filled, block in groupby(enumerate(text.split("\n"), start=1), key=lambda numbered: bool(numbered[1].strip())):
        if filled:
            numbers, lines = zip(*block, strict=True)
            if len(lines) != 7:
                raise UserError(
                    f"line {numbers[0]}: {len(lines)} lines, not letter, context, question and four options"
                )
            letter, context, question, *options = (line.replace(".", ". ").strip() for line in lines)
            texts = [option[2:].strip() for option in options]
            yield numbers[0], {"label": letter, "context": context, "question": question, "options": texts}


def _lambada(row: Row) -> Row:
    text = _text(row, "text").rstrip()  # the target is what follows the last space
    if " " not in text:
        raise Fault("fewer than two words in 'text'")
    return {"text": text}


def _lambada_text(text: str) -> Iterator[tuple[int, Row]]:
    """One passage a line."""
    return ((number, {"text": line}) for number, line in enumerate(text.split("\n"), start=1) if line.strip())


STORY = {f"input_sentence_{index}": f"InputSentence{index}" for index in range(1, 5)} | {
    f"sentence_quiz{index}": f"RandomFifthSentenceQuiz{index}" for index in (1, 2)
}
"""Column of the hub -> column of the authors' own table."""


def _story(row: Row) -> Row:
    texts = {name: _text(row, name if name in row else original) for name, original in STORY.items()}
    answer = row.get("answer_right_ending", row.get("AnswerRightEnding"))
    if str(answer) not in ("1", "2"):
        raise Fault("field 'answer_right_ending' is neither 1 nor 2")
    return {**texts, "answer_right_ending": int(str(answer))}


def _text(row: Row, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise Fault(f"missing field {name!r}" if value is None else f"no text in {name!r}")
    return value


_MMLU = Columns(("question", "choices", "answer"), _mmlu)
_LAMBADA = Columns(("text",), _lambada, _lambada_text)
COLUMNS: Mapping[str, Columns] = {
    "baber/piqa": Columns(("goal", "sol1", "sol2", "label"), _piqa),
    "allenai/ai2_arc": Columns(("question", "choices", "answerKey"), _labelled),
    "tau/commonsense_qa": Columns(("question", "choices", "answerKey"), lambda row: _labelled(row, 5)),
    "lighteval/siqa": Columns(("context", "question", "answerA", "answerB", "answerC", "label"), _siqa),
    "cais/mmlu": _MMLU,
    "hails/mmlu_no_train": _MMLU,
    "openai/gsm8k": Columns(("question", "answer"), _gsm8k),
    "EleutherAI/logiqa": Columns(("context", "question", "options", "label"), _logiqa, _logiqa_text),
    "cimec/lambada": _LAMBADA,
    "EleutherAI/lambada_openai": _LAMBADA,
    "juletxara/xstory_cloze": Columns((*STORY, "answer_right_ending"), _story),
}
"""Data set on the hub, as the harness's definitions name it -> what its tasks read."""


def text_records(path: Path, columns: Columns | None) -> Iterator[Record]:
    """Rows of a text file, where the task's data set has a text form.

    Raises:
        UserError: it has none, or the file is broken.
    """
    if columns is None or columns.read_text is None:
        raise UserError(
            f"{path}: only LAMBADA and LogiQA have a text form; use one of .jsonl, .json, .csv, .parquet, .arrow"
        )
    try:
        for line, row in columns.read_text(path.read_text(encoding="utf-8").replace("\r\n", "\n")):
            check_text(row)
            yield Record(line, row)
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
