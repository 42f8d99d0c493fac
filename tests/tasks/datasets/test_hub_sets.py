"""Loaders of the sets that live on a hub or in git: LongMemEval, MemoryAgentBench, PersonaMem, and their names."""

import json

import pytest
from hub_layouts import LONGMEMEVAL, PERSONAMEM_MESSAGES, RETRIEVAL, context, ids, legal, personamem_question, write

from memalpha.agent.reader import PolicyReader
from memalpha.config import ReaderConfig
from memalpha.errors import DataError
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.qa.evaluate import run_systems
from memalpha.tasks.datasets import longmemeval, memoryagentbench, personamem
from memalpha.tasks.load import load_tasks


def test_longmemeval_sorts_sessions_and_marks_evidence_and_abstention(tmp_path):
    write(tmp_path / "longmemeval_oracle.json", LONGMEMEVAL)
    first, second = legal(longmemeval.load(tmp_path, "oracle"), tmp_path)
    assert ids(first) == [["chat_7_1"], ["chat_7@2_2"], ["answer_1_1", "answer_1_2"]]
    assert [chunk.timestamp for chunk in first.chunks] == ["2023-05-20T02:21", "2023-05-21T10:00", "2023-05-30T23:40"]
    (question,) = first.questions
    assert (question.answers, question.category) == (("3",), "multi-session")
    assert question.evidence == ("chat_7_1", "answer_1_1")
    known = {"metric": "judge", "date": "2023-06-01T09:00"}
    assert question.meta == {**known, "answer_session_ids": ["answer_1", "chat_7"]}
    (question,) = second.questions
    assert (question.answers, question.evidence) == ((), ())
    assert question.meta["refused"] == "You never mentioned a cat. You have a dog."
    assert longmemeval.load(tmp_path / "longmemeval_oracle.json", None, 1) == [first]


def test_a_limit_stops_reading(tmp_path):
    file = write(tmp_path / "cut.json", json.dumps(LONGMEMEVAL)[:-40])
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
    rows = [
        context("icl_nlu_8296shot_balance", examples, ["a new one", "another"], [["3"], ["4"]]),
        context("recsys_redial_full", "Dialogue 1: System: Hi", ["User: a film?", "User: more?"], [["7"], ["7", "9"]]),
    ]
    write(tmp_path / "Test_Time_Learning-00000-of-00001.parquet", rows)
    with pytest.raises(DataError, match="put that file beside Test_Time_Learning"):
        memoryagentbench.load(tmp_path, "Test_Time_Learning")
    write(tmp_path / "entity2id.json", films)
    labels, recommended = legal(memoryagentbench.load(tmp_path, "Test_Time_Learning"), tmp_path)
    assert len(labels.chunks) > 2
    lines = [chunk.text.splitlines() for chunk in labels.chunks]
    assert all(part[0].startswith("sentence") and part[-1].startswith("label:") for part in lines)
    assert sum(len(part) for part in lines) == 1800
    assert [q.answers for q in labels.questions] == [("3",), ("4",)]
    assert {q.meta["metric"] for q in labels.questions} == {"squad-exact"}
    assert [q.answers for q in recommended.questions] == [("The Matrix",), ("The Matrix", "Up")]
    assert recommended.questions[0].meta == {"metric": "recall@5", "ids": ["7"], "candidates": ["The Matrix", "Up"]}
    facts = "Here is a list of facts:\n" + "".join(f"{n}. Ann, born 1.2 km away, is {n}.\n" for n in range(900))
    fact_row = context("factconsolidation_sh_6k", facts, ["How old is Ann?"], [["899"]])
    write(tmp_path / "Conflict_Resolution-00000-of-00001.parquet", [fact_row])
    (conflict,) = legal(memoryagentbench.load(tmp_path, "Conflict_Resolution"), tmp_path)
    lines = [line for chunk in conflict.chunks for line in chunk.text.splitlines()]
    assert lines[1:] == [f"{n}. Ann, born 1.2 km away, is {n}." for n in range(900)]


def test_memoryagentbench_keeps_the_key_points_of_a_summary(tmp_path):
    points = ["He left", "She won"]
    book = context("infbench_sum_eng_shots2", "A book.", ["Summarise."], [["All of it."]], keypoints=points)
    write(tmp_path / "Long_Range_Understanding-00000-of-00001.parquet", [book])
    (task,) = memoryagentbench.load(tmp_path, "Long_Range_Understanding")
    assert task.questions[0].meta == {"metric": "keypoint-f1", "keypoints": points}


def test_personamem_asks_after_exactly_the_messages_before_the_end_index(tmp_path):
    questions = personamem_question("q1", 2), personamem_question("q2", 5, answer="(D)"), personamem_question("q3", 3)
    write(tmp_path / "questions_32k.csv", questions)
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


def test_personamem_v2_mixes_the_choices_and_finds_the_snippet(tmp_path):
    link = "data/chat_history_32k/chat_history_persona7.json"
    messages = [{"role": "system", "content": "All of me"}, *PERSONAMEM_MESSAGES[1:3]]
    write(tmp_path / link, {"metadata": {"persona_id": 7}, "chat_history": messages})
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
    other = {"user_query": "And now?", "related_conversation_snippet": "[{'role': 'user', 'content': 'No'}]"}
    write(tmp_path / "benchmark" / "text" / "benchmark.csv", [row, {**row, **other}])
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
