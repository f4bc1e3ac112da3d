"""data.turns: which answers of a conversation are learnt."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from prepare_inputs import KINDS, STORIES, MakeRun
from transformers import PreTrainedTokenizerFast

from pipeline.config import parse_config, signature
from pipeline.errors import UserError
from pipeline.files import read_json
from pipeline.prepare import prepare
from pipeline.prepare.example import Example, Turn
from pipeline.prepare.record import Fault
from pipeline.prepare.turns import learnt
from pipeline.train import train

TALK = [("user", "Who barks?"), ("assistant", "A dog."), ("user", "And who says moo?"), ("assistant", "A cow, or two."),
        ("user", "Where?"), ("assistant", "On the farm.")]  # fmt: skip


def messages(turns: list[tuple[str, str]]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("template", ["paper", "chat"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_answer_equals_a_conversation_that_ends_there(
    kind: str, template: str, tokenizers: dict[str, PreTrainedTokenizerFast], tmp_path: Path, make_run: MakeRun
) -> None:
    tokenizer = deepcopy(tokenizers[kind])
    if template == "chat" and not tokenizer.chat_template:
        tokenizer.chat_template = tokenizers["byte_bpe"].chat_template
    model = tmp_path / "model"
    tokenizer.save_pretrained(model)
    (model / "config.json").write_text((STORIES / "config.json").read_text())
    whole = write(tmp_path / "whole.jsonl", messages(TALK), messages(TALK[:2]))
    prefixes = write(tmp_path / "prefixes.jsonl", *(messages(TALK[:end]) for end in (2, 4, 6, 2)))
    ours = prepare(*make_run(whole, model=model, template=template, turns="each", max_tokens=2000))
    theirs = prepare(*make_run(prefixes, model=model, template=template, max_tokens=2000))
    assert [row.id for row in ours.rows()] == [
        "whole.jsonl:1@1", "whole.jsonl:1@2", "whole.jsonl:1@3", "whole.jsonl:2"
    ]  # fmt: skip
    facts = [[(row.input_ids, row.prompt_length, row.segments) for row in data.rows()] for data in (ours, theirs)]
    assert facts[0] == facts[1]
    for row, answer in zip(ours.rows(), ["A dog.", "A cow, or two.", "On the farm.", "A dog."], strict=True):
        assert answer in tokenizer.decode(row.input_ids[row.prompt_length :])
        assert row.input_ids.count(tokenizer.eos_token_id) == 1 or template == "chat"


def test_rows_are_counted_and_set_aside_one_by_one(tmp_path: Path, make_run: MakeRun) -> None:
    faulty = [*TALK[:2], ("assistant", "Woof."), *TALK[2:4]]
    rows = messages(TALK), messages(faulty), {"messages": []}
    data = prepare(
        *make_run(write(tmp_path / "rows.jsonl", *rows), turns="each", filters={"whole_tokens": {"max": 90}})
    )
    counts = data.manifest["rows"]
    assert counts["read"] == 5 == counts["kept"] + counts["rejected"] + counts["dropped"]
    lines = [json.loads(line) for line in (data.path / "rejects.jsonl").read_text().splitlines()]
    assert [line["line"] for line in lines if not line["dropped"]] == ["2", "3"]
    assert [line["line"] for line in lines if line["dropped"]] == ["1@3"]


@pytest.mark.parametrize("processes", [1, 2])
def test_processes_make_the_same_rows(processes: int, tmp_path: Path, make_run: MakeRun) -> None:
    path = write(tmp_path / "rows.jsonl", *[messages(TALK[:2]), messages(TALK)] * 300)
    data = prepare(*make_run(path, turns="each"), processes)
    assert [row.id for row in data.rows()][-3:] == [f"rows.jsonl:600@{turn}" for turn in (1, 2, 3)]
    assert len(data) == 1200


def test_tool_results_are_asked_and_weight_0_makes_no_row() -> None:
    untrained = Turn("assistant", "4", trained=False)
    called = (Turn("user", "Sum?"), Turn("assistant", "call"), Turn("tool", "3"))
    history = (*called, untrained, Turn("user", "Sure?"), Turn("assistant", "No."))
    last = Example("Then?", "3.", system="Add.", history=history)
    assert learnt(last, "last") == [last]
    assert learnt(last, "each") == [
        Example("Sum?", "call", system="Add."),
        Example("Sure?", "No.", system="Add.", history=history[:4]),
        last,
    ]
    after_tool = Example("Then?", "3.", history=(*history[:3], Turn("assistant", "4")))
    assert learnt(after_tool, "each")[1] == Example("3", "4", history=history[:2], asker="tool")
    with pytest.raises(Fault, match="follows no message"):
        learnt(Example("Then?", "3.", history=(Turn("assistant", "Hi."),)), "each")


def test_last_keeps_keys_and_signatures(tmp_path: Path, make_run: MakeRun) -> None:
    path = write(tmp_path / "rows.jsonl", messages(TALK))
    default, last, each = (make_run(path, **turns)[0] for turns in ({}, {"turns": "last"}, {"turns": "each"}))
    assert signature(default) == signature(last) != signature(each)
    assert prepare(*make_run(path)).key == prepare(*make_run(path, turns="last")).key
    assert prepare(*make_run(path)).key != prepare(*make_run(path, turns="each")).key


def test_each_holds_no_rows_out(tmp_path: Path, make_run: MakeRun) -> None:
    with pytest.raises(UserError, match=r"data.turns = each can't hold out rows"):
        make_run(write(tmp_path / "rows.jsonl", messages(TALK)), turns="each", validation_fraction=0.5)


@pytest.mark.slow
@pytest.mark.parametrize(("turns", "samples"), [("last", 1), ("each", 3)])
def test_a_conversation_is_trained_end_to_end(turns: str, samples: int, tmp_path: Path, make_run: MakeRun) -> None:
    config, folder = make_run(write(tmp_path / "rows.jsonl", messages(TALK)), turns=turns)
    values = config.model_dump(mode="json") | {"method": "bitune", "tuning": {"kind": "lora", "rank": 2}}
    values["training"] |= {"epochs": 2, "batch_size": 3}
    result = train(parse_config(values, "test"), folder)
    assert (result["samples"], result["steps"]) == (samples, 2)
    assert read_json(folder.train_result)["final_loss"] > 0
