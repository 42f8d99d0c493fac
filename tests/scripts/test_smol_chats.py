"""Rows of natural chats: values stand in their chunks, equal options give equal chats, short forms share a wording."""

import re

import pytest
from smol.chats import chat_rows, chat_task, load_chats

from memalpha.agent.replies import parse_lines
from memalpha.store.search.lexical import words
from memalpha.store.values import contains


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_new_value_stands_in_its_chunk(split):
    kinds = set()
    for index in range(60):
        task = chat_task(0, index, split)
        assert task == chat_task(0, index, split)
        assert not re.search(r"[{}\0]", "".join(chunk.render() for chunk in task.chunks))
        for operation in task.gold_operations:
            kinds.add(operation.kind)
            value, said = operation.content.partition(": ")[2], task.chunks[operation.chunk].render()
            assert set(words(value)) <= set(words(f"{said} {operation.replaces}")), (operation, said)
        for question in task.questions:
            live = [entry for entry in final_entries(task) if entry.startswith(f"{question.meta['slot']}: ")]
            assert all(any(contains(entry, answer) for entry in live) for answer in question.answers)
            assert bool(question.answers) == bool(live)
    assert kinds == {"insert", "update", "delete"}


def final_entries(task):
    entries = []
    for operation in task.gold_operations:
        entries = [entry for entry in entries if entry != operation.replaces]
        entries += [operation.content] if operation.content else []
    return entries


def test_only_forms_of_few_wordings_share_one_between_the_splits():
    _, kinds, _ = load_chats()
    for kind in kinds:
        for form, texts in kind.wordings.items():
            train, test = kind.select(form, "train"), kind.select(form, "test")
            assert train and test and set(train) | set(test) == set(texts)
            assert set(train) & set(test) == (set() if len(texts) >= 5 else {texts[-1]})
            assert len(set(texts)) == len(texts)


def test_rows_hold_calls_that_can_be_read():
    rows = [row for index in range(30) for row in chat_rows(0, index)]
    writers = [row for row in rows if row.kind == "writer"]
    calls = [call for row in writers for call in parse_lines(row.completion)]
    assert all(call.error is None for call in calls)
    assert {"memory_insert", "memory_update", "memory_delete", "memory_skip"} == {call.name for call in calls}
    ids = [call.arguments["id"] for call in calls if "id" in call.arguments]
    assert ids and all(any(f"\n{id} " in row.prompt for row in writers) for id in ids)
    assert {row.kind for row in rows} == {"writer", "reader"}
