"""`memalpha read`: texts, chat messages and tasks, with a policy's own prompts; what is too long is said."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from memalpha import MemoryStore, load_tasks
from memalpha.cli.options import read_chunks
from memalpha.errors import DataError, PromptTooLong
from memalpha.policy.chat.text import format_call
from memalpha.policy.scripted import ScriptedPolicy
from memalpha.types import Completion


def test_read_writes_every_chunk_in_order(memalpha, tmp_path: Path) -> None:
    text = tmp_path / "chat.txt"
    text.write_text("user: first\nuser: second\nuser: third\n")
    store = tmp_path / "chat.db"
    code, out, _ = memalpha("read", store, text, "--policy", "scripted:add-all", "--chunk", 25, "--json")
    results = json.loads(out)
    assert code == 0 and [item["code"] for item in results] == ["inserted"] * 3
    entries = json.loads(memalpha("show", store, "--json")[1])["entries"]
    assert [entry["content"] for entry in entries] == ["user: first", "user: second", "user: third"]
    assert [entry["chunk"] for entry in entries] == [0, 0, 1]
    assert {entry["source"] for entry in entries} == {str(text)}


def test_a_line_longer_than_a_chunk_is_cut_between_words(memalpha, tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(100)]
    (tmp_path / "chat.txt").write_text(f"{' '.join(words)}\nAna: Bye.\n")
    memalpha("read", tmp_path / "a.db", tmp_path / "chat.txt", "--policy", "add_all", "--chunk", 50)
    with MemoryStore.open(tmp_path / "a.db") as store:
        contents = [entry.content for entry in store.list()]
    assert contents[-1] == "Ana: Bye." and " ".join(contents[:-1]).split() == words


def test_replies_that_hold_no_call_are_said_once(memalpha, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chat.txt").write_text("Ana: I live in Porto.\n" * 3)
    reply = [Completion("Let me see", stop_reason="length")]
    monkeypatch.setattr("memalpha.policy.scripted.ScriptedPolicy.sample", lambda self, requests: reply)
    words = ("read", tmp_path / "a.db", tmp_path / "chat.txt", "--policy", "add_all", "--chunk", 30)
    code, _, err = memalpha(*words)
    assert code == 0 and err.count("memalpha:") == 1 and "of 3 replies 3 held no readable call, 3 were cut off" in err
    reply[0] = Completion(format_call("memory_skip", {}))
    assert memalpha(*words)[2] == ""


def test_read_takes_chat_messages(memalpha, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "I live in Porto."}, {"role": "assistant", "content": "A fine city."}]
    lines, value, store = tmp_path / "chat.jsonl", tmp_path / "chat.json", tmp_path / "chat.db"
    lines.write_text("\n".join(map(json.dumps, messages)), encoding="utf-8")
    value.write_text(json.dumps(messages[1:]), encoding="utf-8")
    assert memalpha("read", store, lines, "--policy", "add_all", "--timestamp", "2024-05-01")[0] == 0
    assert memalpha("read", store, value, "--policy", "add_all")[1].split() == ["skipped", "-", "nothing", "to", "keep"]
    [entry] = json.loads(memalpha("show", store, "--json")[1])["entries"]
    assert (entry["content"], entry["timestamp"]) == ("I live in Porto.", "2024-05-01")
    value.write_text(json.dumps([{"role": "system", "content": "Be kind."}]), encoding="utf-8")
    code, _, err = memalpha("read", store, value, "--policy", "add_all")
    assert code == 2 and "no message has words of a user" in err


TASK = '{"id": "a", "chunks": [{"text": "Ana: I moved."}], "questions": [{"question": "Who?", "answers": ["Ana"]}]}'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.JSONL", TASK),
        ("a.ndjson", TASK),
        ("a.json", f"[\n{TASK}\n]"),
        ("a.CSV", "context,question,answer\nAna: I moved.,Who?,Ana\n"),
        ("a.TXT", "24/05/2024, 21:05 - Ana: I moved.\n"),
        ("a.JSON", '[{"role": "user", "name": "Ana", "content": "I moved."}]'),
    ],
)
def test_endings_in_any_case_are_read_alike(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    (chunk,), (task,) = read_chunks(tmp_path / name, None), load_tasks(tmp_path / name)
    assert chunk.render() == task.chunks[0].render() == "Ana: I moved."


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("contacts.csv", "name,phone\nAna,123"),
        ("contacts.tsv", "name\tphone\nAna\t123"),
        ("things.csv", "name,content\nLamp,Glass"),
        ("log.ndjson", '{"level": "info", "msg": "started"}\n{"level": "info"}'),
    ],
)
def test_tables_and_logs_without_tasks_are_read_as_text(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert [chunk.text for chunk in read_chunks(tmp_path / name, None)] == [text]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.json", '[{"content": "x"}, {"role": "user", "content": "y"}]', r"messages\[0\]\.role: is missing"),
        ("a.json", "[]", "no message has words"),
        ("a.json", '{"messages": []}', "no message has words"),
        ("a.csv", "question,note\nWho?,x\n", "no column 'context'"),
        ("a.tsv", "text\tturn\nHi\tt1\n", "no column 'question'.*chunks.csv"),
        ("a.ndjson", '{"id": "a", "chunks": []}', "chunks"),
    ],
)
def test_damaged_tasks_and_messages_are_named(tmp_path: Path, name: str, text: str, problem: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    for read in (load_tasks, lambda path: read_chunks(path, None)):
        with pytest.raises(DataError, match=problem):
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text", "is_said"),
    [
        ("chat.txt", "Ana: I moved.\nBo: At 9:05?\nAna: Yes.", False),
        ("chat.txt", "9:05 Ana I moved.\n9:06 Bo Where to?", True),
        ("viber.csv", "24/05/2024,21:05:09,Ana,+351912345678,I moved", True),
        ("page.html", "<p>I moved.</p>", True),
        ("notes.md", "# Notes", False),
    ],
)
def test_a_file_of_no_known_kind_is_said_to_be_read_as_plain_text(memalpha, tmp_path, name, text, is_said) -> None:
    (tmp_path / name).write_text(text)
    code, _, err = memalpha("read", tmp_path / "a.db", tmp_path / name, "--policy", "add_all")
    assert code == 0 and ("no export that memalpha knows: it is read as plain text" in err) == is_said


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        (
            "24/05/2024, 21:05 - Ana: I moved.\r\n24/05/2024, 21:06 - Bo: To\r\nwhere?",
            [("Ana", "I moved."), ("Bo", "To\nwhere?")],
        ),
        ('[{"type": "message", "ts": "1.0", "text": "Hi", "user_profile": {"name": "ana"}}]', [("ana", "Hi")]),
        ("From: Ana <a@b.c>\nDate: Fri, 3 May 2024 14:31:00 +0000\nMIME-Version: 1.0\n\nHi", [("Ana", "Hi")]),
        ("time;sender;message\n2024-05-03 14:31;Ana;Hi", [("Ana", "Hi")]),
        ('[\n{"role": "user", "content": "Hi"}]', [("user", "Hi")]),
        (
            '{"role": "user", "content": "Hi"}\n{"role": "assistant", "content": "Yo"}',
            [("user", "Hi"), ("assistant", "Yo")],
        ),
        ('{"id": "a", "chunks": [{"turns": [{"speaker": "Ana", "text": "Hi"}]}]}\n', [("Ana", "Hi")]),
        ('[{"id": "a", "chunks": [{"turns": [{"speaker": "Ana", "text": "Hi"}]}]}]', [("Ana", "Hi")]),
        ('{"chunks": 3}', []),
        ("Ana: I moved.\n", []),
        ("From: Ana, text me\n", []),
        ('{"a": 1}', []),
        ("She went, then. " * 20_000, []),
    ],
)
def test_an_export_on_stdin_is_read_like_a_file(monkeypatch: pytest.MonkeyPatch, text: str, turns: list) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    chunks = read_chunks(Path("-"), None)
    assert [(turn.speaker, turn.text) for chunk in chunks for turn in chunk.turns] == turns
    assert bool(turns) or " ".join(str(chunk.text) for chunk in chunks) == text.strip()


def test_stdin_is_read_in_a_folder_that_is_gone_and_named_by_its_kind(monkeypatch, tmp_path: Path, capsys) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    def read(text: str) -> str | None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return read_chunks(Path("-"), None)[0].timestamp

    assert read("time;sender;message\n2024-05-03 14:31;Ana;Hi\n;Ana;") == "2024-05-03T14:31"
    with pytest.raises(DataError, match=r"^stdin\.csv:2: 'soon' is no date"):
        read("time;sender;message\nsoon;Ana;Hi")
    assert capsys.readouterr().err == "memalpha: stdin.csv: left out 1 empty message\n"


def test_a_date_is_that_of_all_chunks_without_one(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps({"id": "a", "chunks": [{"text": "x"}, {"text": "y", "timestamp": "2024-05-02"}]}))
    assert [chunk.timestamp for chunk in read_chunks(file, "2024-05-01")] == ["2024-05-01", "2024-05-02"]
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([{"uuid": "a", "chat_messages": [{"sender": "human", "text": "I moved."}]}]))
    assert read_chunks(file, "2024-05-01")[0].timestamp == "2024-05-01"


def test_what_an_export_loses_and_chats_that_share_a_namespace_are_told(memalpha, monkeypatch, tmp_path: Path) -> None:
    chat = tmp_path / "chat.txt"
    chat.write_text("24/05/2024, 21:05 - Ana: I moved.\n24/05/2024, 21:06 - Bo: <Media omitted>\n")
    assert (
        memalpha("read", tmp_path / "a.db", chat, "--policy", "add_all")[2] == f"memalpha: {chat}: left out 1 media\n"
    )
    message = {"sender": "human", "text": "I moved."}
    file = tmp_path / "my conversations.json"
    file.write_text(json.dumps([{"uuid": id, "chat_messages": [message]} for id in "ab"]))
    err = memalpha("read", tmp_path / "b.db", file, "--policy", "add_all")[2]
    assert f"its 2 conversations go into one namespace; memalpha data prepare '{file}' chats.jsonl, then read " in err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    err = memalpha("read", tmp_path / "c.db", "-", "--policy", "add_all")[2]
    assert "stdin: its 2 conversations go into one namespace; memalpha data prepare FILE chats.jsonl, then read " in err


def test_read_prints_a_lone_surrogate(memalpha, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = '{"category": "semantic", "content": "x \\ud83d ü"}'
    text = f'<tool_call>{{"name": "memory_insert", "arguments": {half}}}</tool_call>'
    monkeypatch.setattr("memalpha.policy.load.load_policy", lambda _, **options: ScriptedPolicy("fixed", text=text))
    file = store.with_suffix(".txt")
    file.write_text("user: hi\n")
    code, out, _ = memalpha("read", store, file, "--policy", "fixed", "--json")
    [result] = json.loads(out)
    assert (code, result["code"], result["call"]["arguments"]["content"]) == (0, "invalid_content", "x \ud83d ü")
    assert "ü" in out


def test_the_tiny_policy_reads_and_answers_with_its_own_prompts(memalpha, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    chat, store = tmp_path / "chat.jsonl", tmp_path / "chat.db"
    assert memalpha("data", "prepare", "synthetic", chat, "--limit", 1)[0] == 0
    results = json.loads(memalpha("read", store, chat, "--policy", "tiny", "--json")[1])
    codes = [item["code"] for item in results]
    assert len(codes) >= 3 and codes.count("inserted") >= len(codes) / 2  # with other prompts it writes nothing useful
    answer = json.loads(memalpha("ask", store, "Which city?", "--policy", "tiny", "--json")[1])
    assert answer["prompt"].startswith("facts\n") and answer["text"]


def test_a_chunk_that_is_too_long_names_the_option_that_helps(memalpha, tmp_path: Path, monkeypatch) -> None:
    class SmallPolicy(ScriptedPolicy):
        def sample(self, requests):
            if any(len(str(request.messages)) > 2000 for request in requests):
                raise PromptTooLong("a prompt of 900 tokens is more than the 512 that it takes", "lower view_tokens")
            return super().sample(requests)

    monkeypatch.setattr("memalpha.policy.load.load_policy", lambda _, **options: SmallPolicy("fixed", text=""))
    chat, store = tmp_path / "chat.txt", tmp_path / "chat.db"
    chat.write_text("user: hi\n" + "x" * 2500)
    code, out, err = memalpha("read", store, chat, "--policy", "tiny", "--chunk", 2600)
    problem = "a prompt of 900 tokens is more than the 512 that it takes"
    assert (code, out) == (2, "")
    assert err == f"memalpha: {chat}: chunk 1 of 1: {problem}: lower --chunk (now 2600)\n"
    err = memalpha("read", store, chat, "--policy", "tiny", "--chunk", 2500)[2]
    assert err.endswith("lower --chunk (now 2500); the 1 chunks before it are in the store\n")
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"id": "t", "chunks": [{"text": "x" * 2500}]}) + "\n")
    assert memalpha("read", store, tasks, "--policy", "tiny")[2].endswith("that it takes: split that chunk\n")


def test_conversations_of_a_task_file_go_to_namespaces(memalpha, tmp_path: Path) -> None:
    tasks, store = tmp_path / "tasks.jsonl", tmp_path / "all.db"
    ids = ["ana", "ben", "cleo", "dan"]
    lines = [json.dumps({"id": id, "chunks": [{"text": f"user: I am {id}."}]}) for id in ids]
    tasks.write_text("\n".join(lines) + "\n", encoding="utf-8")
    err = memalpha("read", tmp_path / "one.db", tasks, "--policy", "add_all")[2]
    assert err.endswith("its 4 conversations go into one namespace; --namespaces task gives each its own\n")
    assert "is a folder: name one file" in memalpha("read", store, tmp_path, "--policy", "add_all")[2]
    read = ("read", store, tasks, "--policy", "add_all", "--namespaces", "task")
    code, out, _ = memalpha(*read, "--shard", "0/2", "--json")
    first = json.loads(out)
    assert code == 0 and 0 < first["read"] < 4 and first["chunks"] == first["operations"] == first["read"]
    code, out, _ = memalpha(*read)
    assert code == 0 and out.splitlines()[1] == f"{first['read']} were in the store already, 0 failed"
    entries = json.loads(memalpha("show", store, "--namespace", "cleo", "--json")[1])["entries"]
    assert [(entry["content"], entry["source"]) for entry in entries] == [("user: I am cleo.", "cleo")]
    tasks.write_text("\n".join([*lines, "{}"]), encoding="utf-8")
    code, out, err = memalpha(*read)
    assert code == 1 and f"{tasks}:5: no task, for it has no 'chunks'" in out and f"memalpha: failed: {tasks}:5" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "2"], "--workers: needs --namespaces task"),
        (["--namespaces", "task", "--namespace", "ana"], "--namespace: belongs to a single text"),
        (["--namespaces", "task", "--shard", "2"], "--shard 2: give index and number, such as 0/8"),
        (["--namespaces", "task", "--shard", "8/8"], "shard 8/8: 0/8 to 7/8 are needed"),
        (["--namespaces", "task"], "--namespaces task needs a task file (.jsonl)"),
    ],
)
def test_options_of_conversations_are_refused_elsewhere(refused, tmp_path: Path, options, message: str) -> None:
    file = tmp_path / ("tasks.jsonl" if "--shard" in options else "chat.txt")
    file.write_text("user: hi\n")
    assert message in refused("read", tmp_path / "all.db", file, "--policy", "add_all", *options)
    assert not (tmp_path / "all.db").exists()


@pytest.mark.parametrize("name", ["chat.jsonl", "chat.txt"])
def test_a_rule_keeps_the_time_of_each_message(memalpha, tmp_path: Path, name: str) -> None:
    texts = {
        "chat.jsonl": "".join(
            json.dumps({"role": "user", "name": "Ana", "content": "Ok.", "timestamp": f"2024-05-13T{time}"}) + "\n"
            for time in ("09:00", "18:30")
        ),
        "chat.txt": "[13.05.24, 09:00:00] Ana: Ok.\n[13.05.24, 18:30:00] Ana: Ok.\n",
    }
    (tmp_path / name).write_text(texts[name])
    assert memalpha("read", tmp_path / "a.db", tmp_path / name, "--policy", "add_all", "--embedder", "hash")[0] == 0
    with MemoryStore.open(tmp_path / "a.db") as store:
        assert [entry.timestamp for entry in store.list()] == ["2024-05-13T09:00", "2024-05-13T18:30"]
