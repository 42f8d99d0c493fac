"""Command line: results on stdout, errors on stderr with exit code 2, `--json` as one JSON value."""

from __future__ import annotations

import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from memalpha import __version__
from memalpha.cli import main
from memalpha.cli.main import _COMMANDS
from memalpha.store.quarantine import quarantine_operation
from memalpha.store.store import MemoryStore
from memalpha.types import Operation

TASK = {"id": "t", "chunks": [{"text": "user: hi"}], "questions": [{"id": "q", "question": "?", "answers": ["x"]}]}


def test_add_show_search_ask_history(memalpha, store: Path) -> None:
    code, out, err = memalpha("add", store, "city: Porto", "--json")
    entry = json.loads(out)
    assert (code, err, entry["content"], entry["category"]) == (0, "", "city: Porto", "semantic")
    listing = json.loads(memalpha("show", store, "--json")[1])
    assert [item["content"] for item in listing["entries"]] == ["Ana lives in Lisbon.", "city: Porto"]
    assert memalpha("show", store, "--as-of", 1)[1].count("\n") == 1
    assert entry["id"] in memalpha("show", store, entry["id"])[1]
    hits = json.loads(memalpha("search", store, "Ana lives", "-k", 1, "--json")[1])
    assert [hit["entry"]["content"] for hit in hits] == ["Ana lives in Lisbon."]
    assert memalpha("ask", store, "Which city?")[1] == "Porto\n"
    assert memalpha("ask", store, "Which zebra?")[1] == "unknown\n"
    assert "v1" in memalpha("history", store, entry["id"])[1]


def test_add_reports_a_duplicate(memalpha, store: Path) -> None:
    added = json.loads(memalpha("add", store, "city: Porto", "--json")[1])
    assert added["outcome"] == "inserted" and added["content"] == "city: Porto"
    assert memalpha("add", store, " city: Porto ", "--timestamp", "2024-05-01") == (0, f"duplicate {added['id']}\n", "")
    again = json.loads(memalpha("add", store, "city: Porto", "--json")[1])
    assert again == {**added, "outcome": "duplicate"}


def test_where_filters_show_and_search(memalpha, refused, store: Path) -> None:
    memalpha("add", store, "city: Porto", "--metadata", '{"user": {"name": "ana"}}')
    for where, cities in (('{"user.name": "ana"}', ["Porto"]), ('{"timestamp": {"$lt": "2025-01-01"}}', ["Lisbon"])):
        for words in (("show", store), ("search", store, "Where?"), ("search", store, "Where?", "--as-of", "2")):
            out = memalpha(*words, "--where", where)[1]
            assert [name for name in ("Lisbon", "Porto") if name in out] == cities
    for where, message in (
        ("{", "--where: no JSON"),
        ("3", 'not 3: write \'{"key": "value"}\''),
        ('{"$nor": []}', "are $eq"),
    ):
        for words in (("show", store), ("search", store, "Where?")):
            assert message in refused(*words, "--where", where)


def test_around_prints_the_source_text_of_hits(memalpha, tmp_path: Path) -> None:
    lines = ["Ana: Where do you live?", "Ben: In Oslo, by the harbour.", "Ana: Nice!"]
    fact = {"category": "episodic", "source": "chat"}
    facts = [{**fact, "content": line, "turn": str(number)} for number, line in enumerate(lines)]
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, facts)))
    memalpha("import", tmp_path / "chat.db", tmp_path / "chat.jsonl")
    words = ("search", tmp_path / "chat.db", "harbour", "-k", 1)
    assert memalpha(*words)[1].count("\n") == 1
    lines_printed = memalpha(*words, "--around", 50)[1].splitlines()
    assert len(lines_printed) == 4 and [line.strip() for line in lines_printed[1:]] == lines
    (hit,) = json.loads(memalpha(*words, "--around", 15, "--json")[1])
    assert [span["turn"] for span in hit["around"]] == ["0", "1"]
    assert hit["explain"]["around"] < 0.5 and memalpha(*words, "--around", -1)[0] == 2


def test_a_position_beyond_the_log_is_refused_and_the_argument_named(memalpha, store: Path) -> None:
    for words in (("show", store), ("search", store, "Ana")):
        assert memalpha(*words, "--as-of", 1)[2] == ""
        code, out, err = memalpha(*words, "--as-of", 99)
        assert code != 0 and not out and "--as-of 99: the log ends at position 1" in err
    assert "TO 99: the log ends at position 1" in memalpha("diff", store, 1, 99)[2]
    assert "FROM 99: the log ends at position 1" in memalpha("diff", store, 99)[2]
    assert "FROM 999999999999999999...: no log" in memalpha("diff", store, "9" * 20)[2]


def test_undo_redo_diff(memalpha, store: Path) -> None:
    memalpha("add", store, "city: Porto")
    assert memalpha("diff", store, "1")[1].startswith("+ city#")
    assert memalpha("undo", store)[1].startswith("undo insert city#")
    assert json.loads(memalpha("diff", store, "2", "--json")[1])["removed"][0]["content"] == "city: Porto"
    assert memalpha("diff", store, "3", "1")[1] == "no difference\n"
    assert json.loads(memalpha("redo", store, "--json")[1])["content"] == "city: Porto"
    assert memalpha("redo", store)[:2] == (0, "nothing to redo\n")
    assert memalpha("diff", store, "soon")[0] == 2


def test_fork_and_erase(memalpha, refused, store: Path, tmp_path: Path, monkeypatch) -> None:
    copy = tmp_path / "copy.db"
    entry = json.loads(memalpha("add", store, "city: Porto", "--category", "episodic", "--json")[1])
    same = json.loads(memalpha("add", store, "city: Porto", "--json")[1])
    assert memalpha("fork", store, "other", "--as-of", 1) == (0, f"1 operation: namespace other of {store}\n", "")
    assert json.loads(memalpha("fork", store, "--path", copy, "--json")[1])["operations"] == 3
    assert memalpha("show", copy)[1] == memalpha("show", store)[1]
    for words, says in [
        (("--id", entry["id"]), "--yes"),
        (("--yes",), "--id ID or --namespace"),
        (("--id", "nobody#x", "--yes"), "nobody#x"),
        (("--id", entry["id"], "--namespace", "other", "--yes"), entry["id"]),
    ]:
        assert says in refused("erase", store, *words)
    erased = f"1 entry erased\nthe same content is, or was, in {same['id']}\n"
    assert memalpha("erase", store, "--id", entry["id"], "--yes") == (0, erased, "")
    assert "episodic" not in memalpha("show", store)[1] and "episodic" in memalpha("show", copy)[1]
    assert memalpha("erase", store, "--namespace", "other", "--yes")[1] == "1 operation erased\n"
    assert memalpha("erase", store, "--core-history", "--yes")[1] == "0 operations erased\n"
    assert "choose one of" in refused("erase", store, "--id", "x", "--drop", "--yes")
    memalpha("add", store, "code: kz4711", "--expires", "2024-05-10", "--metadata", '{"user": "ana"}')
    memalpha("fork", store, "third")
    words = ("erase", store, "--where", '{"user": "ana"}', "--yes")
    assert memalpha(*words) == (0, "1 entry erased\nnamespace third is a fork and still has it\n", "")
    assert memalpha(*words, "--namespace", "third") == (0, "1 entry erased\n", "")
    assert b"kz4711" not in store.read_bytes()
    assert memalpha(*words)[1] == "0 entries erased\n" and refused(*words[:3], "{}", "--yes")
    assert memalpha("erase", store, "--namespace", "other", "--drop", "--yes")[1] == "2 operations erased\n"
    refused("erase", store, "--namespace", "other", "--drop", "--yes")
    with sqlite3.connect(store, isolation_level=None) as reader:
        reader.execute("BEGIN").execute("SELECT * FROM meta").fetchone()
        monkeypatch.setattr("memalpha.store.backends.sqlite.LOCK_TIMEOUT", 0.1)
        code, out, _ = memalpha("erase", store, "--id", same["id"], "--yes", "--json")
        assert code == 1 and "other processes read the file" in json.loads(out)["pending_scrub"]
    reader.close()
    code, out, err = memalpha("show", store, "--namespace", "other")
    assert (code, out) == (0, "\n") and "nothing was written to namespace other, but to default" in err
    assert memalpha("doctor", store)[0] == 0


def test_export_and_import_of_a_log(memalpha, store: Path, tmp_path: Path) -> None:
    file, copy = tmp_path / "log.jsonl", tmp_path / "copy.db"
    assert json.loads(memalpha("export", store, file, "--json")[1])["operations"] == 1
    assert memalpha("import", copy, file, "--embedder", "hash")[1] == f"1 operation: {copy}\n"
    assert memalpha("show", copy)[1] == memalpha("show", store)[1]
    output, entrance = os.pipe()  # as a shell's <(cat log.jsonl): what was read is gone
    os.write(entrance, file.read_bytes())
    os.close(entrance)
    assert memalpha("import", tmp_path / "piped.db", f"/dev/fd/{output}")[1].startswith("1 operation: ")
    assert memalpha("import", tmp_path / "new.db", tmp_path / "none.jsonl")[0] == 2
    assert not (tmp_path / "new.db").exists()
    assert "not the standard output" in memalpha("export", store, "-")[2] and not Path("-").exists()


def test_serve_refuses_invalid_options(refused, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("MEMALPHA_TOKEN", raising=False)
    (tmp_path / "token").write_text("short")
    path, rules, web = tmp_path / "new.db", ("--policy", "scripted:add-all"), ("--http", "127.0.0.1:0")
    for words, says in [
        ((*rules,), "--mcp, --http HOST:PORT, or both"),
        (("--mcp",), "--policy RUN or MODEL, or use --read-only"),
        (("--mcp", "--policy", "scripted:nobody"), "no scripted policy"),
        ((*rules, "--mcp", "--token-file", tmp_path / "token"), "add --http"),
        ((*rules, "--mcp", "--allow-host", "memory.example.org"), "add --http"),
        ((*rules, "--mcp", "--log-requests"), "add --http"),
        ((*rules, *web, "--allow-host", "memory.example.org"), "allow-host: "),
        ((*rules, *web, "--allow-host", "https://memory.example.org"), "without scheme and port"),
        (("--read-only", *web, "--page-edits"), "page-edits"),
        ((*rules, "--http", "8765"), "is no HOST:PORT"),
        ((*rules, "--http", "0.0.0.0:0"), "needs a token"),
        ((*rules, *web, "--token-file", tmp_path / "token"), "at least 16"),
        (("--read-only", "--mcp"), "no such store"),
    ]:
        assert says in refused("serve", path, *words)
    assert not path.exists()


def test_import_of_markdown(memalpha, refused, store: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.MD"
    assert memalpha("export", store, notes) == (0, f"1 entry: {notes}\n", "")
    notes.write_text(notes.read_text().replace("Lisbon", "Porto") + "\n- Ana has a cat.\n")
    assert memalpha("import", store, notes) == (0, f"2 operations: {store}\n", "")
    assert "Porto" in memalpha("show", store)[1] and "Lisbon" in memalpha("show", store, "--as-of", 1)[1]
    for words, says in [
        ((tmp_path / "none.md",), "none.md: cannot be read"),
        ((tmp_path / "none.jsonl",), "none.jsonl: cannot be read"),
        ((notes, "--from", "jsonl"), "notes.MD:1: not JSON"),
        ((store,), "a database: `memalpha copy` copies a store"),
    ]:
        assert says in refused("import", tmp_path / "new.db", *words) and not (tmp_path / "new.db").exists()


def test_audit(memalpha, refused, tmp_path: Path) -> None:
    store, chat, questions = tmp_path / "a.db", tmp_path / "chat.txt", tmp_path / "questions.txt"
    chat.write_text("user: I live in Oslo.\nuser: I moved to Rome.\n")
    questions.write_text("Where do I live?\n\nWhich city?\n")
    memalpha("read", store, chat, "--policy", "scripted:add-all", "--embedder", "hash")
    memalpha("add", store, "city: Oslo", "--timestamp", "2024-01-01")
    memalpha("add", store, "city: Rome", "--timestamp", "2024-06-01")
    memalpha("add", store, "a cat", "--namespace", "other")
    code, out, err = memalpha("audit", store, "--queries", questions, "--limit", 2)
    assert (code, err) == (0, "") and "\n  ... 1 findings more: --limit\n" in out and "namespace other: 1 entr" in out
    assert "  contradiction (values): city is said to be 'Oslo', 'Rome'\n    city#" in out
    assert "  retrieved among 10, queries: semantic 2 of 2, episodic" in out
    [report] = json.loads(memalpha("audit", store, "--namespace", "default", "--json")[1])
    assert [finding["kind"] for finding in report["findings"]] == ["contradiction", "stale", "orphan"]
    assert [entry["content"] for entry in report["findings"][1]["entries"]] == ["city: Oslo"]
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps(TASK) + "\n")
    assert json.loads(memalpha("audit", store, "--queries", tasks, "--json")[1])[0]["retrieval"]["own"] is False
    assert "none.txt: cannot be read" in refused("audit", store, "--queries", tmp_path / "none.txt")


def test_boost_and_pages(memalpha, refused, store: Path) -> None:
    memalpha("add", store, "Ana lives in Porto.", "--timestamp", "2024-06-01", "--importance", 0.1)
    for boost, city in [('{"recency": 9, "now": "2024-06-01"}', "Porto"), ('{"importance": 9}', "Lisbon")]:
        assert city in memalpha("search", store, "Ana lives", "-k", 1, "--boost", boost)[1]
    refusals = {'{"age": 1}': "--boost: age: the terms are", '{"recency": 1}': "now", "3": "--boost: a JSON"}
    for boost, says in refusals.items():
        assert says in refused("search", store, "Ana", "--boost", boost)
    [first] = json.loads(memalpha("show", store, "--limit", 1, "--json")[1])["entries"]
    [second] = json.loads(memalpha("show", store, "--after", first["id"], "--json")[1])["entries"]
    assert "Lisbon" in first["content"] and "Porto" in second["content"]


def test_an_empty_namespace_is_not_the_default_one(refused, store: Path) -> None:
    """A variable of a shell that is not set must not merge one person's memory with another's, or erase it."""
    for words in (["show"], ["add", "x"], ["erase", "--yes"], ["erase", "--drop", "--yes"]):
        assert "namespace ''" in refused(words[0], store, *words[1:], "--namespace", "")
    with MemoryStore.open(store) as memory:
        assert memory.count() == 1


def test_a_filter_that_nothing_passes_is_named_without_source(store: Path) -> None:
    words = [sys.executable, "-m", "memalpha", "search", str(store), "Ana", "--where", '{"usr": 1}']
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr.startswith("memalpha: where: no entry has the field 'usr'") and done.stderr.count("\n") == 1


def test_doctor_exits_with_1_on_problems(memalpha, store: Path) -> None:
    assert memalpha("doctor", store) == (0, "sound: 1 namespace, 1 operation, 1 version, 1 vector\n", "")
    rows = sqlite3.connect(store, isolation_level=None)
    rows.execute("DELETE FROM vectors")
    code, out, err = memalpha("doctor", store)
    assert (code, err) == (1, "") and out.startswith("vectors of default: 1 missing\n1 problem: ")
    [problem] = json.loads(memalpha("doctor", store, "--json")[1])["problems"]
    assert problem["part"] == "vectors"
    code, out, _ = memalpha("doctor", store, "--repair")
    assert code == 0 and out.startswith("repaired: vectors of default: 1 missing\nsound: ")
    rows.execute("UPDATE meta SET value = 'x'")
    assert memalpha("doctor", store)[0] == 1
    assert memalpha("doctor", store.with_name("none.db"))[0] == 2


def test_the_version(memalpha) -> None:
    assert memalpha("--version") == (0, f"{__version__}\n", "")
    assert memalpha("show")[0] == 2


def test_show_prints_the_core_memory_of_a_past_state(memalpha, store: Path) -> None:
    with MemoryStore.open(store) as memory:
        memory.core_update("Ana, 34")
        memory.core_update("Ana, 35")
    assert "core: Ana, 35\n" in memalpha("show", store)[1]
    assert "core: Ana, 34\n" in memalpha("show", store, "--as-of", 2)[1]
    assert json.loads(memalpha("show", store, "--as-of", 1, "--json")[1])["core"] == ""
    assert json.loads(memalpha("show", store, "--as-of", "2020-01-01", "--json")[1]) == {"core": "", "entries": []}


def test_as_of_digits_are_a_position_and_eight_digits_a_date(memalpha, store: Path) -> None:
    counts = {"0": 0, "1": 1, "20200101": 0, "29990101": 1, "2020-01-01": 0}
    for text, count in counts.items():
        assert len(json.loads(memalpha("show", store, "--as-of", text, "--json")[1])["entries"]) == count, text
    assert "--as-of 123456789: the log ends at position 1" in memalpha("show", store, "--as-of", "123456789")[2]


def test_eval_and_data(memalpha, tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    prepared = json.loads(memalpha("data", "prepare", "synthetic", path, "--limit", 3, "--json")[1])
    assert prepared["tasks"] == 3 and len(path.read_text().splitlines()) == 3
    summary = memalpha("data", "prepare", path, tmp_path / "checked.jsonl")[1]
    assert "gold operations in 3 of 3 tasks: " in summary and f"{prepared['questions']} questions" in summary
    code, out, err = memalpha("eval", "tasks", f"data={path}", "systems=scripted:oracle", "--json")
    assert code == 0 and err == "" and json.loads(out)[0]["accuracy"] > 0.6
    assert "locomo" in memalpha("data", "list")[1]
    assert "abstention" in memalpha("eval", "synthetic", "limit=3", "agent.embedder=hash")[1]


def test_an_unexpected_exception_keeps_its_traceback(memalpha, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memalpha.store.store.MemoryStore.list", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(sys, "argv", ["memalpha", "show", str(store)])
    with pytest.raises(ZeroDivisionError):
        main()


def test_python_dash_m_runs_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "memalpha", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--install-completion" in done.stdout
    panels = re.findall(r"^(\w.*):$", done.stdout, re.MULTILINE)
    assert panels == ["Options", *_COMMANDS] and done.stdout.index("\n  search") < done.stdout.index("\nTrain:")


def test_revert_shows_and_takes_back_what_a_source_wrote(memalpha, refused, store: Path) -> None:
    with MemoryStore.open(store) as memory:
        [home] = memory.list()
        with memory.writing_as(speaker="Mallory\x1b[2J\x9f\xa0", key="web"):
            memory.update(home.id, "Ana lives in Moscow.", source="page")
    assert (
        "Ana lives in Moscow.  [Mallory\\u001b[2J\\u009f\xa0, page, key web]" in memalpha("history", store, home.id)[1]
    )
    dry = json.loads(memalpha("revert", store, "--source", "page", "--dry-run", "--json")[1])
    change = {"id": home.id, "before": "Ana lives in Moscow.", "after": "Ana lives in Lisbon.", "conflict": ""}
    assert dry == {"changes": [change], "conflicts": [], "position": 2, "applied": False}
    out = memalpha("revert", store, "--key", "web", "--since", "1")[1]
    assert "+ " in out and "1 entry reverted" in out and "--to 2" in out
    assert "Ana lives in Lisbon." in memalpha("show", store)[1]
    memalpha("undo", store, "--to", 2)
    assert "Ana lives in Moscow." in memalpha("show", store)[1]
    assert "give a source" in refused("revert", store)


def test_the_command_that_takes_a_revert_back_names_store_and_namespace(memalpha, tmp_path: Path) -> None:
    store = tmp_path / "my chats.db"
    memalpha("add", store, "Ben lives in Rome.", "--embedder", "hash")
    memalpha("add", store, "Ana lives in Lisbon.", "--namespace", "Ana & Bo", "--source", "chat")
    out = memalpha("revert", store, "--source", "chat", "--namespace", "Ana & Bo")[1]
    assert memalpha(*shlex.split(out.partition("to take this back: memalpha ")[2]))[0] == 0
    assert "Ana lives in Lisbon." in memalpha("show", store, "--namespace", "Ana & Bo")[1]
    assert "Ben lives in Rome." in memalpha("show", store)[1]


def test_a_trust_rule_of_the_command_line(memalpha, refused, store: Path, tmp_path: Path) -> None:
    with MemoryStore.open(store) as memory, memory.writing_as(speaker="Ana"):
        memory.update(memory.list()[0].id, "Ana: I live in Lisbon.")
    text = tmp_path / "web.txt"
    text.write_text("Ana: I live in Moscow.\n")
    words = ("read", store, text, "--policy", "add_all", "--speaker", "Mallory")
    assert "quarantined" in memalpha(*words, "--set", "trust.owner=Ana")[1]
    assert "[Mallory, " in memalpha("review", store)[1]
    assert "inserted" in memalpha(*words)[1], "off unless asked for"
    assert "nobody" in refused(*words, "--set", "trust.owner=Ana", "--set", "trust.nobody=1")
    assert "--speaker" in refused(*words[:2], tmp_path / "t.jsonl", *words[3:], "--namespaces", "task")
    err = refused("serve", store, "--mcp", "--read-only", "--set", "trust.owner=Ana")
    assert "trust.owner=Ana" in err and "no writer" in err


def test_review_lists_accepts_and_rejects(memalpha, refused, store: Path) -> None:
    assert memalpha("review", store)[1] == "nothing awaits a review\n"
    with MemoryStore.open(store) as memory:
        for name in ("Bob", "Mallory"):
            fact = Operation("insert", category="semantic", content=f"Ana knows {name}.\x07", speaker=name)
            memory.apply(quarantine_operation(fact, None, "a test"))
    out = memalpha("review", store)[1]
    assert "pending" in out and "Ana knows Bob.\\u0007  [Bob]" in out and "why: a test" in out
    assert "choose one" in refused("review", store, "--accept", 2, "--reject", 2)
    items = json.loads(memalpha("review", store, "--accept", 2, "--reject", 3, "--json")[1])
    assert [(item["position"], item["decision"]) for item in items] == [(2, "accepted"), (3, "rejected")]
    out = memalpha("show", store)[1]
    assert "Ana knows Bob." in out and "Mallory" not in out
    assert len(json.loads(memalpha("review", store, "--all", "--json")[1])) == 2
    assert "nothing there awaits one" in refused("review", store, "--accept", 3)


def test_no_command_prints_control_characters_of_stored_text(memalpha, store: Path, tmp_path: Path) -> None:
    hostile = "Ana\x1b[2J\x07 lives\x9b31m in \u202eotroP"
    with MemoryStore.open(store) as memory, memory.writing_as(speaker=hostile, key=hostile):
        entry = memory.insert("semantic", f"city: {hostile}", source=hostile, metadata={hostile: hostile})
        memory.core_update(hostile)
        memory.update(entry.id, f"city: {hostile}!", source=hostile)
        fact = Operation("update", id=entry.id, content=hostile, source=hostile)
        memory.apply(quarantine_operation(fact, hostile, hostile))
    text = tmp_path / "web.txt"
    text.write_text(f"Eve: {hostile}\n", encoding="utf-8")
    for name, *words in (
        *(("show",), ("search", "city"), ("ask", "Which city?"), ("history", entry.id), ("diff", 0), ("review",)),
        *(("audit",), ("doctor",), ("undo",), ("redo",), ("read", text, "--policy", "add_all"), ("consolidate",)),
        *(("add", hostile), ("revert", "--speaker", hostile), ("review", "--reject", 5), ("history", hostile)),
    ):
        _, out, err = memalpha(name, store, *words)
        assert not [mark for mark in "\x1b\x07\x9b\u202e" if mark in out + err], (name, words)


def _contents(out: str) -> list[str]:
    return [hit["entry"]["content"] for hit in json.loads(out)]


def test_min_score_leaves_out_lower_hits(memalpha, refused, store: Path) -> None:
    memalpha("add", store, "Tom likes tea.")
    words = ("search", store, "Ana lives in Lisbon.", "--route", "dense", "--json")
    hits = json.loads(memalpha(*words)[1])
    between = (hits[0]["score"] + hits[1]["score"]) / 2
    assert _contents(memalpha(*words, "--min-score", between)[1]) == ["Ana lives in Lisbon."]
    assert memalpha(*words, "--min-score", 2)[:2] == (0, "[]\n")
    assert "min_score nan: a finite number" in refused("search", store, "Ana", "--min-score", "nan")


def test_reranker_from_a_folder_sorts_the_hits(memalpha, refused, store: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="the extra embed")
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ana", "tom", "lives", "likes", "in", "lisbon", "tea", "."]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    folder = tmp_path / "cross-encoder"
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16}
    model = BertForSequenceClassification(BertConfig(vocab_size=len(words), num_labels=1, **sizes))
    model.save_pretrained(folder)

    memalpha("add", store, "Tom likes tea.")
    code, out, err = memalpha("search", store, "Ana lives", "--reranker", folder, "--json")
    assert code == 0, err
    with MemoryStore.open(store) as memory:
        plain = memory.search("Ana lives")
        expected = memory.search("Ana lives", reranker=str(folder))
    assert len({hit.score for hit in expected}) == len(plain) == 2
    assert _contents(out) == [hit.entry.content for hit in expected]
    assert [hit["explain"]["rerank"] for hit in json.loads(out)] == pytest.approx([hit.score for hit in expected])

    assert "nothing-here" in refused("search", store, "Ana", "--reranker", tmp_path / "nothing-here")
