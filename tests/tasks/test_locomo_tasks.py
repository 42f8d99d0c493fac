"""The LoCoMo loader: a small conversation of our own in its format, faults included; the real file if it is there."""

import copy
import json
from pathlib import Path

import pytest

from memalpha.errors import DataError
from memalpha.tasks.locomo import load_locomo, mend_evidence

FIXTURE = Path(__file__).parents[1] / "data" / "locomo_like.json"
REAL = Path(__file__).parents[3] / "shared" / "data" / "locomo" / "locomo10.json"


def test_sessions_become_dated_chunks_in_order_of_their_number():
    (task,) = load_locomo(FIXTURE)
    assert task.id == "conv-a"
    assert task.meta == {"speakers": ["Mira", "Tom"]}
    assert [chunk.timestamp for chunk in task.chunks] == ["2024-05-08T13:56", "2024-06-01T00:30", "2024-07-03T09:05"]
    assert [turn.id for turn in task.chunks[1].turns] == ["D2:1", "D2:2"]
    assert task.chunks[2].render().splitlines()[2] == "Tom: Juniper. [a photo of a grey dog on a sofa]"


def test_questions_have_mended_evidence():
    (task,) = load_locomo(FIXTURE)
    assert [(q.id, q.category, q.answers, q.evidence) for q in task.questions] == [
        ("locomo_0_qa0", "single-hop", ("Riverside studio",), ("D1:1",)),
        ("locomo_0_qa1", "temporal", ("2 July 2024",), ("D10:1",)),
        ("locomo_0_qa2", "multi-hop", ("a vase, it cracked",), ("D1:1", "D2:2")),
        ("locomo_0_qa3", "single-hop", ("rye",), ("D1:4",)),
        ("locomo_0_qa4", "open-domain", ("yes; he owns one",), ()),
        ("locomo_0_qa5", "temporal", ("2024",), ("D2:1", "D1:2")),
    ]
    assert task.questions[3].meta == {"unknown_evidence": ["D9:9"]}


def test_adversarial_questions_are_apart():
    (task,) = load_locomo(FIXTURE, adversarial=True)
    (question,) = task.questions
    assert (question.id, question.category, question.answers) == ("locomo_0_qa6", "adversarial", ())
    assert question.meta == {"adversarial_answer": "Juniper"}


@pytest.mark.parametrize(
    ("strings", "wanted"),
    [
        (["D8:6; D9:17"], ["D8:6", "D9:17"]),
        (["D1:18", "D", "D1:20"], ["D1:18", "D1:20"]),
        (["D20:21", "D:11:26"], ["D20:21", "D11:26"]),
        (["D9:1 D4:4 D4:6"], ["D9:1", "D4:4", "D4:6"]),
        (["D30:05", "D30:5"], ["D30:5"]),
        ([], []),
    ],
)
def test_mend_evidence(strings, wanted):
    assert mend_evidence(strings) == wanted


def set_at(value, *path):
    def change(samples):
        node = samples
        for key in path[:-1]:
            node = node[key]
        if value is None:
            del node[path[-1]]
        else:
            node[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_at(None, 0, "conversation"), "conversation 0: field 'conversation' is missing"),
        (set_at([], 0, "conversation"), "conversation 0: field 'conversation' is missing or not dict"),
        (set_at(None, 0, "conversation", "session_2", 1, "text"), "session_2: field 'text' is missing"),
        (set_at(None, 0, "conversation", "session_2_date_time"), "field 'session_2_date_time' is missing"),
        (set_at("May 2023", 0, "conversation", "session_2_date_time"), "session_2_date_time: 'May 2023' is not like"),
        (set_at(9, 0, "qa", 1, "category"), r"qa\[1\]: 'category' is 9"),
        (set_at(None, 0, "qa", 1, "answer"), r"qa\[1\]: field 'answer' is missing"),
        (set_at("D1:1", 0, "qa", 1, "evidence"), r"qa\[1\]: field 'evidence' is missing or not list"),
    ],
)
def test_a_fault_is_named_with_file_place_and_field(tmp_path, change, message):
    samples = copy.deepcopy(json.loads(FIXTURE.read_text()))
    change(samples)
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(samples))
    with pytest.raises(DataError, match=message) as caught:
        load_locomo(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(("text", "message"), [("[]", "empty"), ("{}", "JSON list"), ("[1", "not a JSON file")])
def test_other_files_are_refused(tmp_path, text, message):
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(DataError, match=message):
        load_locomo(file)
    with pytest.raises(DataError, match="snap-research/LoCoMo"):
        load_locomo(tmp_path / "missing.json")


@pytest.mark.skipif(
    not REAL.exists(), reason="LoCoMo may not be shipped, and ../shared/data/locomo/locomo10.json is absent"
)
def test_the_real_file_has_its_known_counts():
    tasks = load_locomo(REAL)
    questions = [question for task in tasks for question in task.questions]
    turns = [turn for task in tasks for chunk in task.chunks for turn in chunk.turns]
    assert (len(tasks), sum(len(task.chunks) for task in tasks), len(turns)) == (10, 272, 5882)
    assert len(questions) == 1540
    assert sum(bool(question.evidence) for question in questions) == 1536
    assert sum(turn.text.endswith("]") for turn in turns) >= 1226
    hard = load_locomo(REAL, adversarial=True)
    assert sum(len(task.questions) for task in hard) == 446
    assert not any(question.answers for task in hard for question in task.questions)
    assert [task.id for task in load_locomo(REAL, 2)] == [task.id for task in tasks[:2]]
