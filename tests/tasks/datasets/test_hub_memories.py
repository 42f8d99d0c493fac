"""Loaders of the sets that live on a hub or in git: PerLTQA, BEAM, HaluMem, QMSum, BookSum, Mem-alpha's."""

import json

import pytest
from hub_layouts import FIRST, MEETING, MEMORY, PERSON, PROBES, THEN, USER, changed, ids, legal, row, write

from memalpha.errors import DataError
from memalpha.tasks.datasets import beam, halumem, memalpha_sets, perltqa, single_turn, transcripts
from memalpha.tasks.overlap import find_overlap


def test_perltqa_orders_memories_by_time_and_points_at_them(tmp_path):
    write(tmp_path / "Dataset" / "en_v2" / "perltmem_en_v2.json", MEMORY)
    write(tmp_path / "Dataset" / "en_v2" / "perltqa_en_v2.json", [{"Nobody": PERSON}, {"Xia": PERSON}])
    (task,) = legal(perltqa.load(tmp_path), tmp_path)
    assert ids(task) == [
        ["profile:Protagonist", "profile:Age", "profile_description"],
        ["social:1_1_0"],
        ["event:1_2"],
        ["event:1_3"],
        ["dialogue:1_0_0#0:0", "dialogue:1_0_0#0:1"],
        ["event:1_0"],
        ["event:1_1"],
        ["dialogue:1_1_0#0:0", "dialogue:1_1_0#0:1"],
    ]
    assert [chunk.timestamp for chunk in task.chunks] == [
        None, None, None, None, "2021-03-03T10:00", "2021-03-04", None, "2021-03-05T10:00",
    ]  # fmt: skip
    assert task.chunks[2].render() == "event: October 1990: Xia was born."
    assert task.chunks[6].render() == "event: one spring: Xia moved."
    assert task.chunks[7].render() == "Xia: Sold: at last\n: no speaker"
    assert [(q.id, q.category, q.answers, q.evidence) for q in task.questions] == [
        ("profile0", "profile", ("31",), ("profile:Age",)),
        ("social0", "social_relationship", ("Wei",), ("social:1_1_0",)),
        ("event0", "events", ("A sale",), ("event:1_0",)),
        ("dialogue0", "dialogues", ("Sold",), ("dialogue:1_1_0#0:0", "dialogue:1_1_0#0:1")),
    ]
    assert task.questions[0].meta["anchors"] == ["31"]
    assert task.questions[2].meta["unknown_evidence"] == ["9_9"]


def test_beam_dates_batches_and_takes_evidence_in_every_shape(tmp_path):
    row = {"conversation_id": "5", "chat": [FIRST, THEN], "probing_questions": repr(PROBES), "narratives": "unread"}
    write(tmp_path / "data" / "100K-00000-of-00001.parquet", [row])
    (task,) = legal(beam.load_beam(tmp_path, "100K"), tmp_path)
    assert task.id == "beam-100K-5"
    assert ids(task) == [["m0", "m1"], ["m2", "m3", "m4"]]
    assert [chunk.timestamp for chunk in task.chunks] == ["2024-03-15", "2024-04-02"]
    abstention, update, order, preference = task.questions
    assert (abstention.answers, abstention.meta["refused"]) == ((), "There is no information.")
    assert (update.answers, update.evidence) == (("250ms",), ("m0", "m2"))
    assert (order.evidence, order.meta["unknown_evidence"]) == (("m2", "m3"), ["m9"])
    assert order.meta["rubric"] == ["b", "a"]
    assert preference.answers == ("small ones",)
    assert {question.meta["metric"] for question in task.questions} == {"rubric"}


def test_the_plans_of_beam_10m_are_one_conversation(tmp_path):
    chat = [
        {"plan-1": [{"batch_number": 1, "turns": [FIRST]}], "plan-2": None},
        {"plan-1": None, "plan-2": [{"batch_number": 1, "turns": [FIRST, THEN]}]},
    ]
    row = {"conversation_id": "1", "chat": chat, "probing_questions": json.dumps(PROBES)}
    write(tmp_path / "10M-00000-of-00002.parquet", [row])
    write(tmp_path / "10M-00001-of-00002.parquet", [{**row, "conversation_id": "2"}])
    task, two = legal(beam.load_beam_10m(tmp_path), tmp_path)
    assert (task.id, two.id) == ("beam-10M-1", "beam-10M-2")
    assert ids(task) == [["m0", "m1"], ["m2", "m3", "m4", "m5", "m6"]]
    assert beam.load_beam_10m(tmp_path, None, 1) == [task]


def test_halumem_points_are_gold_operations_and_questions_come_after_their_session(tmp_path):
    write(tmp_path / "HaluMem-Medium.jsonl", [USER])
    (task,) = legal(halumem.load(tmp_path), tmp_path)
    assert [chunk.timestamp for chunk in task.chunks] == ["2025-09-04T21:11:23", "2025-09-09T08:00", "2025-10-01T08:00"]
    assert [(o.kind, o.chunk, o.category, o.content, o.replaces) for o in task.gold_operations] == [
        ("insert", 0, "semantic", "Ann lives in Rome", None),
        ("update", 2, "semantic", "Ann lives in Oslo", "Ann lives in Rome"),
        ("insert", 2, "episodic", "Ann met Bo", None),
    ]
    assert task.gold_operations[0].timestamp == "2025-09-04T21:11:23"
    assert task.meta == {"interference": [[0, "Ann owns a boat"]]}
    fact, boundary = task.questions
    assert (fact.answers, fact.asked_after_chunk, fact.category) == (("Rome",), 0, "Basic Fact Recall")
    known = {"metric": "judge", "benchmark": "halumem", "difficulty": "easy"}
    assert fact.meta == {**known, "memories": ["Ann lives in Rome"]}
    assert (boundary.answers, boundary.meta["refused"]) == ((), "It was not provided.")


def test_an_update_across_kinds_is_a_deletion_and_an_insert(tmp_path):
    user = changed("Event Memory", "sessions", 2, "memory_points", 0, "memory_type")(USER)
    user["sessions"][2]["memory_points"][1:] = []
    (task,) = legal(halumem.load(write(tmp_path / "x.jsonl", [user])), tmp_path)
    assert [(o.kind, o.category, o.replaces) for o in task.gold_operations[1:]] == [
        ("delete", "semantic", "Ann lives in Rome"),
        ("insert", "episodic", None),
    ]


def test_qmsum_spans_are_evidence_with_both_ends(tmp_path):
    write(tmp_path / "data" / "ALL" / "jsonl" / "test.jsonl", [MEETING, MEETING])
    first, second = legal(transcripts.load_qmsum(tmp_path), tmp_path)
    assert (first.id, second.id) == ("qmsum-test-0", "qmsum-test-1")
    assert [(q.id, q.category, q.answers, q.evidence) for q in first.questions] == [
        ("specific0", "specific", ("Green won.",), ("t1", "t2", "t3"))
    ]
    assert first.chunks[0].render() == "P0: Word 0 .\nP1: Word 1 .\nP2: Word 2 .\nP3: Word 3 ."
    assert [task.questions for task in transcripts.load_qmsum(tmp_path, queries=False)] == [(), ()]
    bad = changed(["1"], "specific_query_list", 0, "relevant_text_span", 0)(MEETING)
    message = r"val\.jsonl:1: specific_query_list\[0\]: relevant_text_span: \['1'\] is no pair"
    with pytest.raises(DataError, match=message):
        transcripts.load_qmsum(write(tmp_path / "val.jsonl", [bad]), "val")


def test_qmsum_reads_the_official_folders_of_meetings(tmp_path):
    other = changed("What of coffee?", "specific_query_list", 0, "query")(MEETING)
    for file, meeting in (("train/Bed002.json", MEETING), ("train/Bed001.json", other), ("val/Bed003.json", MEETING)):
        write(tmp_path / "data" / "ALL" / file, meeting)
    (tmp_path / "data" / "ALL" / "test").mkdir()
    train = transcripts.load_qmsum(tmp_path, "train")
    assert [task.id for task in train] == ["qmsum-Bed001", "qmsum-Bed002"]
    assert [task.questions[0].question for task in train] == ["What of coffee?", "What of tea?"]
    assert transcripts.load_qmsum(tmp_path / "data" / "ALL", "train", 1) == train[:1]
    assert transcripts.load_qmsum(tmp_path / "data" / "ALL" / "train") == train
    (validation,) = transcripts.load_qmsum(tmp_path, "val")
    assert transcripts.load_qmsum(tmp_path / "data" / "ALL" / "val" / "Bed003.json") == [validation]
    result = find_overlap(train, [validation], n=4)
    assert (result.leaked, result.reasons["question"]) == (("qmsum-Bed003/specific0",), 1)
    with pytest.raises(DataError, match=r"no file data/ALL/jsonl/test\.jsonl in this folder"):
        transcripts.load_qmsum(tmp_path, "test")


def test_booksum_reads_a_chapter_over_days(tmp_path):
    def chapter(chunks, summary):
        text = "It rained all day. " * (430 * chunks)
        return {"book_title": "Emma", "chapter_id": "3", "text": text, "summary": summary}

    rows = [
        chapter(5, [{"source": "a", "text": "It rains."}, {"source": "b", "text": ["Rain", "falls."]}]),
        chapter(1, [{"source": "a", "text": "Short."}]),
        chapter(5, []),
    ]
    write(tmp_path / "chapters" / "test.jsonl", rows)
    (task,) = legal(single_turn.load_booksum(tmp_path), tmp_path)
    assert [chunk.timestamp for chunk in task.chunks] == [f"2024-01-0{day}" for day in range(1, 6)]
    (question,) = task.questions
    assert question.question == "Summarize what I read in the book from 2024-01-01 to 2024-01-05."
    assert question.answers == ("It rains.", "Rain\nfalls.")
    assert task.meta == {"book_title": "Emma", "chapter_id": "3"}
    assert [len(task.chunks) for task in single_turn.load_booksum(tmp_path, None, None, min_chunks=1)] == [5, 1]
    with pytest.raises(DataError, match=r"test\.jsonl:1: field 'summary' is missing"):
        single_turn.load_booksum(write(tmp_path / "test.jsonl", [{"text": "word " * 9000}]))


def test_memalpha_rows_keep_their_chunks_and_the_metric_of_their_source(tmp_path):
    dialogue = "[Dialogue between User and Assistant on 2024-01-02 00:00]\n<User>Read this"
    event = "[Event happened on 2024-01-05 The user is reading a book]\n<User> It was"
    session = "[Dialogue at timestamp 2023/05/20 (Sat) 02:21]\n<User>Hi [on 2024-01-01]"
    asked = {"question": "a?", "answer": ["x", "y"], "evidence_idx": 1}
    labelled = [{"question": "s", "answers": ["3"]}]
    rows = [
        row("squad", [dialogue, "no header on 2024-01-09"], [asked]),
        row("booksum", [event], [{"question": "Summarize", "answer": "Emma, rain"}]),
        row("perltqa", [event], [{"question": "Who?", "answer": "Wei; Bo"}]),
        row("lme_train", [session], [{"question": "When?", "answer": "May"}]),
        row("accurate_retrieval", [event], labelled, sub_source="icl_banking77_59shot"),
    ]
    write(tmp_path / "test.parquet", rows)
    tasks = legal(memalpha_sets.load_memalpha(tmp_path), tmp_path)
    assert [task.id for task in tasks] == ["squad_0", "booksum_0", "perltqa_0", "lme_train_0", "icl_banking77_59shot_0"]
    assert [task.questions[0].meta["metric"] for task in tasks] == ["substring", "keywords", "parts", "judge", "label"]
    assert [chunk.timestamp for chunk in tasks[0].chunks] == ["2024-01-02T00:00", None]
    assert [task.chunks[0].timestamp for task in tasks[1:4]] == ["2024-01-05", "2024-01-05", "2023-05-20T02:21"]
    assert tasks[0].questions[0].answers == ("x", "y")
    assert tasks[0].questions[0].meta["evidence_chunks"] == [1]
    assert [q.answers for q in tasks[2].questions] == [("Wei; Bo",)]
    assert [task.id for task in memalpha_sets.load_memalpha_mab(tmp_path, "test", source="icl")] == [tasks[4].id]


def test_a_table_of_memalpha_without_a_column_is_named(tmp_path):
    table = write(tmp_path / "y.parquet", [{"chunks": "[]"}])
    with pytest.raises(DataError, match="no column 'instance_id'; it has chunks"):
        memalpha_sets.load_memalpha(table)
