"""Expiry: entries are hidden from their expiry on, and the log records it at that time."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from memalpha.errors import InvalidContent
from memalpha.store.checks.integrity import examine
from memalpha.store.store import MemoryStore

QUERY = "which pet in which city?"
START = datetime(2025, 1, 1, tzinfo=UTC)


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> datetime:
        return self.time

    def set(self, text: str) -> None:
        self.time = datetime.fromisoformat(text).replace(tzinfo=UTC)


def at(day: int) -> str:
    return (START + timedelta(days=day)).isoformat(timespec="microseconds")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore.open(":memory:", embedder="hash", clock=clock)


def test_every_call_ends_expired_entries_first(tmp_path: Path) -> None:
    calls = {
        "get": lambda store: store.get(store.insert("semantic", "b").id),
        "list": lambda store: store.list(),
        "search": lambda store: store.search(QUERY),
        "find": lambda store: store.find("semantic", "a"),
        "state": lambda store: store.state,
        "core": lambda store: store.core,
        "history": lambda store: store.history(next(store.log())[2].id),
        "log": lambda store: list(store.log()),
        "snapshot": lambda store: store.snapshot(),
        "diff": lambda store: store.diff(0),
        "fork": lambda store: store.fork("b"),
        "export": lambda store: store.export_jsonl(tmp_path / "a.jsonl"),
        "insert": lambda store: store.insert("semantic", "a"),
        "insert_many": lambda store: store.insert_many([{"category": "semantic", "content": "a"}]),
        "undo": lambda store: store.undo(),
        "redo": lambda store: store.redo(),
        "restore": lambda store: store.restore(0),
        "past": lambda store: store.list(as_of="2025-03-01"),
    }
    for name, call in calls.items():
        clock = Clock()
        store = MemoryStore.open(":memory:", embedder="hash", clock=clock)
        store.insert("semantic", "pet: cat", expires="2025-02-01")
        clock.set("2025-06-01")
        call(store)
        with store.rows.transaction(write=False) as rows:
            kinds = [kind for (kind,) in rows.execute("SELECT kind FROM operations ORDER BY ns, seq")]
        assert kinds[:2] == ["insert", "expired"], name


def test_the_log_does_not_depend_on_who_looked_when(tmp_path: Path) -> None:
    logs = []
    for days in ([40], [10, 20, 25, 40], range(41)):
        clock = Clock()
        with MemoryStore.open(tmp_path / f"{len(logs)}.db", embedder="hash", clock=clock) as store:
            for day in (30, 10, 20, 10):
                store.insert("semantic", f"note {store.snapshot()}: {day}", expires=at(day))
            with MemoryStore.open(tmp_path / f"{len(logs)}.db", clock=clock) as other:
                for number, day in enumerate(days):
                    clock.time = START + timedelta(days=day)
                    (store, other)[number % 2].search("note")
            store.insert("semantic", "after all")
            logs.append(list(store.log()))
            assert [entry.content[-2:] for entry in store.list(as_of=at(15))] == ["30", "20"]
            assert [time for _, time, done in store.log() if done.kind == "expired"] == [
                at(d) for d in (10, 10, 20, 30)
            ]
        assert examine(tmp_path / f"{len(logs) - 1}.db").problems == []
    assert logs[0] == logs[1] == logs[2]


def test_expiry_is_set_kept_changed_and_cleared(store: MemoryStore, clock: Clock) -> None:
    first = store.insert("semantic", "a: 1", expires="2025-02-01T02:00+02:00")
    assert store.update(first.id, "a: 2").expires == at(31) == first.expires
    assert store.update(first.id, "a: 2", expires="2025-03-01").expires == at(59)
    second = store.insert_many([{"category": "semantic", "content": "b", "expires": "2025-02-01"}])[0]
    assert second.expires == at(31)
    assert store.list(where={"expires": {"$lt": "2025-02-02"}}) == [second]
    assert [hit.entry for hit in store.search("b", where={"expires": "2025-02-01"})] == [second]
    assert store.update(first.id, "a: 2", expires="").expires is None
    store.undo()
    assert store.get(first.id).expires == at(59)
    store.redo()
    clock.set("2026-01-01")
    assert [entry.content for entry in store.list()] == ["a: 2"]
    for wrong in ("tomorrow", 7, "0001-01-01T00:00+14:00"):
        with pytest.raises(InvalidContent, match="expires"):
            store.insert("semantic", "c", expires=wrong)  # pyright: ignore
        with pytest.raises(InvalidContent, match="fact 0: expires"):
            store.insert_many([{"category": "semantic", "content": "c", "expires": wrong}])


def test_time_is_not_undone(store: MemoryStore, clock: Clock) -> None:
    city = store.insert("semantic", "city: Oslo")
    pet = store.insert("semantic", "pet: cat", expires="2025-02-01")
    store.update(pet.id, "pet: dog")
    store.update(city.id, "city: Rome")
    store.undo()
    store.undo()
    clock.set("2025-02-01")
    assert store.redo() is not None  # not that of the entry that is gone
    assert [entry.content for entry in store.list()] == ["city: Rome"] and store.redo() is None
    assert [done.content for done in iter(store.undo, None)] == ["city: Rome", "city: Oslo"]
    assert store.list() == []
    assert [done.content for done in iter(store.redo, None)] == ["city: Oslo", "city: Rome"]
    store.restore(2)
    assert [entry.content for entry in store.list()] == ["city: Oslo"]  # brought back past its time, gone at once
    assert [done.id for done in iter(store.undo, None)] == [city.id]
