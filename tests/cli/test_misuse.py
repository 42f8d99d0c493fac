"""Mistakes of newcomers: each message says what is wrong, and what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

MESSAGES = {
    "train demo --max-steps 1": "no option --max-steps: settings are written without dashes, such as max_steps=1",
    "train demo --lr 1e-3": "no option --lr: settings are written without dashes, such as optimizer.learning_rate=1e-3",
    "train demo --use-gpu": "such as compute.device=VALUE",
    "train -- demmo": "no configuration 'demmo'",
    "train demo --sampling.group_size=4": "such as sampling.group_size=4",
    "eval tasks --limit": "such as limit=VALUE",
    "train demmo": "no configuration 'demmo' (did you mean 'demo'?)",
    "train nothing.yaml": "nothing.yaml: there is no such file",
    "train latin.yaml": "latin.yaml cannot be read: not UTF-8 text",
    "train preferences": "preferences: data: is required: write it into the file, or data=VALUE",
    "train demo algorithm=grop": "no algorithm 'grop' (did you mean 'grpo'?)",
    "eval tasks latin.jsonl": "write key=value, for example data=latin.jsonl",
    "eval tasks data=good.jsonl systems=append_only": "(did you mean 'append-only'?): there are empty, append-only,",
    "eval tasks data=good.jsonl metric=contain": "no metric 'contain' (did you mean 'contains'?)",
    "eval locomoo": "no configuration 'locomoo' (did you mean 'locomo'?)",
    "data check locomoo": "no data set 'locomoo' (did you mean 'locomo'?)",
    "data check latin.jsonl": "latin.jsonl:1: not UTF-8 text (byte 36 of the line): save the file as UTF-8",
    "data check cut.jsonl": "cut.jsonl:2: Invalid JSON: EOF while parsing an object at column 10",
    "data check .": ". is a folder without a questions.csv",
    "read ana.db latin.txt --policy add_all": "latin.txt: not UTF-8 text (byte 8 is invalid): save it as UTF-8",
    "read ana.db good.txt --policy add-all": "no policy at 'add-all' (did you mean 'add_all'?): expected add_all",
    "read ana.db good.txt --policy tinny": "no policy at 'tinny' (did you mean 'tiny'?)",
    "read ana.db good.txt --policy scripted:orakle": "(did you mean 'oracle'?)",
    "report runs/nothing": "runs/nothing: there is no such directory",
    "search none.db x": "none.db: no such store; `memalpha add` and `memalpha read` make one",
    "train demo top_p=0.9": "top_p",
    "train demo max_step=7": "memalpha: unknown key 'max_step' (did you mean 'max_steps'?)",
    "train runs/nope": "runs/nope: there is no such run or file: give a run directory",
    "eval synthetic limits=3": "did you mean 'limit'",
    "eval synthetic world.presets=demo": "world.presets",
    "eval synthetic limit": "key=value",
    "eval tasks data=cut.jsonl": "cut.jsonl:2",
    "add new.db x --embedder ./no-such-model": "no-such-model",
    "train demo policy=": "policy: has no value",
    "add new.db x --timestamp May": "timestamp 'May' is no ISO 8601",
    "read new.db good.txt --policy add_all --timestamp May": "timestamp 'May'",
    "read new.db good.txt --policy scripted:nope": "no scripted policy 'nope'",
    "read new.db none.txt --policy add_all": "none.txt: cannot be read: no such file",
    "show good.txt": "not a memalpha store",
    "search ana.db x --embedder static": "hash",
    "add ana.db x --category nope": "semantic, episodic",
    "show ana.db nope#1": "nope#1",
    "read ana.db empty.txt --policy scripted:add-all": "empty.txt",
    "report .": "not a run directory",
    "show ana.db --nope": "--nope",
    "shows ana.db": "shows",
    "search ana.db x -k many": "-k",
    "show ana.db --as-of ²": "'²' is neither a log position",
    f"show ana.db --as-of {'9' * 5000}": "5000 digits",
    "show ana.db --as-of 20241345": "'20241345' is neither",
}


@pytest.mark.parametrize("words", MESSAGES, ids=lambda words: words[:40])
def test_a_mistake_is_named_with_what_to_write(
    words: str, memalpha, refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "ana.db" in words:
        memalpha("add", "ana.db", "Ana lives in Lisbon.", "--embedder", "hash")
    questions = b'[{"id": "q", "question": "Where?", "answers": ["caf"]}]'
    task = b'{"id": "a", "chunks": [{"text": "caf\xc3\xa9"}], "questions": ' + questions + b"}\n"
    (tmp_path / "good.jsonl").write_bytes(task)
    (tmp_path / "good.txt").write_text("Ana: hi\n")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "cut.jsonl").write_bytes(task + b'{"id": "b"\n')
    (tmp_path / "latin.jsonl").write_bytes(task.replace(b"\xc3\xa9", b"\xe9"))
    (tmp_path / "latin.txt").write_bytes(b"Ana: caf\xe9\n")
    (tmp_path / "latin.yaml").write_bytes(b"out: caf\xe9\n")
    assert MESSAGES[words] in refused(*words.split()) and not (tmp_path / "new.db").exists()


def test_an_option_that_is_nearly_right_keeps_its_suggestion(memalpha) -> None:
    code, _, err = memalpha("train", "demo", "--jsn")
    assert code == 2 and "--json" in err


def test_tokens_that_are_left_for_a_chunk_are_never_negative(memalpha) -> None:
    code, out, _ = memalpha("check-policy", "tiny")
    assert code == 0 and "room for a chunk     0" in out and "the model takes 2048 tokens" in out
