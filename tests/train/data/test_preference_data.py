"""Preference files: every format gives the ids it should, every bad line is named with its field."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_policy

from memalpha.agent.parsing import format_call
from memalpha.errors import CheckpointError, DataError
from memalpha.train.api import write_pairs
from memalpha.train.data.preferences import lines_fingerprint, read_pairs


@lru_cache(maxsize=1)
def policy():
    return tiny_policy()


def said(ids) -> str:
    return policy().tokenizer.decode(list(ids), skip_special_tokens=False)


def write(path: Path, lines: list) -> Path:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


USER, GOOD, BAD = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "assistant"}
CALLS = [{"type": "function", "function": {"name": "memory_delete", "arguments": '{"id": "x"}'}}]


def test_every_format(tmp_path):
    lines = [
        {"prompt": "<|user|>raw<|assistant|>", "chosen": "one", "rejected": "two"},
        {"prompt": [USER], "chosen": "three", "rejected": [GOOD]},
        "\n",
        {"chosen": [USER, GOOD], "rejected": [USER, {**BAD, "tool_calls": CALLS}]},
    ]
    path = write(tmp_path / "prefs.jsonl", lines)
    results = read_pairs(path, policy())
    assert [(said(p.prompt_ids), said(p.chosen_ids), said(p.rejected_ids)) for p in results] == [
        ("<|user|>raw<|assistant|>", "one<|end|>", "two<|end|>"),
        ("<|user|>a<|assistant|>", "three<|end|>", "b<|end|>"),
        ("<|user|>a<|assistant|>", "b<|end|>", format_call("memory_delete", {"id": "x"}) + "<|end|>"),
    ]
    assert [pair.source for pair in results] == [f"{path}:{number}" for number in (1, 2, 4)]
    copied = read_pairs(write(tmp_path / "copy.jsonl", lines), policy())
    assert lines_fingerprint(copied) == lines_fingerprint(results) != lines_fingerprint(results[1:])
    chosen, rejected = results[0].rows("unit")
    assert chosen.prompt_ids == rejected.prompt_ids and chosen.unit == rejected.unit == "unit"
    assert (chosen.advantages > 0).all() and (rejected.advantages < 0).all() and not chosen.pg.any()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"prompt": "a", "chosen": "b"}, "rejected: missing"),
        ({"prompt": "a", "rejected": "b"}, "chosen: missing"),
        ({"chosen": "a", "rejected": "b"}, "prompt: missing"),
        ({"chosen": [USER, GOOD], "rejected": "b"}, "prompt: missing"),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "score": 1}, "score: unknown key"),
        ({"prompt": "", "chosen": "b", "rejected": "c"}, "prompt: is empty"),
        ({"prompt": [], "chosen": "b", "rejected": "c"}, "prompt: is empty"),
        ({"prompt": "a", "chosen": "", "rejected": "c"}, "chosen: the completion is empty"),
        ({"prompt": "a", "chosen": "b", "rejected": "b<|end|>"}, "rejected: the completion holds an end token"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "rejected: is the same reply as chosen"),
        ({"prompt": [{"role": "user", "content": 3}], "chosen": "b", "rejected": "c"}, r"prompt\[0\]\.content: Input"),
        ({"prompt": "a", "chosen": [USER], "rejected": "c"}, "chosen: give a text or one message of the assistant"),
        ({"prompt": "a", "chosen": "b", "rejected": [GOOD, GOOD]}, "rejected: give a text or one message"),
        ({"prompt": "a", "chosen": "b", "rejected": 3}, "rejected: Input should be a valid list"),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "tools": [{"function": {}}]}, "tools: they go with messages"),
        ({"chosen": [USER], "rejected": [GOOD]}, "chosen: its last message must be the assistant's"),
        ({"chosen": [USER, GOOD], "rejected": []}, "rejected: its last message must be the assistant's"),
        ({"chosen": [USER, GOOD], "rejected": [GOOD, BAD]}, "rejected: what stands before its last message is not"),
        ({"chosen": [GOOD], "rejected": [{**BAD, "content": "c"}]}, "prompt: is empty"),
        (
            {"chosen": [USER, GOOD], "rejected": [USER, {**BAD, "tool_calls": [{"function": {"name": 1}}]}]},
            r"rejected\[1\]\.tool_calls: each is an object",
        ),
        ({"prompt": "a" * 4000, "chosen": "b", "rejected": "c" * 200}, "4201 tokens with its prompt"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, told):
    path = write(tmp_path / "prefs.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}, line])
    with pytest.raises(DataError, match=rf"prefs\.jsonl:2: {told}"):
        read_pairs(path, policy())


@pytest.mark.parametrize("content", [None, "\n\n"])
def test_a_file_without_pairs_is_refused(tmp_path, content):
    path = tmp_path / "prefs.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=r"prefs\.jsonl: (cannot be read|holds no line)"):
        read_pairs(path, policy())


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4))
def test_what_is_written_is_what_is_read(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("prefs") / "prefs.jsonl"
    prompts, replies = [prompt for prompt, _ in texts], [reply for _, reply in texts]
    write_pairs(path, ["of"], ["an earlier"], ["call"], is_resuming=False)
    write_pairs(path, prompts, replies, [f"{reply}!" for reply in replies], is_resuming=False)
    results = read_pairs(path, policy())
    assert [(said(p.prompt_ids), said(p.chosen_ids[:-1]), said(p.rejected_ids[:-1])) for p in results] == [
        (prompt, reply, f"{reply}!") for prompt, reply in texts
    ]
    write_pairs(path, prompts, replies, [f"{reply}!" for reply in replies], is_resuming=True)
    with pytest.raises(CheckpointError, match=f"holds other pairs \\(from pair {len(texts) - 1} on\\)"):
        write_pairs(path, prompts, replies, [*(f"{reply}!" for reply in replies[:-1]), "other"], is_resuming=True)


def test_lists_that_are_no_pairs_are_refused(tmp_path):
    path = tmp_path / "prefs.jsonl"
    with pytest.raises(DataError, match="2 prompts, 1 chosen and 1 rejected"):
        write_pairs(path, ["a", "b"], ["c"], ["d"], is_resuming=False)
    with pytest.raises(DataError, match=r"pair 1 is neither texts nor messages: .*not JSON serializable"):
        write_pairs(path, ["a", "b"], ["c", object()], ["d", "e"], is_resuming=False)
    assert not path.exists()
