"""Conversations exported by ChatGPT and Claude: the branch that is shown, the words that were said, errors by field."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha import load_tasks
from memalpha.cli.options import read_chunks
from memalpha.errors import DataError

NOBODY = "00000000-0000-4000-8000-000000000000"


def node(parent: str | None, role: str = "", *parts: Any, **fields: Any) -> dict[str, Any]:
    """Return a node of ChatGPT's tree; one without a role has no message."""
    content = {"content_type": fields.pop("content_type", "text"), "parts": list(parts)}
    message = {"author": {"role": role}, "create_time": 1716585000.5, "content": content, "recipient": "all", **fields}
    return {"parent": parent, "children": [], "message": message if role else None}


def chatgpt(nodes: dict[str, Any], leaf: str | None, **fields: Any) -> dict[str, Any]:
    known = {"title": "Move", "create_time": 1716584000.0, "conversation_id": "c1"}
    return {**known, "mapping": nodes, "current_node": leaf, **fields}


def said(sender: str, text: str = "", **fields: Any) -> dict[str, Any]:
    """Return a message of Claude's export."""
    return {"uuid": "m", "sender": sender, "text": text, "created_at": "2024-05-24T21:10:00.123456Z", **fields}


def claude(*messages: Any, **fields: Any) -> dict[str, Any]:
    known = {"uuid": "c1", "name": "Move", "created_at": "2024-05-24T20:00:00Z"}
    return {**known, "chat_messages": list(messages), **fields}


def read(path: Path, value: Any):
    file = path / "conversations.json"
    file.write_text(json.dumps(value), encoding="utf-8")
    return load_tasks(file)


def turns(task):
    return [(turn.id, turn.speaker, turn.text) for chunk in task.chunks for turn in chunk.turns]


def test_the_branch_that_chatgpt_shows(tmp_path):
    nodes = {
        "root": node(None),
        "hidden": node("root", "system", "", metadata={"is_visually_hidden_from_conversation": True}),
        "custom": node("hidden", "user", "About me", content_type="user_editable_context"),
        "ask": node("custom", "user", "I moved to Porto.", {"content_type": "image"}, content_type="multimodal_text"),
        "old": node("ask", "assistant", "A discarded reply"),
        "call": node("ask", "assistant", "search('Porto')", recipient="web"),
        "tool": node("call", "tool", "Porto is a city"),
        "think": node("tool", "assistant", content_type="thoughts"),
        "new": node("think", "assistant", "Nice\ue200cite\ue202turn0search0\ue201!", create_time=None, channel="final"),
        "voice": node("new", "user", {"content_type": "audio", "text": "Thanks"}, content_type="multimodal_text"),
        "empty": node("voice", "assistant", ""),
    }
    silent = [chatgpt({"root": node(None)}, "root", conversation_id="c2"), chatgpt({}, None, conversation_id="c3")]
    [task] = read(tmp_path, [chatgpt(nodes, "empty"), *silent])
    left_out = {"edited branches": 1, "media": 1, "tool calls": 1}
    assert (task.id, task.meta) == ("c1", {"source": "chatgpt", "title": "Move", "left_out": left_out})
    assert turns(task) == [
        ("0.0", "user", "I moved to Porto."),
        ("0.1", "assistant", "Nice!"),
        ("0.2", "user", "Thanks"),
    ]
    assert task.chunks[0].timestamp == "2024-05-24T20:53:20"
    assert read_chunks(tmp_path / "conversations.json", None)[0].turns[0].text == "I moved to Porto."


def test_what_no_store_can_hold_is_replaced(tmp_path) -> None:
    nodes = {"a": node(None, "user", "Tom\0 is \ud83d grey")}
    [task] = read(tmp_path, [chatgpt(nodes, "a", title="\ud83d")])
    assert turns(task) == [("0.0", "user", "Tom\ufffd is \ufffd grey")] and task.meta["title"] == "\ufffd"
    assert read(tmp_path, [claude(said("human", "Tom\0"))])[0].chunks[0].turns[0].text == "Tom\ufffd"


def test_the_branch_that_claude_shows(tmp_path):
    blocks = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "Nice!"},
        {"type": "tool_use", "name": "search"},
        {"type": "voice_note", "title": "Spoken", "text": "Where to?"},
    ]
    messages = [
        said("human", "I moved.", uuid="a", parent_message_uuid=NOBODY, content=[]),
        said("assistant", "Discarded", uuid="b", parent_message_uuid="a"),
        said("assistant", "with a note on tools", uuid="c", parent_message_uuid="a", content=blocks),
        said("human", "Porto", uuid="d", parent_message_uuid="c", created_at="2024-05-25T01:30:00+02:00"),
        said("human", "", uuid="e", parent_message_uuid="d", content=[{"type": "text", "text": "  "}]),
    ]
    [task] = read(tmp_path, [claude(*messages), claude(uuid="none said")])
    words = [("user", "I moved."), ("assistant", "Nice!\nWhere to?"), ("user", "Porto")]
    assert turns(task) == [(f"0.{number}", *said) for number, said in enumerate(words)]
    assert task.chunks[0].timestamp == "2024-05-24T20:00:00"
    left_out = {"edited branches": 1, "tool calls": 1}
    assert task.meta == {"source": "claude", "title": "Move", "left_out": left_out}
    [shown] = read(tmp_path, claude(*messages, current_leaf_message_uuid="b"))
    assert [text for _, _, text in turns(shown)] == ["I moved.", "Discarded"]
    damaged = [{**messages[0], "uuid": {}}, {**messages[3], "parent_message_uuid": "a"}]
    [last] = read(tmp_path, claude(*damaged, current_leaf_message_uuid=["b"]))
    assert [text for _, _, text in turns(last)] == ["Porto"]


@pytest.mark.parametrize("leaf", [None, "gone"])
def test_chatgpt_without_its_current_node_shows_the_latest_leaf(tmp_path, leaf):
    nodes = {"ask": node(None, "user", "Hi"), "new": node("ask", "assistant", "Again", create_time=1716585090)}
    nodes["old"] = node("ask", "assistant", "Hello", create_time=1716585060)
    [task] = read(tmp_path, [chatgpt(nodes, leaf)])
    assert [text for _, _, text in turns(task)] == ["Hi", "Again"] and task.meta["left_out"] == {"edited branches": 1}
    nodes["new"] = node("ask", "assistant", "Again", create_time=1716585060)
    with pytest.raises(DataError, match=rf"\[0\]\.current_node: there is no node {leaf!r} .* no latest leaf"):
        read(tmp_path, [chatgpt(nodes, leaf)])


def test_chat_messages_in_a_json_file_are_one_task(tmp_path):
    [task] = read(tmp_path, {"messages": [{"role": "user", "content": "I moved."}]})
    assert task.id == "conversations" and turns(task) == [("0.0", "user", "I moved.")]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([chatgpt({}, "x")], r"\[0\]\.current_node: there is no node 'x'"),
        ([chatgpt({"a": node("b"), "b": node("a")}, "a")], "node 'a' is its own ancestor"),
        ([chatgpt({"a": node(None, "user", "Hi", author={})}, "a")], r"\['a'\]\.message\.author: field 'role'"),
        ([chatgpt({"a": node(None, "user", "Hi", content=[])}, "a")], "field 'content' is missing or not dict"),
        ([chatgpt({"a": node(None, "user", "Hi", create_time="noon")}, "a")], r"create_time: 'noon' is no time"),
        ([chatgpt({"a": node(None, "user", "Hi")}, "a", conversation_id=None)], r"\[0\]\.conversation_id: is missing"),
        ([chatgpt({"a": node(None, "user", "Hi")}, "a")] * 2, r"\[1\]: the id 'c1' occurs twice"),
        ([chatgpt({"a": node(None)}, "a")], "no message has words"),
        ([claude(said("human", "Hi")), 3], r"\[1\]: a conversation is an object, not int"),
        ([claude(said("robot", "Hi"))], r"\[0\]\.chat_messages\[0\]\.sender: is 'robot': use human or assistant"),
        ([claude(said("human", "Hi", created_at="noon"))], r"\[0\]\.created_at: 'noon' is no ISO 8601 time"),
        ([claude(said("human", "Hi", content="Hi"))], r"chat_messages\[0\]\.content: a list of blocks is needed"),
        ([claude({"sender": "human"})], r"chat_messages\[0\]: field 'text' is missing"),
        ([claude(said("human", "Hi"), uuid="")], r"\[0\]\.uuid: is missing"),
    ],
)
def test_what_is_missing_is_named(tmp_path, value, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, value)


TEXTS = st.text(st.characters(exclude_categories=("C",)), min_size=1, max_size=30).filter(
    lambda text: text.strip() == text
)
TALKS = st.lists(
    st.tuples(st.sampled_from(["user", "assistant"]), TEXTS, st.integers(0, 200_000)), min_size=1, max_size=8
)


@settings(max_examples=40, deadline=None)
@given(st.lists(TALKS, min_size=1, max_size=3), st.booleans(), st.integers(0, 3))
def test_what_was_said_comes_back(talks, is_chatgpt, forks):
    """Conversations written as either app exports them are read back whole, whatever was said on other branches."""
    values = []
    for number, talk in enumerate(talks):
        time = datetime(2024, 5, 24, tzinfo=UTC)
        nodes: dict[str, Any] = {"n": node(None)}
        messages: list[Any] = []
        for index, (role, text, seconds) in enumerate(talk):
            time += timedelta(seconds=seconds)
            parent = "n" if index == 0 else f"n{index - 1}"
            nodes |= {f"fork{index}.{fork}": node(parent, "assistant", "other") for fork in range(forks)}
            nodes[f"n{index}"] = node(parent, role, text, create_time=time.timestamp())
            link = {"parent_message_uuid": parent, "created_at": time.isoformat()}
            sender = "human" if role == "user" else role
            messages += [said("assistant", "other", uuid=f"f{index}", **link) for fork in range(forks)]
            messages.append(said(sender, text, uuid=f"n{index}", **link))
        leaf = f"n{len(talk) - 1}"
        values.append(
            chatgpt(nodes, leaf, conversation_id=f"{number}") if is_chatgpt else claude(*messages, uuid=f"{number}")
        )
    with tempfile.TemporaryDirectory() as folder:
        tasks = read(Path(folder), values)
    assert [[turn[1:] for turn in turns(task)] for task in tasks] == [[said[:2] for said in talk] for talk in talks]
