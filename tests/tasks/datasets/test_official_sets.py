"""Loaders of official files: small files in the official layouts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from datasets import Dataset
from hub_layouts import friends, scene, squad, write
from hypothesis import given
from hypothesis import strategies as st
from official import turns

from memalpha.errors import DataError
from memalpha.tasks.catalog import MODULES, list_data_sets, load_set
from memalpha.tasks.formats.files import pack_turns
from memalpha.tasks.load import load_tasks
from memalpha.types import SpeakerTurn


def test_every_set_has_a_loader_and_a_description():
    assert [datasets.name for datasets in list_data_sets()] == list(MODULES)
    for datasets in list_data_sets():
        assert datasets.about and datasets.licence and datasets.counts and datasets.metric
        assert datasets.source.startswith(("github:", "hub:", "made here")), datasets.source
        assert set(datasets.expected) <= set(datasets.variants or ("",))


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("xquad", {}, r"get xquad\.en\.json.* from the GitHub repository google-deepmind/xquad .* data=PATH"),
        ("xquad", {"data": "nowhere"}, "nowhere: not there; get xquad"),
        ("xquad", {"variant": "tlh", "data": "x"}, "no variant 'tlh'; its variants are en, ar"),
        ("trec", {"examples": 0}, "examples=0: Input should be greater than or equal to 1"),
        ("trec", {"split": "dev"}, "split='dev': Input should be 'test' or 'train'"),
        ("trec", {"split": "train"}, "questions=100 leaves no training sentence as an example: ask fewer"),
        ("trec", {"examples": "many"}, "examples='many': Input should be a valid integer"),
        ("trec", {"questions": 0}, "questions=0: Input should be greater than or equal to 1"),
        ("squad", {"paragraphs": 0}, "paragraphs=0: Input should be greater than or equal to 1"),
        ("trec", {"colour": 1}, "no option 'colour'; its options are: examples, questions, split, seed"),
    ],
)
def test_unknown_names_variants_and_options_are_refused(tmp_path, name, options, says):
    write(tmp_path / "train.txt", "A:b Who ?\n")
    write(tmp_path / "test.txt", "A:b Who ?\n")
    write(tmp_path / "dev-v1.1.json", squad())
    arguments = options if name == "xquad" else {"data": tmp_path, **options}
    with pytest.raises(DataError, match=says):
        load_set(name, **arguments)


@given(st.lists(st.text(alphabet="ab ", min_size=1, max_size=40), min_size=1, max_size=30), st.integers(1, 20))
def test_packing_keeps_turns_in_order_within_the_chunk_limit(texts, tokens):
    speaker_turns = [SpeakerTurn(speaker="s", text=text, id=str(number)) for number, text in enumerate(texts)]
    chunks = pack_turns(speaker_turns, tokens)
    assert [turn for chunk in chunks for turn in chunk.turns] == speaker_turns
    for chunk, after in zip(chunks, [*chunks[1:], None], strict=True):
        assert len(chunk.turns) == 1 or len(chunk.render()) <= 4 * tokens
        if after is not None:  # the next turn did not fit
            assert len(chunk.render()) + len(after.turns[0].text) + 6 > 4 * tokens


SEVENTH = {"answer_text": "x", "utterance_id": 7}


def test_an_episode_is_a_task_and_its_scenes_are_the_chunks(tmp_path):
    write(tmp_path / "dat" / "friendsqa_dev.json", friends(scene("s09_e01_c10"), scene("s09_e01_c2")))
    write(tmp_path / "dat" / "friendsqa_tst.json", friends(scene("s09_e02_c01")))
    first, second = load_set("friendsqa", data=tmp_path)
    assert (first.id, second.id) == ("friendsqa-s09_e01", "friendsqa-s09_e02")
    assert [chunk.turns[1].id for chunk in first.chunks] == ["s09_e01_c2:1", "s09_e01_c10:1"]
    assert first.chunks[0].render().splitlines()[1] == "Mira, Tom: The key is under the mat ."
    question = first.questions[0]
    assert question.answers == ("under the mat", "Under the mat")
    assert question.category == "where"
    assert question.meta == {"metric": "squad-f1", "evidence": "any", "paraphrased": True}
    assert question.evidence == ("s09_e01_c2:1", "s09_e01_c2:2")
    assert [task.id for task in load_set("friendsqa", data=tmp_path, variant="test")] == ["friendsqa-s09_e02"]
    assert load_set("friendsqa", data=tmp_path / "dat" / "friendsqa_tst.json") == [second]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (friends(scene("s01_e01_c01", answers=[])), r"data\[0\] \(s01_e01_c01\): question .*answers.*empty"),
        (friends(scene("s1", answers=[SEVENTH])), "from s1:7, an utterance that the scene"),
        (json.dumps(friends(scene("s1"))).replace('"Tom"', "null"), r"\(s1\): speakers: a list of texts is needed"),
        (friends({"title": "s01_e01_c01"}), "field 'paragraphs' is missing"),
        (friends(), "data: a JSON list of scenes is needed"),
        ("[", "not a JSON file"),
    ],
)
def test_a_bad_scene_is_refused(tmp_path, value, says):
    file = write(tmp_path / "friendsqa_dev.json", value)
    with pytest.raises(DataError, match=says) as caught:
        load_set("friendsqa", data=file)
    assert str(file) in str(caught.value)


def test_squad_as_rows_of_the_hub(tmp_path):
    rows = [
        {"id": id, "title": "Old_Town", "context": context, "question": "Who?", "answers": {"text": texts}}
        for id, context, texts in (
            ("a", "Ana came.", ["Ana"]),
            ("b", "Leo left.", []),
            ("c", "Ana came.", ["Ana", "Ana"]),
        )
    ]
    lines = tmp_path / "squad.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    table = tmp_path / "squad.parquet"
    Dataset.from_list(rows).to_parquet(table)
    (task,) = load_tasks("squad", data=lines)
    assert [task] == load_tasks("squad", data=table)
    assert [(turn.speaker, turn.text) for turn in task.chunks[0].turns] == [
        ("Old Town", "Ana came."),
        ("Old Town", "Leo left."),
    ]
    assert [(question.id, question.answers, question.category) for question in task.questions] == [
        ("a", ("Ana",), "extraction"),
        ("c", ("Ana",), "extraction"),
        ("b", (), "unanswerable"),
    ]
    Dataset.from_list([{name: row[name] for name in row if name != "title"} for row in rows]).to_parquet(table)
    assert {turn.speaker for turn in load_tasks("squad", data=table)[0].chunks[0].turns} == {"text"}
    lines.write_text("", encoding="utf-8")
    with pytest.raises(DataError, match=r"squad\.jsonl: no row"):
        load_tasks("squad", data=lines)
    for change, says in (
        ({"answers": ["Ana"]}, r"answers\[0\]: field 'text'"),
        ({"answers": None}, "field 'answers'"),
        ({"question": None}, "field 'question'"),
        ({"is_impossible": True}, "is_impossible is True, but there are 1 answers"),
        ({"context": ["Ana came."]}, r"context\[0\]: field 'speaker'"),
        ({"context": []}, "context: a JSON list of turns is needed"),
    ):
        lines.write_text(json.dumps({**rows[0], **change}) + "\n", encoding="utf-8")
        with pytest.raises(DataError, match=rf"squad\.jsonl:1: question a: {says}"):
            load_tasks("squad", data=lines)


def test_squad_as_rows_about_a_dialogue(tmp_path):
    said = [("tom", "which port ?"), ("ana", "8080 , tom"), ("tom", "thanks")]
    context = [{"speaker": speaker, "text": text} for speaker, text in said]
    asked = (("8080", [{"text": "8080"}]), ("ana", {"text": ["ana"]}), ("none", []), ("null", {"text": []}))
    rows = [{"id": id, "context": context, "question": "What?", "answers": answers} for id, answers in asked]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (task,) = load_tasks("squad", data=tmp_path / "rows.jsonl")
    assert [(turn.speaker, turn.text) for turn in turns(task).values()] == said
    by_id = {question.id: question for question in task.questions}
    assert [by_id[id].evidence for id, _ in asked] == [("0:1",), ("0:1",), (), ()]
    assert [by_id[id].category for id, _ in asked] == ["extraction", "extraction", "unanswerable", "unanswerable"]


def test_squad_is_a_stream_of_paragraphs(tmp_path):
    write(tmp_path / "xquad.de.json", squad())
    first, second = load_set("xquad", data=tmp_path, variant="de", paragraphs=2)
    assert first.chunks[0].render() == "Old Town: Town has 0 gates.\nOld Town: Town has 1 gates."
    question = first.questions[1]
    assert (question.id, question.question) == ("q1", "How many gates?")
    assert (question.answers, question.evidence) == (("1",), ("0:1",))
    assert [turn.text for turn in turns(second).values()] == ["Town has 2 gates."]
    write(tmp_path / "xquad.de.json", json.dumps(squad(1, id=7)).replace('"Old_Town"', "null"))  # as other tools write
    (task,) = load_set("xquad", data=tmp_path, variant="de")
    assert (task.chunks[0].render(), task.questions[0].id) == ("text: Town has 0 gates.", "7")


def test_an_impossible_question_is_one_to_abstain_from(tmp_path):
    for answers in ([], None):
        write(tmp_path / "dev-v2.0.json", squad(1, is_impossible=True, answers=answers))
        ((question,),) = [task.questions for task in load_set("squad", data=tmp_path, variant="dev-v2.0")]
        assert (question.answers, question.evidence, question.category) == ((), (), "unanswerable")
    for change in ({"is_impossible": True}, {"answers": []}, {"is_impossible": "false"}):
        write(tmp_path / "dev-v2.0.json", squad(1, **change))
        with pytest.raises(DataError, match=r"data\[0\]\.paragraphs\[0\]: question q0: .*(answer|'is_imp.* not bool)"):
            load_set("squad", data=tmp_path, variant="dev-v2.0")


def test_a_named_set_gives_only_tasks_that_a_task_file_holds(tmp_path):
    for old, new, says in (
        ("Town has", "\\ud83d", r"chunks\[0\]\.turns: holds a NUL character or half of a surrogate pair"),
        ('"text": "0"', '"text": ""', r"questions\[0\]\.answers\[0\]: empty"),
    ):
        write(tmp_path / "dev-v1.1.json", json.dumps(squad(1)).replace(old, new))
        with pytest.raises(DataError, match=rf"squad: task 'squad-0': {says}"):
            load_tasks("squad", data=tmp_path)


def test_the_readme_has_every_set_as_the_catalogue_does():
    readme = (Path(__file__).parents[3] / "data" / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", readme, re.MULTILINE))
    for dataset in list_data_sets():
        availability = dataset.source.partition(":")[2] or dataset.source
        for expected in (dataset.about, dataset.counts, dataset.licence, availability):
            assert expected in rows[dataset.name], f"{dataset.name}: {expected}"
