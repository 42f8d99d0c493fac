"""LoCoMo loader: a small conversation in its format, faults included, and the real file if present."""

import json
from pathlib import Path

import pytest
from hub_layouts import changed, write

from memalpha.errors import DataError
from memalpha.tasks.catalog import load_set
from memalpha.tasks.datasets.locomo import load, mend_evidence

FIXTURE = Path(__file__).parents[2] / "data" / "locomo_like.json"


def test_sessions_become_dated_chunks_in_order_and_questions_have_mended_evidence():
    (task,) = load(FIXTURE)
    assert task.id == "conv-a"
    assert task.meta["speakers"] == ["Mira", "Tom"]
    assert [chunk.timestamp for chunk in task.chunks] == ["2024-05-08T13:56", "2024-06-01T00:30", "2024-07-03T09:05"]
    assert [turn.id for turn in task.chunks[1].turns] == ["D2:1", "D2:2"]
    assert task.chunks[2].render().splitlines()[2] == "Tom: Juniper. [a photo of a grey dog on a sofa]"
    assert [(q.id, q.category, q.answers, q.evidence) for q in task.questions] == [
        ("locomo_0_qa0", "single-hop", ("Riverside studio",), ("D1:1",)),
        ("locomo_0_qa1", "temporal", ("2 July 2024",), ("D10:1",)),
        ("locomo_0_qa2", "multi-hop", ("a vase, it cracked",), ("D1:1", "D2:2")),
        ("locomo_0_qa3", "single-hop", ("rye",), ("D1:4",)),
        ("locomo_0_qa4", "open-domain", ("yes; he owns one",), ()),
        ("locomo_0_qa5", "temporal", ("2024",), ("D2:1", "D1:2")),
    ]
    assert task.questions[3].meta == {"metric": "locomo-f1", "benchmark": "locomo", "unknown_evidence": ["D9:9"]}


def test_conversations_of_ones_own_may_have_other_ids_and_no_evidence(tmp_path):
    sample = json.loads(FIXTURE.read_text())[0] | {"sample_id": None}
    turn, (first, second) = sample["conversation"]["session_1"][0], sample["qa"][:2]
    turn |= {"dia_id": "S1-1", "text": None, "blip_caption": "a cat"}
    sample["conversation"]["session_1_date_time"] = "2024-05-08T13:56:00"
    first["evidence"], second["evidence"] = ["S1-1", "S1-9", "D"], None
    (task,) = load(write(tmp_path / "mine.json", [sample]))
    assert (task.id, task.chunks[0].turns[0].text) == ("locomo-0", "[a cat]")
    assert task.chunks[0].timestamp == "2024-05-08T13:56:00"
    assert [question.evidence for question in task.questions[:2]] == [("S1-1",), ()]
    assert task.questions[0].meta["unknown_evidence"] == ["S1-9"]


def test_adversarial_questions_are_apart():
    (task,) = load(FIXTURE, "adversarial")
    (question,) = task.questions
    assert (question.id, question.category, question.answers) == ("locomo_0_qa6", "adversarial", ())
    assert question.meta == {"metric": "locomo-f1", "benchmark": "locomo", "adversarial_answer": "Juniper"}
    (every,) = load(FIXTURE, "all")
    assert [question.id for question in every.questions] == [f"locomo_0_qa{number}" for number in range(7)]
    assert [question.category for question in every.questions if not question.answers] == ["adversarial"]


@pytest.mark.parametrize(
    ("strings", "expected"),
    [
        (["D8:6; D9:17"], ["D8:6", "D9:17"]),
        (["D1:18", "D", "D1:20"], ["D1:18", "D1:20"]),
        (["D20:21", "D:11:26"], ["D20:21", "D11:26"]),
        (["D9:1 D4:4 D4:6"], ["D9:1", "D4:4", "D4:6"]),
        (["D30:05", "D30:5"], ["D30:5"]),
        ([], []),
    ],
)
def test_mend_evidence(strings, expected):
    assert mend_evidence(strings) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(None, 0, "conversation"), "conversation 0: field 'conversation' is missing"),
        (changed([], 0, "conversation"), "conversation 0: field 'conversation' is missing or not dict"),
        (changed(None, 0, "conversation", "session_2", 1, "text"), "session_2: field 'text' is missing"),
        (changed(None, 0, "conversation", "session_2_date_time"), "session_2_date_time: None is no date"),
        (changed("May 2023", 0, "conversation", "session_2_date_time"), "session_2_date_time: 'May 2023' is no date"),
        (changed(9, 0, "qa", 1, "category"), r"qa\[1\]: 'category' is 9"),
        (changed(None, 0, "qa", 1, "answer"), r"qa\[1\]: field 'answer' is missing"),
        (changed("D1:1", 0, "qa", 1, "evidence"), r"qa\[1\]: field 'evidence' is missing or not list"),
    ],
)
def test_a_fault_is_named_with_file_place_and_field(tmp_path, change, message):
    file = write(tmp_path / "bad.json", change(json.loads(FIXTURE.read_text())))
    with pytest.raises(DataError, match=message) as caught:
        load(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(("text", "message"), [("[]", "empty"), ("{}", "JSON list"), ("[1", "not a JSON file")])
def test_other_files_are_refused(tmp_path, text, message):
    file = write(tmp_path / "other.json", text)
    with pytest.raises(DataError, match=message):
        load(file)
    with pytest.raises(DataError, match="snap-research/LoCoMo"):
        load_set("locomo", data=tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("cited", "turns"),
    [("D2:1", ["D2:1"]), (["D2:1", "D2:2"], ["D2:1", "D2:2"]), ("D2:1, D2:02, D9:9", ["D2:1", "D2:2"])],
)
def test_observations_are_facts_with_their_turns(tmp_path, cited, turns):
    samples = json.loads(FIXTURE.read_text())
    samples[0]["observation"] = {
        "session_2_observation": {"Mira": [["Mira made a vase.", cited]], "Tom": [["Tom moved.", "D2:2"]]},
        "session_3_observation": {"Tom": [["of a session that is not there", "D3:1"]]},
    }
    (task,) = load(write(tmp_path / "locomo10.json", samples))
    assert task.meta["observations"] == [
        {"text": "Mira made a vase.", "speaker": "Mira", "turns": turns, "chunk": 1},
        {"text": "Tom moved.", "speaker": "Tom", "turns": ["D2:2"], "chunk": 1},
    ]
    samples[0]["observation"]["session_1_observation"] = {"Tom": ["Tom moved."]}
    write(tmp_path / "locomo10.json", samples)
    with pytest.raises(DataError, match=r"observation\.session_1_observation: 'Tom moved.' is not \[fact, turn id\]"):
        load(tmp_path)


def audit_entry(number: int, question: str, **change: object) -> dict[str, object]:
    entry = {"question_id": f"locomo_0_qa{number}", "question": question, "error_type": "WRONG_CITATION"}
    return {**entry, "correct_answer": "as it was", "correct_evidence": ["D1:2"], "reasoning": "", **change}


def test_the_audit_marks_mends_and_masks(tmp_path):
    entries = [
        audit_entry(0, "Where does Mira take her pottery course?"),
        audit_entry(5, "In which year did Tom move?", error_type="TEMPORAL_ERROR", correct_answer="2023, in fact"),
    ]
    file = write(tmp_path / "errors.json", entries)
    (plain,), (marked,) = load(FIXTURE), load(FIXTURE, audit=file)
    first, last = marked.questions[0], marked.questions[5]
    fault = {"type": "wrong-citation", "of": "evidence", "answer": "as it was", "evidence": ["D1:2"]}
    assert first.meta["fault"] == fault
    assert (last.meta["fault"]["type"], last.meta["fault"]["of"]) == ("temporal-error", "answer")
    assert [q.model_copy(update={"meta": {}}) for q in marked.questions] == [
        q.model_copy(update={"meta": {}}) for q in plain.questions
    ]
    (mended,) = load(FIXTURE, audit=tmp_path, faults="mend")
    assert (mended.questions[0].evidence, mended.questions[5].answers) == (("D1:2",), ("2024",))
    (masked,) = load(FIXTURE, audit=file, faults="drop")
    assert [question.id for question in masked.questions] == [f"locomo_0_qa{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("entries", "options", "says"),
    [
        ([audit_entry(0, "Where is Mira?")], {}, "locomo_0_qa0 asks 'Where is Mira"),
        ([audit_entry(0, "", correct_evidence="D1:1")], {}, r"\[0\]: field 'correct_evidence' is missing or not"),
        ([], {}, "a JSON list of faults"),
        (None, {"faults": "drop"}, "faults=drop needs audit=PATH"),
        (None, {"faults": "hide"}, "locomo: faults='hide': Input should be 'mark', 'mend' or 'drop'"),
    ],
)
def test_an_audit_of_other_data_is_refused(tmp_path, entries, options, says):
    file = write(tmp_path / "errors.json", entries)
    with pytest.raises(DataError, match=says):
        load_set("locomo", data=FIXTURE, audit=None if entries is None else file, **options)
