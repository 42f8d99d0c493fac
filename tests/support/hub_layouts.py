"""Small files of our own in the official layouts of the sets on a hub or in git."""

import copy
import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from memalpha.errors import DataError
from memalpha.tasks import catalog
from memalpha.tasks.chunking import CHUNK
from memalpha.tasks.formats.jsonl import load_jsonl, save_jsonl


def write(path, value):
    """Write a text, or a value in the format of the path's suffix, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(value, str):
        path.write_text(value, encoding="utf-8")
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(value), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(item) + "\n" for item in value))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(value[0]))
            writer.writeheader()
            writer.writerows(value)
    else:
        path.write_text(json.dumps(value))
    return path


def use_as_hub_cache(monkeypatch, folder):
    """Make `folder` stand for the hub's cache of every data set; files that it lacks cannot be fetched."""

    def obtain(dataset, variant=None, data=None):
        for file in dataset.files_for(variant):
            if not (folder / file.path).is_file():
                raise DataError(f"{dataset.name}: get {file.path} and give the folder as data=PATH")
        return folder

    monkeypatch.setattr(catalog, "obtain", obtain)
    return folder


def write_memalpha_split(folder, split, text, count=6):
    """Write a split of the set `memalpha`: `count` rows whose only chunk begins with `text`."""
    question = {"question": "What?", "answer": text}
    return write(folder / f"{split}.parquet", [row("squad", [f"{text} {n}"], [question]) for n in range(count)])


def legal(tasks, folder):
    """Return the tasks after a check that a task file can hold them."""
    save_jsonl(tasks, folder / "tasks.jsonl")
    assert load_jsonl(folder / "tasks.jsonl") == tasks
    assert all(len(chunk.render()) <= CHUNK for task in tasks for chunk in task.chunks)
    return tasks


def ids(task):
    """Return the turn ids of each chunk."""
    return [[turn.id for turn in chunk.turns] for chunk in task.chunks]


def changed(value, *path):
    """Return a function that deep-copies a value and sets, or for None deletes, the part at a path."""

    def change(original):
        node = original = copy.deepcopy(original)
        for key in path[:-1]:
            node = node[key]
        if value is None:
            del node[path[-1]]
        else:
            node[path[-1]] = value
        return original

    return change


_LAYOUTS = json.loads((Path(__file__).parents[1] / "data" / "hub_layouts.json").read_text(encoding="utf-8"))
LONGMEMEVAL, PERSONAMEM_MESSAGES, MEMORY, PERSON, PROBES, MEETING, TALK, FIRST, THEN, USER = _LAYOUTS.values()


def context(source, context, questions, answers, **metadata):
    keys = ("keypoints", "question_ids", "question_types", "question_dates", "qa_pair_ids", "haystack_sessions")
    return {
        "context": context,
        "questions": questions,
        "answers": answers,
        "metadata": {"source": source, **dict.fromkeys(keys), **metadata},
    }


RETRIEVAL = [
    context("ruler_qa1_197K", "Document 1: Ada was born in 1815. " * 600, ["When?"], [["1815", "in 1815"]]),
    context(
        "eventqa_full", "A book.", ["What next?", "And then?"], [["She left"], ["He fell"]], qa_pair_ids=["a", "b"]
    ),
    context(
        "longmemeval_s*",
        repr(TALK),
        ["What colour?", "What plane?"],
        [["red"], ["No plane was mentioned"]],
        question_ids=["x1", "x2_abs"],
        question_types=["single-session-user", "multi-session"],
        question_dates=["2023/02/01 (Wed) 10:00", "2023/02/01 (Wed) 10:00"],
        haystack_sessions=[
            [[{"content": "I ride a 'red' bike.", "has_answer": True, "role": "user"}]],
            [[{"content": "Ok", "has_answer": True, "role": "user"}]],
        ],
    ),
]


def personamem_question(id, end, question="Which tea?", answer="(b)", options=None, shared="c1"):
    options = options or ["(a) black", "(b) green", "(c) red", "(d) none"]
    return {
        "persona_id": "0",
        "question_id": id,
        "question_type": "recall_user_shared_facts",
        "topic": "food",
        "user_question_or_message": question,
        "correct_answer": answer,
        "all_options": repr(options) if id == "q1" else json.dumps(options),
        "shared_context_id": shared,
        "end_index_in_shared_context": str(end),
    }


def row(source, chunks, questions, **metadata):
    return {
        "instance_id": 0,
        "prompt": "Read.",
        "chunks": json.dumps(chunks),
        "questions_and_answers": json.dumps(questions),
        "data_source": source,
        "metadata": json.dumps(metadata),
        "num_chunks": len(chunks),
        "num_questions": len(questions),
    }


def scene(title: str, **change: object) -> dict[str, object]:
    utterances = [
        {"uid": 0, "speakers": ["#NOTE#"], "utterance": "[ A kitchen . ]"},
        {"uid": 1, "speakers": ["Mira", "Tom"], "utterance": "The key is under the mat ."},
        {"uid": 2, "speakers": ["Tom"], "utterance": "Under the mat , as ever ."},
    ]
    answers = [
        {"answer_text": "under the mat ", "utterance_id": 1, "inner_start": 3, "inner_end": 5, "is_speaker": False},
        {"answer_text": "Under the mat", "utterance_id": 2, "inner_start": 0, "inner_end": 2, "is_speaker": False},
    ]
    question = {"id": f"{title}_Where_Paraphrased", "question": "Where is the key ?", "answers": answers, **change}
    return {"title": title, "paragraphs": [{"utterances:": utterances, "qas": [question]}]}


def friends(*scenes: object) -> dict[str, object]:
    return {"version": "1", "data": list(scenes)}


def squad(paragraphs: int = 3, **change: object) -> dict[str, object]:
    def paragraph(number: int) -> dict[str, object]:
        questions = {"question": " How many gates? ", "answers": [{"text": str(number), "answer_start": 9}] * 2}
        return {"context": f"Town has {number} gates.", "qas": [{"id": f"q{number}", **questions, **change}]}

    return {"version": "1.1", "data": [{"title": "Old_Town", "paragraphs": [*map(paragraph, range(paragraphs))]}]}
