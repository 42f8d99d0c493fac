"""Commands that judge what others wrote: history with its writers, revert, review."""

import json
from pathlib import Path

from memalpha.store.quarantine import quarantine_operation
from memalpha.store.store import MemoryStore
from memalpha.types import Operation


def test_revert_shows_and_takes_back_what_a_source_wrote(memalpha, store: Path) -> None:
    with MemoryStore.open(store) as memory:
        [home] = memory.list()
        with memory.writing_as(speaker="Mallory\x1b[2J", key="web"):
            memory.update(home.id, "Ana lives in Moscow.", source="page")
    assert "Ana lives in Moscow.  [Mallory\\u001b[2J, page, key web]" in memalpha("history", store, home.id)[1]
    dry = json.loads(memalpha("revert", store, "--source", "page", "--dry-run", "--json")[1])
    change = {"id": home.id, "before": "Ana lives in Moscow.", "after": "Ana lives in Lisbon.", "conflict": ""}
    assert dry == {"changes": [change], "conflicts": [], "position": 2, "applied": False}
    out = memalpha("revert", store, "--key", "web", "--since", "1")[1]
    assert "+ " in out and "1 entries were reverted" in out and "--to 2" in out
    assert "Ana lives in Lisbon." in memalpha("show", store)[1]
    memalpha("undo", store, "--to", 2)
    assert "Ana lives in Moscow." in memalpha("show", store)[1]
    code, _, err = memalpha("revert", store)
    assert code == 2 and "give a source" in err


def test_a_trust_rule_of_the_command_line(memalpha, store: Path, tmp_path: Path) -> None:
    with MemoryStore.open(store) as memory, memory.writing_as(speaker="Ana"):
        memory.update(memory.list()[0].id, "Ana: I live in Lisbon.")
    text = tmp_path / "web.txt"
    text.write_text("Ana: I live in Moscow.\n")
    words = ("read", store, text, "--policy", "add_all", "--speaker", "Mallory")
    assert "quarantined" in memalpha(*words, "--set", "trust.owner=Ana")[1]
    assert "[Mallory, " in memalpha("review", store)[1]
    assert "inserted" in memalpha(*words)[1], "off unless asked for"
    code, _, err = memalpha(*words, "--set", "trust.owner=Ana", "--set", "trust.nobody=1")
    assert code == 2 and "nobody" in err
    code, _, err = memalpha(
        "read", store, tmp_path / "t.jsonl", "--policy", "add_all", "--namespaces", "task", *words[-2:]
    )
    assert code == 2 and "--speaker" in err
    code, _, err = memalpha("serve", store, "--mcp", "--read-only", "--set", "trust.owner=Ana")
    assert code == 2 and "trust.owner=Ana" in err and "no writer" in err


def test_review_lists_accepts_and_rejects(memalpha, store: Path) -> None:
    assert memalpha("review", store)[1] == "nothing awaits a review\n"
    with MemoryStore.open(store) as memory:
        for name in ("Bob", "Mallory"):
            fact = Operation("insert", category="semantic", content=f"Ana knows {name}.\x07", speaker=name)
            memory.apply(quarantine_operation(fact, None, "a test"))
    out = memalpha("review", store)[1]
    assert "pending" in out and "Ana knows Bob.\\u0007  [Bob]" in out and "why: a test" in out
    code, _, err = memalpha("review", store, "--accept", 2, "--reject", 2)
    assert code == 2 and "choose one" in err
    items = json.loads(memalpha("review", store, "--accept", 2, "--reject", 3, "--json")[1])
    assert [(item["position"], item["decision"]) for item in items] == [(2, "accepted"), (3, "rejected")]
    out = memalpha("show", store)[1]
    assert "Ana knows Bob." in out and "Mallory" not in out
    assert len(json.loads(memalpha("review", store, "--all", "--json")[1])) == 2
    code, _, err = memalpha("review", store, "--accept", 3)
    assert code == 2 and "nothing there awaits one" in err


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
