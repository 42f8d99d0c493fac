"""Search benchmark on task files: ranks by hand, questions asked on the way, what is refused, the command."""

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memalpha.cli.main import app
from memalpha.config import EvalConfig, load_config
from memalpha.errors import DataError
from memalpha.qa.search_benchmark import format_search, measure_task, run_search
from memalpha.tasks.datasets import locomo
from memalpha.tasks.formats.jsonl import save_jsonl
from memalpha.types import Chunk, Question, SpeakerTurn, Task

TURNS = [
    ("1.0", "My dog is called Rex."),
    ("1.1", "The weather was fine."),
    ("2.0", "My dog is called Rex."),
    ("2.1", "Lunch was soup."),
    ("3.0", "I moved to Porto."),
]
TASK = {
    "id": "ana",
    "chunks": [
        {"turns": [{"id": id, "speaker": "user", "text": text} for id, text in TURNS if id[0] == str(number)]}
        for number in (1, 2, 3)
    ],
    "questions": [
        {"id": "q0", "question": "Which dog is called Rex?", "evidence": ["1.0", "2.0"], "category": "a"},
        {"id": "q1", "question": "Who moved to Porto?", "answers": ["I"], "evidence": ["3.0"], "category": "b"},
        {"id": "q2", "question": "moved Porto", "evidence": ["3.0"], "category": "b", "asked_after_chunk": 1},
        {"id": "q3", "question": "What is the boiling point?", "answers": ["100"]},
    ],
}  # fmt: skip


def settings(tmp_path, *tasks, **overrides) -> EvalConfig:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")
    return load_config(EvalConfig, "search", {"data": str(path), **overrides})


def test_ranks_by_hand(tmp_path):
    pytest.importorskip("bm25s")
    result = run_search(settings(tmp_path, TASK, out=str(tmp_path / "run"), embedders=["hash", "static"]))
    assert [(row["method"], row["embedder"]) for row in result["retrieval"]] == [
        *(
            (method, "none" if method == "bm25" else "hash")
            for method in ("soft", "flat", "dense", "bm25", "hard", "spans")
        ),
        ("bm25s", "none"),
        *((method, "static") for method in ("soft", "flat", "dense", "hard", "spans")),
    ]
    for row in result["retrieval"]:  # the repeated turn is one entry; Porto is not known yet when q2 is asked
        assert (row["questions"], row["recall@5"], row["mrr"]) == (3, 0.6667, 0.6667)
        assert row["by_type"]["a"]["recall@5"] == 1.0
        assert set(row["by_type"]["b"].values()) == {2, 0.5}
    assert result["questions_without_evidence"] == 1
    assert json.loads((tmp_path / "run" / "eval" / "search.json").read_text()) == result
    assert {(row["set"], row["conversations"], row["interval"]) for row in result["retrieval"]} == {("tasks", 1, None)}
    text = format_search(result)
    assert text.startswith("tasks: 3 questions about 1 conversation\n") and "a (1)" in text
    assert "left out: 1 question" in text


def test_a_folder_is_a_table_for_each_of_its_task_files(tmp_path):
    for name in ("notes", "talks"):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps({**TASK, 'id': f't{n}'})}\n" for n in range(10)))
    result = run_search(load_config(EvalConfig, "search", {"data": str(tmp_path), "embedders": ["hash"]}))
    assert {row["set"] for row in result["retrieval"]} == {"notes", "talks"}
    assert all(row["conversations"] == 10 and row["interval"][0] <= row["recall@10"] for row in result["retrieval"])
    assert format_search(result).count("questions about 10 conversations") == 2


@pytest.mark.parametrize(
    ("said", "question"),
    [("The houses were painted.", "Who paints a house?"), ("我昨天搬到了上海。", "他什么时候搬到上海?")],
)
def test_the_rival_by_words_has_stems_and_bigrams_and_nobody_is_padded(said, question):
    pytest.importorskip("bm25s")
    texts = [said, "Lunch was soup.", "Rain fell."]
    turns = tuple(SpeakerTurn(speaker="Bo", text=text, id=str(n)) for n, text in enumerate(texts))
    asked = [Question(id=str(n), question=question, evidence=(str(n),)) for n in range(3)]
    ranks = measure_task(Task(id="t", chunks=(Chunk(turns=turns),), questions=asked), "hash", ["bm25", "bm25s"])
    for found in ranks.values():
        assert [item.gold for item in found] == [(1,), (math.inf,), (math.inf,)]


@pytest.mark.parametrize("said", [" ", "It is."])
def test_a_question_asked_before_anything_was_said_finds_nothing(said):
    pytest.importorskip("bm25s")
    chunks = [Chunk(turns=(SpeakerTurn(speaker="user", text=text, id=text),)) for text in (said, "Soup for lunch.")]
    question = Question(id="q", question="Which lunch?", evidence=("Soup for lunch.",), asked_after_chunk=0)
    ranks = measure_task(Task(id="t", chunks=chunks, questions=(question,)), "hash", ["flat", "bm25s"])
    assert [item.gold for of_method in ranks.values() for item in of_method] == [(math.inf,)] * 2


def test_what_cannot_be_measured_is_refused(tmp_path):
    with pytest.raises(DataError, match="data=PATH"):
        run_search(load_config(EvalConfig, "search"))
    with pytest.raises(DataError, match="no question names its evidence"):
        run_search(settings(tmp_path, {**TASK, "questions": TASK["questions"][3:]}))
    blank = {"turns": [{"id": f"7.{at}", "speaker": "user", "text": text} for at, text in ((6, "Yes."), (7, " "))]}
    question = {"id": "q9", "question": "?", "evidence": ["7.7"]}
    with pytest.raises(DataError, match=r"task 'ana', question 'q9': its evidence '7.7' is the id of no turn"):
        run_search(settings(tmp_path, {**TASK, "chunks": [*TASK["chunks"], blank], "questions": [question]}))


def test_the_command_prints_json(tmp_path):
    path = settings(tmp_path, TASK).data
    ended = CliRunner().invoke(app, ["eval", "search", f"data={path}", "embedders=[hash]", "--json"])
    rows = json.loads(ended.stdout)["retrieval"]
    assert {row["method"] for row in rows} >= {"soft", "flat", "dense", "bm25", "hard"}


# ------------------------------------------------------------------------------------------------- on the real file

REAL = Path(__file__).parents[3] / "shared" / "data" / "locomo" / "locomo10.json"


@pytest.mark.skipif(
    not REAL.exists(), reason="LoCoMo may not be shipped, and ../shared/data/locomo/locomo10.json is absent"
)
def test_the_default_search_beats_flat_on_the_real_file(tmp_path):
    save_jsonl(locomo.load(REAL), tmp_path / "locomo.jsonl")
    result = run_search(load_config(EvalConfig, "search", {"data": str(tmp_path / "locomo.jsonl")}))
    rows = {row["method"]: row for row in result["retrieval"]}
    assert rows["soft"]["questions"] == 1536
    assert rows["soft"]["recall@10"] >= 0.76
    assert rows["soft"]["recall@10"] >= rows["bm25s"]["recall@10"] + 0.1
    # What a reader is shown costs no more than by the simplest route: hits are not better for being longer.
    assert rows["soft"]["tokens@10"] <= 1.07 * rows["flat"]["tokens@10"]  # turns that ask are short, and count less
    assert rows["soft"]["recall@10"] >= rows["flat"]["recall@10"] + 0.08
    for kind, outcome in rows["soft"]["by_type"].items():
        assert outcome["recall@10"] >= rows["flat"]["by_type"][kind]["recall@10"] - 0.02, kind
