"""Corrupted files in the official layouts of hub sets are read, or refused by name."""

import json

import pytest
from hub_layouts import (
    FIRST,
    LONGMEMEVAL,
    MEETING,
    MEMORY,
    PERSON,
    PERSONAMEM_MESSAGES,
    PROBES,
    TALK,
    USER,
    context,
    legal,
    personamem_question,
    row,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from official import JSON, replace_at, value_paths

from memalpha.errors import DataError
from memalpha.tasks.datasets import (
    beam,
    halumem,
    longmemeval,
    memalpha_sets,
    memoryagentbench,
    perltqa,
    personamem,
    qmsum,
    single_turn,
)

CHAPTER = {"text": "It rained. " * 4000, "summary": [{"source": "a", "text": "Rain."}], "book_title": "Emma"}


ROW = {
    "chunks": ["[Dialogue between User and Assistant on 2024-01-02 00:00]\n<User>Hi"],
    "questions_and_answers": [{"question": "a?", "answer": ["x"], "evidence_idx": 1}],
    "metadata": {"sub_source": "icl_nlu"},
}


def as_history(value, folder):
    write(folder / "data/h.json", value)
    query = {"persona_id": "1", "user_query": "?", "correct_answer": "a", "incorrect_answers": "['b']"}
    write(folder / "benchmark.csv", [{**query, "chat_history_32k_link": "data/h.json"}])
    return personamem.load_personamem_v2(folder)


def as_contexts(value, folder):
    write(folder / "questions_32k.csv", [personamem_question("q1", 2)])
    write(folder / "shared_contexts_32k.jsonl", [value])
    return personamem.load_personamem(folder)


def as_characters(value, folder):
    memory, people = value if isinstance(value, list) and len(value) == 2 else (value, value)
    write(folder / "perltmem_en_v2.json", memory)
    write(folder / "perltqa_en_v2.json", people)
    return perltqa.load(folder)


def as_probes(value, folder):
    row = {"conversation_id": "5", "chat": [FIRST], "probing_questions": repr(value)}
    return beam.load_beam(write(folder / "x.parquet", [row]))


def as_row(value, folder):
    texts = {key: json.dumps(value[key]) if key in value else None for key in ROW} if isinstance(value, dict) else {}
    return memalpha_sets.load_memalpha(write(folder / "x.parquet", [{**row("squad", [], []), **texts}]))


def as_talk(value, folder):
    turns = context("longmemeval_s*", repr(value), ["q"], [["a"]])
    return memoryagentbench.load(write(folder / "x.parquet", [turns]))


LOADERS = {
    "longmemeval": (LONGMEMEVAL, lambda value, folder: longmemeval.load(write(folder / "x.json", value))),
    "halumem": (USER, lambda value, folder: halumem.load(write(folder / "x.jsonl", [value]))),
    "qmsum": (MEETING, lambda value, folder: qmsum.load(write(folder / "x.jsonl", [value]))),
    "booksum": (CHAPTER, lambda value, folder: single_turn.load_booksum(write(folder / "x.jsonl", [value]))),
    "perltqa": ([MEMORY, [{"Xia": PERSON}]], as_characters),
    "personamem": ({"c1": PERSONAMEM_MESSAGES}, as_contexts),
    "personamem_v2": ({"chat_history": PERSONAMEM_MESSAGES}, as_history),
    "beam": (PROBES, as_probes),
    "memalpha": (ROW, as_row),
    "memoryagentbench": (TALK, as_talk),
}


@pytest.mark.parametrize("name", LOADERS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_corrupted_files_are_read_or_refused(tmp_path_factory, name, data):
    good, load = LOADERS[name]
    path = data.draw(st.sampled_from(list(value_paths(good))))
    try:
        tasks = load(replace_at(good, path, data.draw(JSON)), folder := tmp_path_factory.mktemp("x"))
    except DataError as error:
        assert str(error)
    else:
        if tasks:
            legal(tasks, folder)
