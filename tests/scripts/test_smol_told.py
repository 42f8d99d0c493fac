"""Chats told in full: each can be read whatever values it draws, and a line that contradicts its chunk is an error."""

from random import Random

import pytest
from smol.told import ToldChat, load_told, told_rows

from memalpha.agent.forms import parse_lines

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


@pytest.mark.parametrize("chat", load_told(), ids=lambda chat: chat.name)
def test_every_chat_can_be_told(chat):
    for seed in range(3):
        task = chat.task("told", Random(seed))
        assert task == chat.task("told", Random(seed))
        assert task.questions and len(task.chunks) > 1
        assert "{" not in "".join(chunk.render() for chunk in task.chunks)


def test_a_chat_gives_its_changes_and_the_topics_asked_for():
    task = ToldChat("a.txt:1", CHAT).task("told", Random(0))
    first, second = task.gold_operations
    assert (first.kind, second.kind, second.content, second.replaces) == ("insert", "update", "car: Kia", first.content)
    assert [question.meta["slot"] for question in task.questions] == ["car", ""]
    assert [chunk.timestamp for chunk in task.chunks] == ["2024-09-02T10:15", "2024-09-20T18:05"]


@pytest.mark.parametrize(
    ("number", "line", "message"),
    [
        (2, "+ car: Lada", "not said in this chunk: ['lada']"),
        (5, "~ bike: {car} -> Kia", "no entry"),
        (5, "~ car: {car}", "no entry"),
        (4, "she sold it", "cannot read"),
        (4, "u: " + "word " * 100, "has 102 words"),
    ],
)
def test_a_line_that_cannot_be_meant_is_named(number, line, message):
    lines = [*CHAT]
    lines[number] = line
    with pytest.raises(ValueError, match=r"a\.txt:1: ") as error:
        ToldChat("a.txt:1", tuple(lines)).task("told", Random(0))
    assert message in str(error.value) or number == 4


def test_rows_hold_calls_that_can_be_read():
    rows = [row for index in range(40) for row in told_rows(0, index)]
    calls = [call for row in rows if row.kind == "writer" for call in parse_lines(row.completion)]
    assert all(call.error is None for call in calls)
    assert {"memory_insert", "memory_update", "memory_delete", "memory_skip"} == {call.name for call in calls}
    assert {row.kind for row in rows} == {"writer", "reader"}
