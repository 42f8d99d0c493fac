"""Provenance of writes, reverting the writes of others, and reviews of quarantined operations."""

import asyncio
from pathlib import Path

import pytest
from stores import new, quarantine

from memalpha.errors import DamagedStore, InvalidContent, StoreError, UnknownEntry
from memalpha.store.async_store import AsyncMemoryStore
from memalpha.store.store import MemoryStore
from memalpha.types import MemoryEntry, Operation


def contents(store: MemoryStore) -> list[str]:
    return [entry.content for entry in store.list()]


@pytest.fixture
def poisoned() -> MemoryStore:
    """Three facts of Ana's chat, then a web page that overwrites one, deletes one, adds one and rewrites the core."""
    store = new()
    with store.writing_as(speaker="Ana", key="phone"):
        home = store.insert("semantic", "Ana: I live in Porto.", source="chat", timestamp="2024-05-01")
        allergy = store.insert("semantic", "Ana: I am allergic to peanuts.", source="chat")
        store.insert("semantic", "Ana: I have a cat.", source="chat")
        store.core_update("Ana, Porto", source="chat")
    with store.writing_as(speaker="Mallory"):
        store.update(home.id, "Ana lives in Moscow.", source="web")
        store.delete(allergy.id, source="web")
        store.insert("semantic", "Ana trusts Mallory.", source="web")
        store.core_update("Ana, Moscow", source="web")
    return store


def provenance(record: MemoryEntry | Operation) -> tuple[str | None, str | None]:
    return record.speaker, record.key


def test_log_entries_and_history_say_who_wrote(tmp_path: Path) -> None:
    store = new(tmp_path / "a.db")
    with store.writing_as(key="phone"):
        with store.writing_as(speaker="Ana"):
            entry = store.insert("semantic", "city: Oslo")
        store.insert_many([{"category": "semantic", "content": "pet: cat"}])
        store.apply(Operation("update", id=entry.id, content="city: Rome", speaker="Ben"))
    store.delete(entry.id)
    assert [provenance(done) for _, _, done in store.log()] == [
        ("Ana", "phone"),
        (None, "phone"),
        ("Ben", "phone"),
        (None, None),
    ]
    assert [provenance(version) for version in store.history(entry.id)] == [("Ana", "phone"), ("Ben", "phone")]
    store.undo()
    assert provenance(store.get(entry.id)) == ("Ben", "phone")
    store.export_jsonl(tmp_path / "log.jsonl")
    with new() as copy:
        copy.import_jsonl(tmp_path / "log.jsonl")
        assert [done for *_, done in copy.log()] == [done for *_, done in store.log()]
    assert store.state == store.state.replay(store.schema, [done for *_, done in store.log()])
    store.erase(entry.id)
    assert all(provenance(done) == (None, None) for *_, done in store.log() if done.kind == "erased")
    with pytest.raises(InvalidContent, match="speaker"), store.writing_as(speaker="a\0"):
        pass
    store.close()


def test_an_asynchronous_store_passes_the_writer_on() -> None:
    async def use() -> None:
        async with await AsyncMemoryStore.open(":memory:", embedder="hash") as store:
            with store.writing_as(speaker="Ana"):
                assert (await store.insert("semantic", "pet: cat")).speaker == "Ana"
            assert (await store.insert("semantic", "pet: dog")).speaker is None

    asyncio.run(use())


@pytest.mark.parametrize("selection", [{"source": "web"}, {"speaker": "Mallory"}, {"since": 4}])
def test_revert_restores_what_was_overwritten_and_deleted(poisoned: MemoryStore, selection: dict) -> None:
    before = poisoned.state
    dry = poisoned.revert(**selection, dry_run=True)
    assert poisoned.state == before and not dry.applied and poisoned.snapshot() == 8
    done = poisoned.revert(**selection)
    assert done.changes == dry.changes and len(done.changes) == 4 and not done.conflicts
    assert contents(poisoned) == ["Ana: I live in Porto.", "Ana: I am allergic to peanuts.", "Ana: I have a cat."]
    assert poisoned.core == "Ana, Porto"
    home = poisoned.list()[0]
    assert (home.source, home.timestamp, *provenance(home)) == ("chat", "2024-05-01", "Ana", "phone")
    assert all(op.reason.startswith("revert: ") for *_, op in poisoned.log(done.position))
    assert poisoned.revert(**selection, dry_run=True).changes == () or "since" in selection
    poisoned.restore(done.position)
    assert poisoned.state == before


def test_what_somebody_else_changed_since_is_a_conflict(poisoned: MemoryStore) -> None:
    home, pet = poisoned.list()[0], poisoned.list()[-1]
    poisoned.update(home.id, "Ana: I live in Lisbon.", source="chat-2")
    poisoned.delete(pet.id)
    done = poisoned.revert(source="web")
    assert [(item.id, item.conflict) for item in done.conflicts] == [(home.id, "somebody else changed it since")]
    assert contents(poisoned) == ["Ana: I live in Lisbon.", "Ana: I am allergic to peanuts.", "Ana: I have a cat."]
    assert pet.id not in [item.id for item in done.changes], "it was deleted by somebody else, so nothing remains"


def test_an_earlier_content_comes_back_beside_another_entry_that_holds_it() -> None:
    store = new()
    entry = store.insert("semantic", "city: Oslo", source="chat")
    store.update(entry.id, "city: Rome", source="web")
    store.insert("semantic", "city: Oslo", source="chat")
    report = store.revert(source="web")
    assert len(report.changes) == 1 and report.conflicts == ()
    assert contents(store) == ["city: Oslo", "city: Oslo"]
    assert store.revert(source="web").changes == ()


def test_an_expired_entry_does_not_come_back() -> None:
    store = new()
    entry = store.insert("semantic", "code: 7", expires="2020-01-01", source="chat")
    kept = store.insert("semantic", "city: Oslo", source="web", expires="2020-01-01")
    assert store.list() == [] and store.revert(source="web").changes == () == store.revert(source="web").conflicts
    with pytest.raises(UnknownEntry):
        store.get(kept.id)
    assert store.history(entry.id)


def test_a_revert_of_everything_needs_a_word() -> None:
    with pytest.raises(StoreError, match="give a source, a speaker, a key or a moment"):
        new().revert()


def test_a_quarantined_operation_waits_for_its_review(tmp_path: Path) -> None:
    store = new(tmp_path / "a.db")
    home = store.insert("semantic", "Ana: I live in Porto.")
    store.core_update("Ana")
    state = store.state
    lie = Operation("update", id=home.id, content="Ana lives in Moscow.", speaker="Mallory", metadata={"a": 1})
    fact = Operation("insert", category="semantic", content="Ana has a dog.", speaker="Bob")
    core = Operation("core_update", content="Ana and Bob")
    positions = [
        quarantine(store, lie, home.content),
        quarantine(store, fact, None),
        quarantine(store, core, "Ana"),
        quarantine(store, Operation("delete", id=home.id), home.content),
    ]
    assert store.state == state and not store.search("Moscow dog", min_score=0.9, route="bm25")
    assert store.undo().kind == "core_update" and store.redo().kind == "core_update"
    items = store.quarantined()
    assert [(item.position, item.operation.kind, item.reason) for item in items] == [
        (position, kind, "said by somebody else")
        for position, kind in zip(positions, ("update", "insert", "core_update", "delete"), strict=True)
    ]
    assert items[0].operation.speaker == "Mallory" and items[0].operation.metadata == {"a": 1}
    assert store.review(positions[0], accept=False).decision == "rejected"
    assert store.review(positions[1], accept=True).operation.speaker == "Bob"
    store.review(positions[2], accept=True)
    assert contents(store) == ["Ana: I live in Porto.", "Ana has a dog."] and store.core == "Ana and Bob"
    assert store.search("dog", 1)[0].entry.speaker == "Bob"
    store.update(home.id, "Ana: I live in Lisbon.")
    with pytest.raises(StoreError, match="was changed since"):
        store.review(positions[3], accept=True)
    assert [item.position for item in store.quarantined()] == positions[3:]
    assert len(store.quarantined(pending=False)) == 4
    with pytest.raises(StoreError, match="nothing there awaits one"):
        store.review(positions[0], accept=True)
    assert store.state == store.state.replay(store.schema, [done for *_, done in store.log()])
    store.close()


def test_an_entry_is_erased_with_the_quarantine_that_it_came_from() -> None:
    store = new()
    fact = Operation("insert", category="semantic", content="Ana's secret")
    positions = [quarantine(store, fact, None) for _ in range(3)]
    for position in positions[:2]:  # the second one changes nothing
        store.review(position, accept=True)
    others = [f"quarantined#{position}" for position in positions[1:]]
    assert store.erase(others[0]) == sorted([f"quarantined#{positions[0]}", others[1], store.list()[0].id])
    assert store.erase(store.list()[0].id) == others[1:]  # awaits a review still
    assert [item.position for item in store.quarantined(pending=False)] == positions[2:]
    store.erase(others[1])
    assert "secret" not in str(list(store.log()))


def test_past_core_memories_are_erased_from_the_quarantine() -> None:
    store = new()
    store.core_update("Ana's secret")
    positions = [quarantine(store, Operation("core_update", content=text), "Ana's secret") for text in "abc"]
    store.review(positions[0], accept=True)
    store.review(positions[1], accept=False)
    last = quarantine(store, Operation("core_update", content="d"), "a")
    assert store.erase_core_history() == 1 and store.core == "a"
    assert "secret" not in str(list(store.log())) and [item.position for item in store.quarantined()] == [last]
    assert store.erase_core_history() == 0


def test_a_damaged_quarantine_is_named() -> None:
    store = new()
    store.apply(Operation("quarantined", content="x", metadata={"kind": "erased"}))
    with pytest.raises(DamagedStore, match="position 1"):
        store.quarantined()
