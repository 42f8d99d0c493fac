"""Default reader and metric of task files: notes keep the rule for notes, sentences get one that can score them."""

from __future__ import annotations

import json

import pytest

from memalpha.config import EvalConfig, load_config
from memalpha.qa.from_config import run_evaluation
from memalpha.qa.reader import with_default_reader
from memalpha.types import Task

SENTENCES = ["I moved to Porto in May.", "My sister plays the violin."]
NOTES = ["city: Porto", "sister's instrument: violin"]


def make_task(texts, *, gold=(), metric=None, as_text=False) -> Task:
    turns = [{"id": f"0.{at}", "speaker": "user", "text": text} for at, text in enumerate(texts)]
    chunk = {"text": "\n".join(f"user: {text}" for text in texts)} if as_text else {"turns": turns}
    question = {"id": "q", "question": "Where did I move to in May?", "answers": ["Porto"]}
    question |= {"meta": {"metric": metric}} if metric else {}
    question |= {} if as_text else {"evidence": ["0.0"]}
    operations = [{"chunk": 0, "kind": "insert", "category": "semantic", "content": text} for text in gold]
    return Task.model_validate({"id": "a", "chunks": [chunk], "questions": [question], "gold_operations": operations})


def choose(task, **keys):
    config, metric, note = with_default_reader(EvalConfig(benchmark="tasks", **keys), [task])
    return config.reader.kind, metric, note


def test_what_is_set_stays():
    sentences = make_task(SENTENCES)
    assert choose(make_task(NOTES)) == ("extractive", "exact", None)
    kind, metric, note = choose(sentences)
    assert (kind, metric) == ("copy", "f1")
    assert str(note).startswith("the data holds sentences; taken by default: reader.kind=copy metric=f1;")
    assert choose(sentences, reader={"kind": "extractive"})[:2] == ("extractive", "f1")
    assert choose(sentences, reader={"kind": "policy", "policy": "tiny"}, metric="contains") == (
        "policy",
        "exact",
        None,
    )
    assert choose(sentences, metric=None)[1] == "exact"  # as the settings of a run say it
    assert "metric" not in str(choose(make_task(SENTENCES, metric="contains"))[2])


@pytest.mark.parametrize(
    ("keys", "accuracy"), [({}, 1.0), ({"reader": {"kind": "extractive"}, "metric": "exact"}, 0.0)]
)
def test_sentences_are_scored_by_default(tmp_path, capsys, keys, accuracy):
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(make_task(SENTENCES).model_dump(mode="json")) + "\n", encoding="utf-8")
    settings = load_config(EvalConfig, "tasks", {"data": str(path), "systems": ["rag"], **keys})
    (report,) = run_evaluation(settings)
    assert report.summary["accuracy"] == accuracy
    assert ("taken by default" in capsys.readouterr().err) == (not keys)
