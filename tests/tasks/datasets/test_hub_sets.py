"""Loaders of the sets that live on a hub or in git: LongMemEval, MemoryAgentBench, PersonaMem, and their names."""

import json
from pathlib import Path

import pytest
from hub_layouts import (
    FIRST,
    LONGMEMEVAL,
    MEETING,
    PERSONAMEM_MESSAGES,
    PROBES,
    RETRIEVAL,
    USER,
    changed,
    context,
    ids,
    legal,
    personamem_question,
    write,
)

from memalpha.agent.reader import PolicyReader
from memalpha.config import ReaderConfig
from memalpha.errors import DataError
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.protocol import run_systems
from memalpha.tasks.catalog import get_data_set
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
from memalpha.tasks.load import load_tasks


def test_longmemeval_sorts_sessions_and_marks_evidence_and_abstention(tmp_path):
    write(tmp_path / "longmemeval_oracle.json", LONGMEMEVAL)
    first, second = legal(longmemeval.load(tmp_path, "oracle"), tmp_path)
    assert ids(first) == [["chat_7_1"], ["chat_7@2_2"], ["answer_1_1", "answer_1_2"]]
    assert [chunk.timestamp for chunk in first.chunks] == ["2023-05-20T02:21", "2023-05-21T10:00", "2023-05-30T23:40"]
    (question,) = first.questions
    assert (question.answers, question.category) == (("3",), "multi-session")
    assert question.evidence == ("chat_7_1", "answer_1_1")
    assert question.meta == {
        "metric": "judge",
        "date": "2023-06-01T09:00",
        "answer_session_ids": ["answer_1", "chat_7"],
    }
    (question,) = second.questions
    assert (question.answers, question.evidence) == ((), ())
    assert question.meta["refused"] == "You never mentioned a cat. You have a dog."
    assert longmemeval.load(tmp_path / "longmemeval_oracle.json", None, 1) == [first]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(None, 1, "question_type"), r"instance 1 \(q2_abs\): field 'question_type' is missing"),
        (changed("May 2023", 0, "haystack_dates", 1), r"\(q1\): haystack_dates\[1\]: 'May 2023' is no date"),
        (changed(None, 0, "haystack_dates", 1), r"differ in length \(3, 2, 3\)"),
        (changed([], 0, "answer"), r"\(q1\): field 'answer': an answer is needed"),
        (changed({}, 0, "haystack_sessions", 2), "session chat_7@2: a list of objects is needed"),
        (changed(None, 0, "haystack_sessions", 0, 1, "role"), "session answer_1: turn 2: field 'role' is missing"),
        (changed([[], [], []], 0, "haystack_sessions"), r"\(q1\): holds no text"),
    ],
)
def test_a_bad_instance_is_named(tmp_path, change, message):
    file = write(tmp_path / "bad.json", change(LONGMEMEVAL))
    with pytest.raises(DataError, match=message) as caught:
        longmemeval.load(file)
    assert str(file) in str(caught.value)


def test_a_limit_stops_reading(tmp_path):
    file = tmp_path / "cut.json"
    file.write_text(json.dumps(LONGMEMEVAL)[:-40])
    assert [task.id for task in longmemeval.load(file, None, 1)] == ["q1"]
    with pytest.raises(DataError, match="item 1: not JSON, or cut off"):
        longmemeval.load(file)
    with pytest.raises(DataError, match=r"no file longmemeval_s_cleaned\.json in this folder"):
        longmemeval.load(tmp_path, "s")


def test_memoryagentbench_reads_contexts_of_all_kinds(tmp_path):
    write(tmp_path / "data" / "Accurate_Retrieval-00000-of-00001.parquet", RETRIEVAL)
    ruler, event, chat = legal(memoryagentbench.load(tmp_path), tmp_path)
    assert (ruler.id, len(ruler.chunks)) == ("ruler_qa1_197K_0", 3)
    assert all(chunk.text.endswith("1815.") for chunk in ruler.chunks)
    assert [q.answers for q in ruler.questions] == [("1815", "in 1815")]
    assert [(q.meta["metric"], q.answers, q.meta["qa_pair_id"]) for q in event.questions] == [
        ("eventqa", ("She left",), "a"),
        ("eventqa", ("He fell",), "b"),
    ]
    assert ids(chat) == [["s0_1", "s0_2"], ["s1_1"]]
    assert [chunk.timestamp for chunk in chat.chunks] == ["2022-11-17T12:04", "2022-11-18T09:00"]
    answered, unknown = chat.questions
    assert (answered.answers, answered.evidence, answered.category) == (("red",), ("s0_1",), "single-session-user")
    assert answered.meta == {"metric": "judge", "date": "2023-02-01T10:00"}
    assert (unknown.answers, unknown.evidence, unknown.category) == ((), (), "multi-session")
    assert unknown.meta["refused"] == "No plane was mentioned"
    assert [task.id for task in memoryagentbench.load(tmp_path, None, 1, source="event")] == ["eventqa_full_0"]


def test_memoryagentbench_never_parts_an_example_from_its_label_nor_a_fact(tmp_path):
    examples = "".join(f"sentence number {n}\nlabel: {n % 7}\n" for n in range(900))
    films = {"<http://dbpedia.org/resource/The_Matrix_(1999)>": 7, "<http://dbpedia.org/resource/Up_(film)>": 9}
    write(
        tmp_path / "Test_Time_Learning-00000-of-00001.parquet",
        [
            context("icl_nlu_8296shot_balance", examples, ["a new one", "another"], [["3"], ["4"]]),
            context(
                "recsys_redial_full", "Dialogue 1: System: Hi", ["User: a film?", "User: more?"], [["7"], ["7", "9"]]
            ),
        ],
    )
    with pytest.raises(DataError, match="put that file beside Test_Time_Learning"):
        memoryagentbench.load(tmp_path, "Test_Time_Learning")
    write(tmp_path / "entity2id.json", films)
    labels, recommended = legal(memoryagentbench.load(tmp_path, "Test_Time_Learning"), tmp_path)
    assert len(labels.chunks) > 2
    lines = [chunk.text.splitlines() for chunk in labels.chunks]
    assert all(part[0].startswith("sentence") and part[-1].startswith("label:") for part in lines)
    assert sum(len(part) for part in lines) == 1800
    assert [(q.answers, q.meta["metric"]) for q in labels.questions] == [(("3",), "exact"), (("4",), "exact")]
    assert [q.answers for q in recommended.questions] == [("The Matrix",), ("The Matrix", "Up")]
    assert recommended.questions[0].meta == {"metric": "recall@5", "ids": ["7"], "candidates": ["The Matrix", "Up"]}
    facts = "Here is a list of facts:\n" + "".join(f"{n}. Ann, born 1.2 km away, is {n}.\n" for n in range(900))
    write(
        tmp_path / "Conflict_Resolution-00000-of-00001.parquet",
        [context("factconsolidation_sh_6k", facts, ["How old is Ann?"], [["899"]])],
    )
    (conflict,) = legal(memoryagentbench.load(tmp_path, "Conflict_Resolution"), tmp_path)
    lines = [line for chunk in conflict.chunks for line in chunk.text.splitlines()]
    assert lines[1:] == [f"{n}. Ann, born 1.2 km away, is {n}." for n in range(900)]


def test_memoryagentbench_keeps_the_key_points_of_a_summary(tmp_path):
    book = context(
        "infbench_sum_eng_shots2", "A book.", ["Summarise."], [["All of it."]], keypoints=["He left", "She won"]
    )
    write(tmp_path / "Long_Range_Understanding-00000-of-00001.parquet", [book])
    (task,) = memoryagentbench.load(tmp_path, "Long_Range_Understanding")
    assert task.questions[0].meta == {"metric": "keypoint-f1", "keypoints": ["He left", "She won"]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (context("niah_1", "text", ["q"], [["a"]]), r"row 0 \(niah_1\): metadata.source is none of ruler_qa, "),
        (context("eventqa_full", "text", ["q", "r"], [["a"]]), "2 questions and 1 answers"),
        (context("eventqa_full", "text", ["q", "r"], [["a"], []]), r"answers\[1\]: an answer is needed"),
        (context("longmemeval_s*", "['2022', ", ["q"], [["a"]]), "context is no Python list of times and sessions"),
        (context("longmemeval_s*", "['soon', []]", ["q"], [["a"]]), "context: session 0: 'soon' is no date"),
        (context("ruler_qa1", " ", ["q"], [["a"]]), "holds no text"),
    ],
)
def test_a_bad_context_is_named(tmp_path, row, message):
    file = write(tmp_path / "rows.parquet", [row])
    with pytest.raises(DataError, match=message) as caught:
        memoryagentbench.load(file)
    assert f"{file}: row 0" in str(caught.value)


def test_personamem_asks_after_exactly_the_messages_before_the_end_index(tmp_path):
    write(
        tmp_path / "questions_32k.csv",
        [personamem_question("q1", 2), personamem_question("q2", 5, answer="(D)"), personamem_question("q3", 3)],
    )
    write(tmp_path / "shared_contexts_32k.jsonl", [{"other": PERSONAMEM_MESSAGES}, {"c1": PERSONAMEM_MESSAGES}])
    (task,) = legal(personamem.load_personamem(tmp_path), tmp_path)
    assert ids(task) == [["m0", "m1"], ["m2"], ["m3", "m4"]]
    assert [(q.id, q.asked_after_chunk, q.answers) for q in task.questions] == [
        ("q1", 0, ("(b) green",)),
        ("q2", 2, ("(d) none",)),
        ("q3", 1, ("(b) green",)),
    ]
    assert task.questions[0].meta == {
        "metric": "choice",
        "choices": {"a": "black", "b": "green", "c": "red", "d": "none"},
        "choice": "b",
        "topic": "food",
    }


class Listening(ScriptedPolicy):
    heard = ()

    def sample(self, requests):
        self.heard = (*self.heard, *(request.messages[-1]["content"] for request in requests))
        return super().sample(requests)


def test_a_reader_of_personamem_gets_the_choices_and_nothing_that_was_said_later(tmp_path):
    write(tmp_path / "questions_32k.csv", [personamem_question("q1", 2), personamem_question("q2", 5, answer="(d)")])
    write(tmp_path / "shared_contexts_32k.jsonl", [{"c1": PERSONAMEM_MESSAGES}])
    policy = Listening("fixed", text="(b)")
    reader = PolicyReader(policy, ReaderConfig(kind="policy"))
    (report,) = run_systems(["full"], load_tasks("personamem", data=tmp_path), reader, embedder="hash")
    assert [record.score for record in report.records] == [1.0, 0.0]
    early, late = (heard for heard in policy.heard if "I drink green tea" in heard)
    assert all("Question: Which tea?\n(a) black\n(b) green\n" in heard for heard in (early, late))
    assert "I hate green tea now" in late and "I hate" not in early


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (personamem_question("q1", 6), r"questions_32k\.csv:2: end_index_in_shared_context '6' is outside 1..5"),
        (personamem_question("q1", 2, answer="(e)"), r"correct_answer '\(e\)' is none of a, b, c, d"),
        (personamem_question("q1", 2, options=["(a) x", "(a) y"]), "all_options has a letter twice"),
        (personamem_question("q1", 2, shared="c9"), r"shared_context_id 'c9' is not in .*shared_contexts_32k\.jsonl"),
        ({**personamem_question("q1", 2), "all_options": "black or green"}, "all_options is no list of choices"),
    ],
)
def test_a_bad_question_of_personamem_is_named(tmp_path, row, message):
    write(tmp_path / "questions_32k.csv", [row])
    write(tmp_path / "shared_contexts_32k.jsonl", [{"c1": PERSONAMEM_MESSAGES}])
    with pytest.raises(DataError, match=message):
        personamem.load_personamem(tmp_path)


def test_personamem_v2_mixes_the_choices_and_finds_the_snippet(tmp_path):
    link = "data/chat_history_32k/chat_history_persona7.json"
    history = {
        "metadata": {"persona_id": 7},
        "chat_history": [{"role": "system", "content": "All of me"}, *PERSONAMEM_MESSAGES[1:3]],
    }
    write(tmp_path / link, history)
    row = {
        "persona_id": "7",
        "chat_history_32k_link": link,
        "user_query": "{'role': 'user', 'content': \"What's a good tea?\"}",
        "correct_answer": "Green",
        "incorrect_answers": json.dumps(["Black", "Red", "None"]),
        "related_conversation_snippet": repr(PERSONAMEM_MESSAGES[1:3]),
        "preference": "green tea",
        "pref_type": "stereotypical_pref",
        "updated": "False",
        "topic_query": "food",
    }
    rows = [
        row,
        {**row, "user_query": "And now?", "related_conversation_snippet": "[{'role': 'user', 'content': 'No'}]"},
    ]
    write(tmp_path / "benchmark" / "text" / "benchmark.csv", rows)
    (task,) = legal(personamem.load_personamem_v2(tmp_path, "32k"), tmp_path)
    assert task.id == "persona7_32k"
    assert ids(task) == [["m1", "m2"]]
    first, second = task.questions
    assert first.question == "What's a good tea?"
    assert sorted(first.meta["choices"].values()) == ["Black", "Green", "None", "Red"]
    assert first.answers == (f"({first.meta['choice']}) Green",)
    assert first.meta["choices"][first.meta["choice"]] == "Green"
    assert (first.evidence, second.evidence) == (("m1", "m2"), ())
    assert personamem.load_personamem_v2(tmp_path / "benchmark" / "text" / "benchmark.csv", "32k") == [task]
    write(tmp_path / "benchmark" / "text" / "benchmark.csv", [{**row, "incorrect_answers": "[]"}])
    with pytest.raises(DataError, match=r"benchmark\.csv:2: incorrect_answers is no list"):
        personamem.load_personamem_v2(tmp_path, "32k")
    (tmp_path / link).unlink()
    with pytest.raises(DataError, match="chat_history_32k_link: no file data/chat_history_32k/"):
        personamem.load_personamem_v2(tmp_path, "32k")


def test_every_set_is_there_by_name_and_variant(tmp_path):
    write(tmp_path / "longmemeval_m_cleaned.json", LONGMEMEVAL)
    write(tmp_path / "10M-00000-of-00002.parquet", rows := [
        {"conversation_id": "1", "chat": [FIRST], "probing_questions": repr(PROBES)},
    ])  # fmt: skip
    write(tmp_path / "10M-00001-of-00002.parquet", rows)
    write(tmp_path / "questions_1M.csv", [personamem_question("q1", 2)])
    write(tmp_path / "shared_contexts_1M.jsonl", [{"c1": PERSONAMEM_MESSAGES}])
    write(tmp_path / "HaluMem-Long.jsonl", [USER])
    write(tmp_path / "train.jsonl", [MEETING])
    for name, variant, questions in [
        ("longmemeval", "m", 1),
        ("beam_10m", None, 4),
        ("personamem", "1M", 1),
        ("halumem", "Long", 2),
        ("qmsum", "train", 1),
    ]:
        (task,) = load_tasks(name, 1, data=tmp_path, variant=variant)
        assert len(task.questions) == questions
    with pytest.raises(DataError, match=r"booksum: .*no option 'chunks'"):
        load_tasks("booksum", data=tmp_path, chunks=3)
    for module in (
        *(beam, halumem, longmemeval, memalpha_sets, memoryagentbench, perltqa, personamem, qmsum, single_turn),
    ):
        for dataset in module.DATA if isinstance(module.DATA, tuple) else (module.DATA,):
            assert get_data_set(dataset.name) is dataset
            assert all(dataset.files_for(variant) for variant in dataset.variants or (None,))


def test_the_files_of_a_variant_are_those_that_name_it():
    assert [file.path for file in beam.DATA[0].files_for("500K")] == ["data/500K-00000-of-00001.parquet"]
    assert [file.path for file in personamem.DATA[1].files_for(None)] == [
        "benchmark/text/benchmark.csv",
        "data/chat_history_32k/*.json",
    ]
    assert len(longmemeval.DATA.files_for("m")) == len(longmemeval.DATA.files_for(None)) == 1
    assert Path(longmemeval.DATA.files_for(None)[0].path).name == "longmemeval_s_cleaned.json"
