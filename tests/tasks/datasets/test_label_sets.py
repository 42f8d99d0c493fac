"""Labelled sets as learning at test time, from files in the official layouts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hub_layouts import write
from official import turns

from memalpha.errors import DataError
from memalpha.tasks.catalog import load_set

TREC = "".join(f"NUM:date When was {n} ?\nLOC:city Where {n} ?\n" for n in range(6))


def trec(folder: Path, train: str = TREC, test: str = "NUM:date When was 3 ?\nLOC:city Which town ?\n") -> Path:
    write(folder / "train.txt", train)
    write(folder / "test.txt", test)
    return folder


def test_labels_are_numbers_learned_from_examples(tmp_path):
    (task,) = load_set("trec", data=trec(tmp_path), variant="fine", examples=4)
    turns_by_id = turns(task)
    numbers = task.meta["labels"]
    assert sorted(numbers.values()) == ["0", "1"]
    assert Counter(turn.speaker for turn in turns_by_id.values()) == {"label 0": 4, "label 1": 4}
    for turn in turns_by_id.values():
        assert turn.speaker == f"label {numbers['NUM:date' if turn.text.startswith('When') else 'LOC:city']}"
    for question in task.questions:
        label = "NUM:date" if "When" in question.question else "LOC:city"
        assert question.answers == (numbers[label], f"label {numbers[label]}")
        assert {turns_by_id[id].speaker for id in question.evidence} == {f"label {numbers[label]}"}
        assert len(question.evidence) == 4
        assert f'"{question.meta["text"]}"' in question.question
        assert question.meta.get("leak", False) == (question.meta["text"] == "When was 3 ?")
    (coarse,) = load_set("trec", data=tmp_path / "train.txt")
    assert set(coarse.meta["labels"]) == {"NUM", "LOC"}
    assert len(turns(coarse)) == 12


def test_every_test_sentence_is_asked_once_and_seeds_differ(tmp_path):
    folder = trec(tmp_path, test="".join(f"NUM:date How late is {n} ?\n" for n in range(25)))
    tasks = load_set("trec", data=folder, questions=10, examples=3)
    assert [len(task.questions) for task in tasks] == [10, 10, 5]
    assert len({question.id for task in tasks for question in task.questions}) == 25
    assert len({tuple(turns(task)) for task in tasks}) == 3  # a sample of its own
    assert load_set("trec", 1, data=folder, questions=10, examples=3) == tasks[:1]
    assert load_set("trec", 1, data=folder, questions=10, examples=3, seed=1)[0].questions != tasks[0].questions


def test_training_questions_are_never_among_their_examples(tmp_path):
    doubled = TREC + "NUM:date When was 0 ?\n"
    tasks = load_set("trec", data=trec(tmp_path, doubled), questions=3, split="train")
    assert sum(len(task.questions) for task in tasks) == 13
    for task in tasks:
        question_texts = {question.meta["text"] for question in task.questions}
        assert not question_texts & {turn.text for turn in turns(task).values()}
        assert not any("leak" in question.meta for question in task.questions)


def test_banking_clinc_and_nlu_read_their_own_layouts(tmp_path):
    for part in ("train", "test"):
        write(tmp_path / "b" / f"{part}.csv", f'text,category\n"Where, {part}?",card\nWhen?,date\n')
    splits = {name: [[f"{name} hello", "greet"], [f"{name} bye", "part"]] for name in ("train", "test", "oos_test")}
    write(tmp_path / "c" / "data_full.json", splits)
    columns = "answerid;scenario;intent;answer_annotation;answer_from_anno;answer_from_user"
    for folder in ("trainset", "testset/csv"):
        row = f'1;alarm;set;"wake me at [time : six]";"wake me at six; {folder}";"Wake me!"'
        write(tmp_path / "n" / folder / "alarm_set.csv", f"{columns}\n{row}\n")
    (banking,) = load_set("banking77", data=tmp_path / "b")
    assert {question.meta["text"] for question in banking.questions} == {"Where, test?", "When?"}
    (clinc,) = load_set("clinc150", data=tmp_path / "c")
    assert all(question.answers for question in clinc.questions)
    (outside,) = load_set("clinc150", data=tmp_path / "c", variant="out-of-scope")
    assert [q.category for q in outside.questions if not q.answers] == ["out-of-scope"] * 2
    assert len(outside.questions) == 4
    (nlu,) = load_set("nlu", data=tmp_path / "n")
    assert nlu.meta["labels"] == {"alarm_set": "0"}
    assert nlu.chunks[0].render() == "label 0: wake me at six; trainset"


@pytest.mark.parametrize(
    ("name", "files", "says"),
    [
        ("trec", {"train.txt": "A:b Who ?\nWho ?\n", "test.txt": "A:b Who ?"}, r"train\.txt:2: not like"),
        ("trec", {"train.txt": "A:b Who ?", "test.txt": "B:b Who ?"}, "test label 'B' has no training sentence"),
        ("trec", {"train.txt": "A:b Who ?"}, "no file data/trec/test.txt in this folder"),
        ("banking77", {"train.csv": "text,label\na,b\n", "test.csv": ""}, r"train\.csv: no column 'category'"),
        ("banking77", {"train.csv": "text,category\na,\n", "test.csv": ""}, r"train\.csv:2: an empty field"),
        ("banking77", {"train.csv": 'text,category\n"a,b\n', "test.csv": ""}, r"train\.csv:2: not CSV"),
        ("clinc150", {"data_full.json": {"train": [["a"]]}}, r"train\[0\]: \[sentence, label\] is needed"),
        ("nlu", {"alarm_set.csv": ""}, "trainset: no CSV files"),
    ],
)
def test_bad_labelled_files_are_refused(tmp_path, name, files, says):
    for file, value in files.items():
        write(tmp_path / file, value)
    with pytest.raises(DataError, match=says):
        load_set(name, data=tmp_path)
