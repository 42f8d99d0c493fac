"""Commands that judge what others wrote: history with its writers, revert, review."""

import json
from pathlib import Path

from memalpha.store.store import MemoryStore
from memalpha.store.trust.quarantine import quarantine_operation
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
