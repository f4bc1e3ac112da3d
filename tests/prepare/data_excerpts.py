"""A few rows of each data set that configs/data prepares, in the layout of their files, with the answers to be learnt.

Rows of examples/data and of excerpts/ are public ones, see the SOURCES.md beside them. The others are written for these
tests, in the columns of sets whose licence is not known or does not fit. Alpaca's are another set's in its columns.
"""

import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from prepare_inputs import DATA

EXCERPTS = Path(__file__).parent / "excerpts"
ROWS = 3


class Excerpt(NamedTuple):
    """Files by their place below the folder of data, and what becomes of their rows."""

    files: dict[str, bytes]
    answers: list[str]
    """Of the rows that are kept."""
    rejected: dict[str, int] = {}


def first(path: Path) -> list[dict[str, Any]]:
    """The first rows of a file."""
    text = path.read_text(encoding="utf-8")
    rows = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()[:ROWS]]
    return list(rows[:ROWS])


PIQA = first(DATA / "piqa_validation.jsonl")
ARC = {name: first(DATA / f"arc_{name}_test.jsonl") for name in ("challenge", "easy")}
CSQA = first(DATA / "commonsense_qa_train.jsonl")
CSQA_HUB = first(EXCERPTS / "commonsense_qa_hub.jsonl")
GSM8K = first(DATA / "gsm8k_train.jsonl")
ALPACA = first(DATA / "alpaca.json")
CHATS = first(EXCERPTS / "vicuna.json")
CALLS = first(EXCERPTS / "glaive_toolcall.json")
IDENTITY = first(EXCERPTS / "identity.json")
TREES = first(EXCERPTS / "oasst.jsonl")
PAIRS = first(EXCERPTS / "ultrafeedback_preference.jsonl")
SIQA = [
    {"context": "Kim lent Lee an umbrella.", "question": "How does Lee feel?", "answerA": "thankful",
     "answerB": "wet", "answerC": "tired", "label": "1"},
    {"context": "Lee gave it back in pieces.", "question": "What will Kim do?", "answerA": "dance",
     "answerB": "sigh", "answerC": "buy a new one", "label": "3"},
]  # fmt: skip


def _completion(model: str, response: str, score: float) -> dict[str, Any]:
    aspects = ("helpfulness", "honesty", "instruction_following", "truthfulness")
    rating = {"Rating": "4", "Rationale": "It is so."}
    return {"annotations": dict.fromkeys(aspects, rating), "custom_system_prompt": "Be helpful.", "model": model,
            "principle": "helpfulness", "response": response, "critique": "Good.", "overall_score": score,
            "fine-grained_score": 4.0}  # fmt: skip


def _rated(instruction: str, *completions: dict[str, Any]) -> dict[str, Any]:
    return {"source": "evol_instruct", "instruction": instruction, "models": [one["model"] for one in completions],
            "completions": list(completions), "correct_answers": ["None"], "incorrect_answers": ["None"]}  # fmt: skip


ULTRAFEEDBACK = [
    _rated("Name a bird.", _completion("llama-2-7b-chat", "A wren.", 9.0), _completion("gpt-4", "A robin.", 7.5)),
    _rated("Name a fish.", _completion("gpt-3.5-turbo", "A carp.", 9.0), _completion("alpaca-7b", "Fish.", 2.0)),
    _rated("Name a tree.", _completion("gpt-4", "An oak.", 8.0), _completion("falcon-40b-instruct", "Oak", 3.0)),
]  # fmt: skip


def _turns(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]


BINARIZED = [
    {"prompt": asked, "prompt_id": "0a", "chosen": _turns(asked, good), "rejected": _turns(asked, bad),
     "messages": _turns(asked, good), "score_chosen": 8.0, "score_rejected": 5.0}
    for asked, good, bad in (("Name a bird.", "A robin.", "A bird."), ("Name a fish.", "A carp.", "No."))
]  # fmt: skip
TULU = [
    {"id": "one", "messages": _turns("Name a bird.", "A robin.")},
    {"id": "two", "messages": _turns("Name a fish.", "A carp.", "Another.", "A pike.")},
]
TULU_PAIRS = [
    {"id": row["prompt"], "source": "made up", "prompt": row["prompt"], "chosen": row["chosen"],
     "rejected": row["rejected"], "chosen_rating": 8, "rejected_rating": 5}
    for row in BINARIZED
]  # fmt: skip
LOGIQA = [
    ("b", "Lee's birds sing.", "Which follows?", "A.None sings.", "B.Lee's wren sings.", "C.All fly.", "D.Kim sings."),
    ("d", "No stone floats.", "Which is a stone?", "A.What floats.", "B.A cork.", "C.A duck.", "D.What sank, perhaps."),
]  # fmt: skip
LAMBADA = ["lee opened the cage and out flew the bird", "kim looked for a fish , and in the net was a fish"]


def _lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


def _requests(docs: list[dict[str, Any]]) -> bytes:
    """As OLMo's evaluation writes them: a line for each choice."""
    lines = [
        {"request_type": "loglikelihood", "doc": doc, "request": {"context": "...", "continuation": f" {choice}"},
         "idx": index, "doc_id": number}
        for number, doc in enumerate(docs)
        for index, choice in enumerate(doc["choices"])
    ]  # fmt: skip
    return gzip.compress(_lines(lines))


def _query(row: dict[str, Any]) -> dict[str, Any]:
    texts, labels = row["choices"]["text"], row["choices"]["label"]
    letters = list("ABCDE"[: len(texts)])
    shown = "".join(f"\n {letter}. {text}" for letter, text in zip(letters, texts, strict=True))
    return {"id": row["id"], "query": f"Question: {row['question']}{shown}\nAnswer:", "choices": letters,
            "gold": labels.index(row["answerKey"])}  # fmt: skip


def _right(row: dict[str, Any]) -> str:
    return str(row["choices"]["text"][row["choices"]["label"].index(row["answerKey"])])


def _official(row: dict[str, Any]) -> str:
    return str(next(one["text"] for one in row["question"]["choices"] if one["label"] == row["answerKey"]))


def _without(rows: list[dict[str, Any]], name: str) -> bytes:
    return _lines([{key: value for key, value in row.items() if key != name} for row in rows])


def _labels(rows: list[dict[str, Any]]) -> bytes:
    return "".join(f"{row['label']}\n" for row in rows).encode()


def _piqa(row: dict[str, Any]) -> str:
    return str(row[("sol1", "sol2")[row["label"]]])


def _siqa(row: dict[str, Any]) -> str:
    return f"({int(row['label']) - 1})"


def _last(row: dict[str, Any]) -> str:
    return str(row["conversations"][-1]["value"])


def _requested(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "choices": ["A", "B"], "gold": row["label"]}


HUB: dict[str, tuple[list[dict[str, Any]], list[str], dict[str, int]]] = {
    "ultrafeedback": (ULTRAFEEDBACK, ["A robin.", "An oak."], {"no completion by 'gpt-4'": 1}),
    "ultrafeedback_binarized": (BINARIZED, ["A robin.", "A carp."], {}),
    "alpaca": (ALPACA, [row["output"] for row in ALPACA], {}),
    "piqa": (PIQA, list(map(_piqa, PIQA)), {}),
    "arc_challenge": (ARC["challenge"], list(map(_right, ARC["challenge"])), {}),
    "commonsense_qa": (CSQA_HUB, list(map(_right, CSQA_HUB)), {}),
    "siqa": (SIQA, list(map(_siqa, SIQA)), {}),
    "gsm8k": (GSM8K, [row["answer"] for row in GSM8K], {}),
}
"""Of each set of the hub: rows, the answers to be learnt, and what is rejected."""

FILES: dict[str, Excerpt] = {
    "piqa": Excerpt(
        {"piqa/valid.jsonl": _without(PIQA, "label"), "piqa/valid-labels.lst": _labels(PIQA)}, list(map(_piqa, PIQA))
    ),
    "piqa_requests": Excerpt(
        {"piqa/train_mc_5shot.requests.jsonl.gz": _requests(list(map(_requested, PIQA)))},
        list(map(_piqa, PIQA)),
        {"another row has the same 'doc_id'": len(PIQA)},
    ),
    **{
        f"arc_{name}": Excerpt(
            {f"arc_{name}/train_mc_5shot.requests.jsonl.gz": _requests(list(map(_query, rows)))},
            list(map(_right, rows)),
            {"another row has the same 'doc_id'": sum(len(row["choices"]["text"]) - 1 for row in rows)},
        )
        for name, rows in ARC.items()
    },
    "commonsense_qa": Excerpt(
        {"commonsense_qa/train_rand_split.jsonl": _lines(CSQA)},
        list(map(_official, CSQA)),
    ),
    "social_i_qa": Excerpt(
        {"social_i_qa/socialiqa-train-dev.zip": _zipped({
            "socialiqa-train-dev/train.jsonl": _without(SIQA, "label"),
            "socialiqa-train-dev/train-labels.lst": _labels(SIQA),
            "__MACOSX/socialiqa-train-dev/._dev.jsonl": b"\x00\x05\x16\x07",
            "socialiqa-train-dev/dev.jsonl": _without(SIQA, "label"),
        })},
        list(map(_siqa, SIQA)),
    ),
    "mmlu": Excerpt(
        {"mmlu/mmlu.zip": _zipped({
            "data/test/birds_test.csv": b"1 + 1?,1,2,3,4,B\n",
            "data/val/birds_val.csv": b'"What sings, and flies?",A stone,A wren,A carp,A cork,B\n',
            "data/val/fish_val.csv": b"What swims?,A stone,A wren,A carp,A brick,C\n",
        })},
        ["A wren", "A carp"],
    ),
    "gsm8k": Excerpt({"gsm8k/train.jsonl": _lines(GSM8K)}, [row["answer"] for row in GSM8K]),
    "lambada": Excerpt({"lambada/lambada_test_plain_text.txt": "\n".join(LAMBADA).encode()}, ["bird", "fish"]),
    "logiqa": Excerpt(
        {"logiqa/Eval.txt": "".join("\n" + "\n".join(row) + "\n" for row in LOGIQA).encode()},
        ["Lee's wren sings.", "What sank, perhaps."],
    ),
    "vicuna": Excerpt({"vicuna_mtbench/dummy_conversation.json": json.dumps(CHATS).encode()}, list(map(_last, CHATS))),
    "alpaca_demo": Excerpt(
        {"llama_factory/alpaca_en_demo.json": json.dumps(ALPACA).encode()}, [row["output"] for row in ALPACA]
    ),
    "glaive_toolcall": Excerpt(
        {"llama_factory/glaive_toolcall_en_demo.json": json.dumps(CALLS).encode()},
        [_last(row) for row in CALLS if row["tools"] == "[]"],
        {"tools, for which the paper's templates have no place": sum(row["tools"] != "[]" for row in CALLS)},
    ),
    "identity": Excerpt(
        {"llama_factory/identity.json": json.dumps(IDENTITY).encode()}, [row["output"] for row in IDENTITY]
    ),
    "ultrafeedback_preference": Excerpt(
        {"ultrafeedback/train_clean.jsonl": _lines(PAIRS)}, [row["chosen"] for row in PAIRS]
    ),
    "oasst": Excerpt(
        {"oasst/en_100_tree.jsonl": _lines(TREES)}, [row["prompt"]["replies"][0]["text"] for row in TREES]
    ),
    "tulu": Excerpt({"open_instruct/sft_sample.jsonl": _lines(TULU)}, ["A robin.", "A pike."]),
    "tulu_preference": Excerpt({"open_instruct/preference_sample.jsonl": _lines(TULU_PAIRS)}, ["A robin.", "A carp."]),
}  # fmt: skip
"""Of each set of local files, by its configuration's name."""
