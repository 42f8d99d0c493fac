"""Rows of the writer smol: every source gives calls that can be read, and splits of wordings do not mix."""

from random import Random

import pytest
from make_smol_rows import make_rows, token_counter
from smol.chats import load_chats
from smol.told import ToldChat
from smol.worlds import select_phrases

from memalpha.agent.replies import parse_lines

CALLS = {"memory_insert", "memory_update", "memory_delete", "memory_skip"}


@pytest.mark.parametrize("chats", [False, True])
def test_rows_hold_calls_that_can_be_read(chats):
    rows, table = make_rows(100, 0, None, token_counter(None), chats=chats)
    assert not chats or (rows, table) == make_rows(100, 0, None, token_counter(None), chats=chats)
    calls = [call for row in rows if row.kind == "writer" for call in parse_lines(row.completion)]
    assert all(call.error is None for call in calls) and {call.name for call in calls} == CALLS
    assert {row.kind for row in rows} == {"writer", "reader"}
    assert not any("{" in row.prompt.partition("\nchunk ")[2] for row in rows)


def test_held_out_wordings_are_in_no_row():
    for kind in load_chats()[1]:
        for form, texts in kind.wordings.items():
            shared = {*kind.select(form, "train")} & {*kind.select(form, "test")}
            assert shared == (set() if len(texts) >= 5 else {texts[-1]})
    assert not {*select_phrases("state", "city", "train")} & {*select_phrases("state", "city", "held-out")}


def test_a_line_that_contradicts_its_chat_is_named():
    lines = ("= 2024-09-02 10:15", "u: my Fiat died", "+ car: Lada")
    with pytest.raises(ValueError, match=r"a.txt:1: not said in this chunk: \['lada'\]"):
        ToldChat("a.txt:1", "ua", lines).task("told", Random(0))
