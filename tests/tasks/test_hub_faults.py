"""Corrupted files in the official layouts are read, or refused by name."""

import json
from pathlib import Path

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
    changed,
    context,
    friends,
    legal,
    personamem_question,
    row,
    scene,
    squad,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from official import JSON, replace_at, value_paths

from memalpha.errors import DataError
from memalpha.tasks.load import load_tasks

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
    return load_tasks("personamem_v2", data=folder)


def as_contexts(value, folder):
    write(folder / "questions_32k.csv", [personamem_question("q1", 2)])
    write(folder / "shared_contexts_32k.jsonl", [value])
    return load_tasks("personamem", data=folder)


def as_characters(value, folder):
    memory, people = value if isinstance(value, list) and len(value) == 2 else (value, value)
    write(folder / "perltmem_en_v2.json", memory)
    write(folder / "perltqa_en_v2.json", people)
    return load_tasks("perltqa", data=folder)


def as_probes(value, folder):
    row = {"conversation_id": "5", "chat": [FIRST], "probing_questions": repr(value)}
    return load_tasks("beam", data=write(folder / "x.parquet", [row]))


def as_row(value, folder):
    texts = {key: json.dumps(value[key]) if key in value else None for key in ROW} if isinstance(value, dict) else {}
    return load_tasks("memalpha", data=write(folder / "x.parquet", [{**row("squad", [], []), **texts}]))


def as_talk(value, folder):
    turns = context("longmemeval_s*", repr(value), ["q"], [["a"]])
    return load_tasks("memoryagentbench", data=write(folder / "x.parquet", [turns]))


LOCOMO = json.loads((Path(__file__).parents[1] / "data" / "locomo_like.json").read_text(encoding="utf-8"))
LOCOMO[0]["observation"] = {"session_2_observation": {"Mira": [["Mira made a vase.", ["D2:1"]]]}}
SENTENCES = {name: [["a b", "x"], ["c", "y"]] for name in ("train", "test", "oos_test")}


def of(name, variant):
    return lambda value, folder: load_tasks(name, data=write(folder / "x.json", value), variant=variant)


LOADERS = {
    "friendsqa": (friends(scene("s01_e01_c01"), scene("s01_e01_c02")), of("friendsqa", "dev")),
    "squad": (squad(), of("squad", None)),
    "clinc150": (SENTENCES, of("clinc150", "out-of-scope")),
    "locomo": (LOCOMO, of("locomo", "all")),
    "longmemeval": (LONGMEMEVAL, lambda value, folder: load_tasks("longmemeval", data=write(folder / "x.json", value))),
    "halumem": (USER, lambda value, folder: load_tasks("halumem", data=write(folder / "x.jsonl", [value]))),
    "qmsum": (MEETING, lambda value, folder: load_tasks("qmsum", data=write(folder / "x.jsonl", [value]))),
    "booksum": (CHAPTER, lambda value, folder: load_tasks("booksum", data=write(folder / "x.jsonl", [value]))),
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
        legal(tasks, folder)


def as_beam_row(row, folder):
    good = {"conversation_id": "5", "chat": [FIRST], "probing_questions": repr(PROBES)}
    return load_tasks("beam", data=write(folder / "x.parquet", [{**good, **row}]))


def as_memalpha_row(bad, folder):
    return load_tasks("memalpha", data=write(folder / "x.parquet", [{**row("squad", ["text"], []), **bad}]))


def as_question(question, folder):
    write(folder / "questions_32k.csv", [question])
    write(folder / "shared_contexts_32k.jsonl", [{"c1": PERSONAMEM_MESSAGES}])
    return load_tasks("personamem", data=folder)


ROWS = {
    "beam row": as_beam_row,
    "memalpha row": as_memalpha_row,
    "mab row": lambda row, folder: load_tasks("memoryagentbench", data=write(folder / "x.parquet", [row])),
    "personamem row": as_question,
}
SESSION, XIA = ("sessions", 0), (1, 0, "Xia")
REFUSED = [
    ("longmemeval", changed(None, 1, "question_type"), r"instance 1 \(q2_abs\): field 'question_type' is missing"),
    ("longmemeval", changed("May 2023", 0, "haystack_dates", 1), r"\(q1\): haystack_dates\[1\]: 'May 2023' is no date"),
    ("longmemeval", changed(None, 0, "haystack_dates", 1), r"differ in length \(3, 2, 3\)"),
    ("longmemeval", changed([], 0, "answer"), r"\(q1\): field 'answer': an answer is needed"),
    ("longmemeval", changed({}, 0, "haystack_sessions", 2), "session chat_7@2: a list of objects is needed"),
    ("longmemeval", changed(None, 0, "haystack_sessions", 0, 1, "role"), "session answer_1: turn 2: field 'role'"),
    ("longmemeval", changed([[], [], []], 0, "haystack_sessions"), r"\(q1\): holds no text"),
    ("halumem", changed("then", "sessions", 1, "start_time"), "x.jsonl:1: session 1: start_time: 'then' is no date"),
    ("halumem", changed(None, *SESSION, "questions", 0, "answer"), "session 0: question 0: field 'answer'"),
    ("halumem", changed(None, *SESSION, "memory_points", 1, "memory_source"), r"points\[1\]: field 'memory_source'"),
    ("halumem", changed(None, "uuid"), "x.jsonl:1: field 'uuid' is missing"),
    ("perltqa", changed("{'a'", 0, "Xia", "social_relationship"), "Xia: field 'social_relationship' is missing or not"),
    ("perltqa", changed(None, 0, "Xia", "events", "1_0", "content"), "Xia: events 1_0: field 'content' is missing"),
    ("perltqa", changed(None, *XIA, "profile", 0, "Answer"), "Xia: profile: question 0: field 'Answer': an answer"),
    ("perltqa", changed(7, *XIA, "events", 0, "1_0", 0, "Question"), "Xia: events: question 0: field 'Question'"),
    ("beam row", {"probing_questions": "{'abstention': ["}, "probing_questions is no Python or JSON object"),
    ("beam", changed([], "abstention", 0, "rubric"), r"abstention\[0\]: a rubric"),
    ("beam row", {"chat": []}, r"row 0 \(conversation 5\): holds no text"),
    ("memalpha row", {"chunks": "[1"}, r"row 0: chunks: not JSON"),
    ("memalpha row", {"chunks": "[3]"}, r"row 0: chunks\[0\]: a text is needed"),
    ("memalpha row", {"questions_and_answers": "{}"}, "row 0: questions_and_answers: a JSON list is needed"),
    ("memalpha row", {"questions_and_answers": '[{"question": "q"}]'}, r"answers\[0\]: field 'answer': an answer"),
    ("mab row", context("niah_1", "text", ["q"], [["a"]]), r"row 0 \(niah_1\): metadata.source is none of ruler_qa, "),
    ("mab row", context("eventqa_full", "text", ["q", "r"], [["a"]]), "2 questions and 1 answers"),
    ("mab row", context("eventqa_full", "text", ["q", "r"], [["a"], []]), r"answers\[1\]: an answer is needed"),
    ("mab row", context("longmemeval_s*", "['2022', ", ["q"], [["a"]]), "no Python list of times and sessions"),
    ("mab row", context("longmemeval_s*", "['soon', []]", ["q"], [["a"]]), "context: session 0: 'soon' is no date"),
    ("mab row", context("ruler_qa1", " ", ["q"], [["a"]]), "holds no text"),
    ("personamem row", personamem_question("q1", 6), r"32k\.csv:2: end_index_in_shared_context '6' is outside 1..5"),
    ("personamem row", personamem_question("q1", 2, answer="(e)"), r"correct_answer '\(e\)' is none of a, b, c, d"),
    ("personamem row", personamem_question("q1", 2, options=["(a) x", "(a) y"]), "all_options has a letter twice"),
    ("personamem row", personamem_question("q1", 2, shared="c9"), r"shared_context_id 'c9' is not in .*contexts_32k"),
    ("personamem row", {**personamem_question("q1", 2), "all_options": "black or green"}, "all_options is no list"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_a_fault_is_named(tmp_path, name, value, message):
    good, load = LOADERS.get(name) or (None, ROWS[name])
    with pytest.raises(DataError, match=message) as caught:
        load(value(good) if good else value, tmp_path)
    assert str(tmp_path) in str(caught.value)
