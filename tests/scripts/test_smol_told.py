"""Chats told in full: each can be read whatever values it draws, and a line that contradicts its chunk is an error."""

import re
from random import Random

import pytest
from smol.told import ToldChat, load_told, read_told, told_rows

from memalpha.agent.replies import parse_lines

CHAT = (
    "= 2024-09-02 10:15",
    "u: my {car=Fiat|Volvo} died",
    "+ car: {car}",
    "= 2024-09-20 18:05",
    "u: sold the {car}, got a Kia now",
    "~ car: {car} -> Kia",
    "? What do I drive? | Kia",
    "? What is my cat called? |",
)


def test_every_chat_can_be_told():
    chats = load_told()
    assert len({chat.name for chat in chats}) == len(chats) > 500
    for seed, chat in enumerate(chats):  # an error names the chat
        task = chat.task("told", Random(seed))
        assert task == chat.task("told", Random(seed))
        assert task.questions and len(task.chunks) > 1, chat.name
        assert "{" not in "".join(chunk.render() for chunk in task.chunks), chat.name


def test_a_chat_gives_its_changes_and_the_topics_asked_for():
    task = ToldChat("a.txt:1", "ua", CHAT).task("told", Random(0))
    first, second = task.gold_operations
    assert (first.kind, second.kind, second.content, second.replaces) == ("insert", "update", "car: Kia", first.content)
    assert [question.meta["slot"] for question in task.questions] == ["car", ""]
    assert [chunk.timestamp for chunk in task.chunks] == ["2024-09-02T10:15", "2024-09-20T18:05"]


@pytest.mark.parametrize(
    ("number", "line", "message"),
    [
        (2, "+ car: Lada", "not said in this chunk: ['lada']"),
        (4, "2: sold it", "cannot read '2: sold it'"),
        (4, "u: {colour} Kia", "{colour} is no pool"),
        (4, "u: a Kia" + " word" * 100, "has 102 words and 1 changes"),
        (5, "~ bike: {car} -> Kia", "no entry 'bike: "),
        (5, "~ car: {car}", "alone has an arrow"),
        (6, "? What do I drive? | Lada", "no entry that holds has an answer of 'What do I drive?'"),
    ],
)
def test_a_line_that_cannot_be_meant_is_named(number, line, message):
    lines = [*CHAT]
    lines[number] = line
    with pytest.raises(ValueError, match=re.escape("a.txt:1: ") + ".*" + re.escape(message)):
        ToldChat("a.txt:1", "ua", tuple(lines)).task("told", Random(0))


@pytest.mark.parametrize("text", ["u: hi\n", "== group\nu: hi\n"])
def test_a_file_that_begins_otherwise_is_refused(tmp_path, text):
    (tmp_path / "b.txt").write_text(text)
    with pytest.raises(ValueError, match=r"b\.txt:1: a chat begins with"):
        read_told(tmp_path / "b.txt")


def test_rows_hold_calls_that_can_be_read():
    rows = [row for index in range(40) for row in told_rows(0, index)]
    calls = [call for row in rows if row.kind == "writer" for call in parse_lines(row.completion)]
    assert all(call.error is None for call in calls)
    assert {"memory_insert", "memory_update", "memory_delete", "memory_skip"} == {call.name for call in calls}
    assert {row.kind for row in rows} == {"writer", "reader"}
