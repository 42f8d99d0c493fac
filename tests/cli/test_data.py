"""Commands on data sets: output, JSON and exit codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from memalpha.tasks.catalog import MODULES

LOCOMO = Path(__file__).parents[1] / "data" / "locomo_like.json"


@pytest.fixture
def data(memalpha):
    """Return a function that runs `memalpha data WORDS…` and returns (exit code, stdout, stderr)."""
    return partial(memalpha, "data")


@pytest.fixture
def trec(tmp_path: Path) -> Path:
    (tmp_path / "train.txt").write_text("NUM:date When was it ?\nLOC:city Where is Oslo ?\nLOC:city Where was he ?\n")
    (tmp_path / "test.txt").write_text("LOC:city Where is Oslo ?\nNUM:date When is that ?\n")
    return tmp_path


def test_list_shows_every_data_set_and_its_details(data):
    code, out, err = data("list")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines() if line[0] != " "] == list(MODULES)
    infos = {of["name"]: of for of in json.loads(data("list", "--json")[1])}
    assert infos["locomo"]["source"] == "github:snap-research/LoCoMo" and not infos["locomo"]["ships"]
    assert infos["locomo"]["files"][0]["sha256"].startswith("79fa87e9")
    assert infos["babi"]["ships"] and infos["trec"]["options"]["split"] == "test"
    details = data("list", "locomo")[1]
    for fact in ("CC BY-NC 4.0", "79fa87e90f04", "99 wrong answers", "adversarial", "audit=None"):
        assert fact in details
    assert json.loads(data("list", "locomo", "--json")[1])["name"] == "locomo"


def test_check_prints_problems_and_exits_with_1(data, trec):
    code, out, err = data("check", "trec", f"data={trec}", "examples=1")
    assert (code, err) == (1, "")
    assert "data/trec/train.txt: not the known file" in out
    assert "2 problems" in out and "2 questions" in out
    code, out, _ = data("check", "trec", f"data={trec}", "--json")
    report = json.loads(out)
    assert code == 1 and [file["state"] for file in report["files"]] == ["other", "other"]
    assert "2 questions instead of 500" in report["problems"]
    assert (report["counts"]["questions"], report["evidence"]["leaked"]) == (2, 1)
    named = json.loads(data("check", "trec", f"data={trec / 'train.txt'}", "--json")[1])
    assert named["files"] == report["files"]
    (trec / "test.txt").write_text("LOC\n")
    assert "test.txt:1: not like" in data("check", "trec", f"data={trec}")[1]


def test_a_file_of_ones_own_in_the_format_of_a_set_is_sound(data, tmp_path):
    question = {"id": "q", "question": "Where does Ana live?", "answers": [{"text": "Porto", "answer_start": 13}]}
    paragraphs = [{"context": "Ana lives in Porto.", "qas": [question]}]
    for name, code in (("mine.json", 0), ("dev-v1.1.json", 1), ("train-v1.1.json", 1), ("dev-v1.1 (1).json", 1)):
        (tmp_path / name).write_text(json.dumps({"data": [{"title": "Ana", "paragraphs": paragraphs}]}))
        found, out, _ = data("check", "squad", f"data={tmp_path / name}")
        assert found == code and ("mine.json: a file of your own, read as one of squad" in out) == (code == 0)
        assert ("1 questions instead of 10,570" in out) == (code == 1)


def test_check_looks_for_the_text_of_an_option_in_the_evidence(data, tmp_path):
    turns = [{"id": "t", "speaker": "Ana", "text": "A bad day, but C. S. Lewis is a joy in Porto."}]
    questions = [
        {"id": answer, "question": "What?", "answers": [answer], "evidence": ["t"],
         "meta": {"metric": "choice", "choices": {"A": "Rome", "B": "Porto", "C": "Oslo", "D": "C. S. Lewis"}}}
        for answer in ("B", "(b) Porto", "C. S. Lewis", "A", "(c)")
    ]  # fmt: skip
    (tmp_path / "t.jsonl").write_text(json.dumps({"id": "ana", "chunks": [{"turns": turns}], "questions": questions}))
    code, out, _ = data("check", tmp_path / "t.jsonl")
    assert code == 0 and "it holds the answer in 3\n" in out and "the answer's words: ana A, ana (c) (" in out


def test_check_finds_an_answer_in_the_day_of_its_turn(data, tmp_path):
    answers = ("2023-05-08", "8 May 2023", "May 8, 2023", "9 May 2023", "May 2023")
    questions = [{"id": text, "question": "When?", "answers": [text], "evidence": ["t"]} for text in answers]
    chunk = {"timestamp": "2023-05-08T10:00:00", "turns": [{"id": "t", "speaker": "Ana", "text": "We married today!"}]}
    (tmp_path / "t.jsonl").write_text(json.dumps({"id": "ana", "chunks": [chunk], "questions": questions}))
    code, out, _ = data("check", tmp_path / "t.jsonl")
    assert code == 0 and "it holds the answer in 4\n" in out and "the answer's words: ana 9 May 2023 (" in out


def test_check_of_valid_files_exits_with_0(data, tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    code, out, _ = data("prepare", "locomo", tasks, f"data={LOCOMO}", "variant=all")
    assert code == 0 and "7 questions, 1 of them without an answer" in out
    code, out, _ = data("check", tasks)
    assert code == 0 and out.endswith("sound\n") and "few tasks: each is one memory" in out
    assert "few tasks" not in data("check", "babi", "limit=5")[1]
    assert "evidence   named by 5 of 6 answerable questions; it holds the answer in" in out
    assert data("check", "babi", "limit=2")[0] == 0  # ships with memalpha
    counts = json.loads(data("check", "babi", "limit=2", "chunk_tokens=20", "--json")[1])["counts"]
    assert counts["longest_chunk"] <= 20 and counts["tasks"] == 2


def test_check_names_conversations_whose_days_run_backwards(data, tmp_path):
    days = {"a": ("2025-03-03", "2025-03-03T09:00:00Z", "2025-03-03"), "b": ("2025-03-03", None, "2025-02-10")}
    chunks = {id: [{"timestamp": day, "text": "x"} for day in times] for id, times in days.items()}
    tasks = [json.dumps({"id": id, "chunks": chunks[id], "questions": []}) for id in days]
    (tmp_path / "tasks.jsonl").write_text("\n".join(tasks), encoding="utf-8")
    assert "dates      run backwards in 1 task (b)" in data("check", tmp_path / "tasks.jsonl")[1]


@pytest.mark.parametrize(
    ("answer", "choices", "problem"),
    [
        ("Rome", ["Oslo", "Rome"], None),
        ("b", {"A": "Oslo", "B": "Rome"}, None),
        ("C", ["C", "C++", "C#"], None),
        ("b", [], None),
        ("Bern", ["Oslo", "Rome"], "'Bern', not a letter"),
        ("a", ["Oslo", "oslo ", "Rome"], "choices: two or more different texts are needed"),
        ("a", ["Oslo"], "choices: two or more different texts are needed"),
        ("1", {"1": "Oslo", "2": "Rome"}, "'1' is no letter"),
        ("a", "Oslo, Rome", "texts by letter or a list"),
    ],
)
def test_check_names_choices_that_nobody_can_choose_among(data, tmp_path, answer, choices, problem):
    question = {"id": "q", "question": "Where?", "answers": [answer], "meta": {"metric": "choice", "choices": choices}}
    (tmp_path / "t.jsonl").write_text(json.dumps({"id": "t", "chunks": [{"text": "x"}], "questions": [question]}))
    code, out, _ = data("check", tmp_path / "t.jsonl")
    assert code == (problem is not None) and (problem or "sound") in out and ("questions[0].meta.cho" in out) == code


def test_prepare_says_how_many_tasks_are_held_out(data, tmp_path):
    words = ["prepare", "babi", tmp_path / "train.jsonl", "limit=5", "chunk_tokens=20"]
    code, out, _ = data(*words, "--held-out", tmp_path / "held-out.jsonl")
    assert code == 0 and f"4 tasks: {tmp_path / 'train.jsonl'}; 1 held out: {tmp_path / 'held-out.jsonl'}\n" in out
    assert len((tmp_path / "train.jsonl").read_text().splitlines()) == 4


def test_overlap_lists_leaks(data, trec):
    words = ["overlap", "trec", "trec", f"train.data={trec}", "train.split=train", "train.questions=1"]
    words.append(f"test.data={trec}")
    code, out, err = data(*words)
    assert (code, err) == (1, "")
    assert "1 of 2 test questions (50.0%) are in the training set" in out
    assert "Where is Oslo ?" in out and "trec-coarse-train-0-" in out
    report = json.loads(data(*words, "n=3", "examples=1", "--json")[1])
    assert (report["n"], report["reasons"]["question"], report["leaked"]) == (3, 1, ["trec-coarse-test-0-0/test0"])
    assert {example["reason"] for example in report["examples"]} >= {"question", "question n-gram"}
    assert data("overlap", "synthetic", "trec", "train.limit=2", f"test.data={trec}")[0] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["check", "locomo"], "get data/locomo10.json from the GitHub repository snap-research/LoCoMo"),
        (["overlap", "babi", "babi", "train.limit=1", "test.limit=1", "examples=-1"], "examples=-1: a number of"),
        (["check", "synthetic", "world.preset=full", "seed"], "'seed' is not an override"),
        (["check", "babi", "limit=x"], "limit='x': a whole number is needed"),
        (["prepare", "synthetic", "out.jsonl", "limit=x"], "limit='x': a whole number is needed"),
        (["prepare", "synthetic", "out.jsonl", "limit=2", "--limit", "2"], "--limit and limit=: give one of them"),
        (["prepare", "synthetic", "out.jsonl", "world.preset=huge"], "world={'preset': 'huge'}: Input should"),
        (["overlap", "synthetic", "synthetic", "train=3"], "train=3: name an option, as in train.data=PATH"),
        (["overlap", "synthetic", "synthetic", "data=x"], "data: not an option of overlap"),
        (["overlap", "synthetic", "synthetic", "n=many"], "n='many': a whole number is needed"),
        (["overlap", "synthetic", "synthetic", "n=0", "train.limit=1", "test.limit=1"], "n=0, common=10"),
    ],
)
def test_invalid_arguments_exit_with_2(refused, words, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert says in refused("data", *words) and not any(tmp_path.iterdir())


def test_the_training_split_is_shown(data):
    expected_lines = {
        "trec": "training   variant=coarse, split=train (or variant=fine)",
        "qmsum": "training   variant=train",
        "synthetic": "training   split=train",
        "locomo": "training   no split: for evaluation only",
    }
    for name, line in expected_lines.items():
        assert line in data("list", name)[1].splitlines()


def test_commands_in_messages_quote_a_path_with_spaces(memalpha, tmp_path):
    chat = tmp_path / "WhatsApp Chat with Ana.txt"
    chat.write_text("24/05/2024, 21:05 - Ana: I moved.\n")
    assert f"memalpha data ask '{chat}' --policy POLICY" in memalpha("data", "check", chat)[1]
    chat.write_text("04/05/2024, 21:05 - Ana: I moved.\n")
    read = ("read", tmp_path / "a.db", chat, "--policy", "add_all")
    assert f"memalpha data prepare '{chat}' chat.jsonl dates=..." in memalpha(*read)[2]
