"""Random programs of operations: two connections to a store agree with the replay of its log at every position.

That holds whatever was undone, redone, restored, forked or erased, and whatever has expired. `test_model.py` compares
programs with a memory that shares no code with the store, in files alone.
"""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memalpha.errors import MemalphaError, UnknownEntry
from memalpha.store.checks.integrity import examine
from memalpha.store.embedding import load_embedder
from memalpha.store.history import Diff
from memalpha.store.memory import WorkingMemory
from memalpha.store.schema import MEM_ALPHA
from memalpha.store.state import MemoryState, is_same_fact
from memalpha.store.store import MemoryStore
from memalpha.types import MemoryEntry, Operation

HASH = load_embedder("hash")
QUERY = "what is the value of a pet?"
START = datetime(2025, 1, 1, tzinfo=UTC)


def at(day: int) -> str:
    return (START + timedelta(days=day)).isoformat(timespec="microseconds")


contents = st.sampled_from(
    ["pet: cat", "pet: dog", " pet: dog", "city: Oslo", "値: 猫", "", "a\x00", "\ud800", "it's 'x'"]
)
places = st.integers(0, 7)
expiries = st.sampled_from([None, None, "", at(2), at(5)])
commands = st.lists(
    st.one_of(
        st.tuples(
            st.just("insert"),
            st.sampled_from(["semantic"] * 5 + ["episodic", "nine"]),
            contents,
            st.sampled_from([None, "2024-05-01"]),
            st.sampled_from([None, {"a": [1, {"b": None}]}]),
            expiries,
            st.sampled_from([{"chunk": 3}, {"source": "s", "turn": "1"}, {"source": "s", "chunk": 2, "turn": "2"}]),
        ),
        st.tuples(
            st.just("update"),
            places,
            contents | st.none(),  # None: the content it has
            st.sampled_from([None, "", "2025-01-01"]),
            st.sampled_from([None, 0.5]),
            expiries,
        ),
        st.tuples(st.just("delete"), places),
        st.tuples(st.just("core"), st.sampled_from(["", "Ana", "word " * 513])),
        *[st.tuples(st.just(kind)) for kind in ("undo", "undo", "redo", "redo", "wait", "reopen")],
        st.tuples(st.just("restore"), st.floats(0, 1)),
        st.tuples(st.just("fork"), st.floats(0, 1)),
        st.tuples(st.just("erase"), places),
    ),
    min_size=8,
    max_size=30,
)


class Clock:
    """A clock whose days are moved by hand; it is set back by seconds now and then."""

    def __init__(self) -> None:
        self.days = 0
        self.readings = 0

    def __call__(self) -> datetime:
        self.readings += 1
        return START + timedelta(days=self.days, seconds=[5, 3, 9, 1][self.readings % 4])


def operation(command: tuple, state: MemoryState) -> Operation:
    kind, *rest = command
    if kind == "insert":
        category, content, timestamp, metadata, expires, origin = rest
        return Operation("insert", None, category, content, timestamp, metadata=metadata, expires=expires, **origin)
    if kind == "core":
        return Operation("core_update", content=rest[0])
    ids = [entry.id for entry in state.list()]
    id = ids[rest[0] % len(ids)] if ids and rest[0] < 7 else "nobody#x"
    if kind == "delete":
        return Operation("delete", id=id, source="s")
    _, content, timestamp, importance, expires = rest
    content = content if content is not None or id == "nobody#x" else state.get(id).content
    origin = {} if importance is None else {"source": "s", "chunk": 2, "turn": "2:1"}
    return Operation(
        "update", id=id, content=content, timestamp=timestamp, importance=importance, expires=expires, **origin
    )


def outcome(run, operation: Operation) -> object:
    try:
        return run(operation)
    except MemalphaError as error:
        return type(error), str(error)


def replayed(store: MemoryStore, position: int | None = None) -> MemoryState:
    return MemoryState.replay(MEM_ALPHA, [done for *_, done in store.log()][:position])


def run(store: MemoryStore, command: tuple, number: int) -> None:
    """Run one command of a program, and compare what it does with the memory before it, or of then."""
    kind, *rest = command
    if kind in ("undo", "redo"):
        getattr(store, kind)()
    elif kind == "restore":
        position = round(rest[0] * store.snapshot())
        then, now = replayed(store, position).list(), store.database.now()
        store.restore(position)
        kept = [entry.content for entry in then if entry.expires is None or entry.expires > now]
        assert [entry.content for entry in store.list()] == kept
    elif kind == "fork":
        log = list(store.log())
        position = round(rest[0] * len(log))
        fork = store.fork(f"fork {number}", as_of=position)
        assert list(fork.log())[:position] == log[:position]
        assert fork.list(as_of=position) == store.list(as_of=position)
        fork.insert("semantic", "only in the fork")
        assert list(store.log()) == log
    elif kind == "erase":
        ids = list(dict.fromkeys(done.id for *_, done in store.log() if done.id and done.kind != "erased"))
        if rest[0] == 7 or not ids:
            with pytest.raises(UnknownEntry):
                store.erase("nobody#x")
            return
        store.erase(ids[rest[0] % len(ids)])
        assert ids[rest[0] % len(ids)] not in {done.id for *_, done in store.log()}
    else:
        before = store.state
        wished = operation(command, before)
        assert outcome(store.apply, wished) == outcome(WorkingMemory(before, HASH).apply, wished)


def compare_everything(store: MemoryStore) -> None:
    ids = {done.id for *_, done in store.log() if done.id and done.kind != "erased"}
    states = [replayed(store, position) for position in range(store.snapshot() + 1)]
    for position, state in enumerate(states):
        assert store.list(as_of=position) == state.list()
        assert store.search(QUERY, 3, as_of=position) == WorkingMemory(state, HASH).search(QUERY, 3)
        for id in ids:
            if id in state.entries:
                assert store.get(id, as_of=position) == state.get(id)
            else:
                with pytest.raises(UnknownEntry):
                    store.get(id, as_of=position)
    for a, b in pairwise([0, *range(0, len(states), 3), 0]):
        check_diff(store.diff(a, b), states[a], states[b])
    for id in ids:
        versions = store.history(id)
        assert [version.version for version in versions] == list(range(1, len(versions) + 1))
        for position, state in enumerate(states):
            current = [version.content for version in versions if is_current(version, position)]
            assert current == [entry.content for entry in state.entries.values() if entry.id == id]


def is_current(version: MemoryEntry, position: int) -> bool:
    return version.valid_from <= position and (version.valid_to is None or position < version.valid_to)


def check_diff(diff: Diff, first: MemoryState, second: MemoryState) -> None:
    assert list(diff.removed) == [entry for entry in first.list() if entry.id not in second.entries]
    assert list(diff.added) == [entry for entry in second.list() if entry.id not in first.entries]
    assert diff.core == (None if first.core == second.core else (first.core, second.core))
    changed = {after.id: (before, after) for before, after in diff.changed}
    for id in set(first.entries) & set(second.entries):
        assert (id in changed) is not is_same_fact(first.get(id), second.get(id))
        assert changed.get(id, (first.get(id), second.get(id))) == (first.get(id), second.get(id))


A, B = (("insert", "semantic", text, None, None, None, {}) for text in ("pet: cat", "city: Oslo"))
SWAPPED = [A, B, ("update", 0, "c", None, None, None), ("update", 1, "pet: cat", None, None, None)]
SWAPPED += [("update", 0, "city: Oslo", "2024-01-01", 0.1, None), ("restore", 2 / 5)]
"""Contents that would be duplicates on the way back."""
EXPIRED_RESTORED = [A, ("update", 0, "c", None, None, at(2)), *[("wait",)] * 3, ("restore", 0.5), ("restore", 1.0)]


@settings(max_examples=40, deadline=None)
@given(commands)
@example(SWAPPED)
@example(EXPIRED_RESTORED)
def test_a_store_is_the_replay_of_its_log(tmp_path_factory: pytest.TempPathFactory, program: list) -> None:
    clock, path = Clock(), tmp_path_factory.mktemp("store") / "a.db"

    def opened() -> MemoryStore:
        return MemoryStore.open(path, embedder="hash", clock=clock, durability="normal")

    store, other = opened(), opened()
    store.namespace("other").insert("semantic", "pet: parrot")
    for number, command in enumerate(program):
        if command[0] == "reopen":
            store.close()
            store = opened()
        elif command[0] == "wait":
            clock.days += 1
        writer, reader = (store, other) if number % 3 else (other, store)
        if command[0] not in ("reopen", "wait"):
            run(writer, command, number)
        now = store.database.now()
        assert all(entry.expires is None or entry.expires > now for entry in reader.list())
        state = replayed(writer)
        assert (reader.state, reader.list(), reader.core) == (state, state.list(), state.core)
        newest = sorted(state.list(), key=lambda entry: -entry.valid_from)
        assert reader.recent(3) == newest[:3] and reader.recent(100) == newest
        created = reader.created_at([entry.id for entry in newest])
        assert [entry.id for entry in state.list()] == sorted(created, key=created.__getitem__)
        if number % 3 == 0:
            assert reader.search(QUERY, 5) == WorkingMemory(state, HASH).search(QUERY, 5)
    compare_everything(store)
    while store.undo() is not None:
        pass
    assert store.list() == []
    times = [datetime.fromisoformat(time) for _, time, _ in store.log()]
    assert times == sorted(times) and examine(path).problems == []
    store.close()
    other.close()


@pytest.fixture
def store():
    with MemoryStore.open(":memory:", embedder="hash") as store:
        yield store


def test_a_restore_to_equal_facts_is_recorded_once(store: MemoryStore) -> None:
    first = store.add("pet: cat")
    store.delete(store.add("city: Oslo").id)
    assert store.restore(1) == 1 and store.restore(1) == 0
    assert store.undo().id == first.id and store.list() == [] and store.undo() is None


def test_an_undo_before_a_restore_of_what_is_erased_waits_for_its_redo(store: MemoryStore) -> None:
    store.core_update("Ana")
    store.erase(store.add("pet: cat").id)
    assert store.undo().kind == "core_update"
    again = store.add("pet: cat")
    store.delete(again.id)
    store.restore(0)
    store.erase(again.id)
    assert store.redo().content == "Ana" == store.core and store.redo() is None


def test_a_restore_between_erased_operations_clears_no_redo(store: MemoryStore) -> None:
    first = store.add("pet: cat")
    store.delete(first.id)
    second = store.add("pet: cat")
    assert [store.undo().kind, store.undo().kind] == ["insert", "delete"]
    store.delete(first.id)
    store.restore(4)
    store.erase(first.id)
    assert store.redo().id == second.id and store.redo() is None
    assert [entry.id for entry in store.list()] == [second.id]


@pytest.mark.parametrize("way", ["same store", "fork", "import"])
def test_an_erased_id_is_not_given_again(tmp_path: Path, way: str) -> None:
    given: set[str] = set()

    def give(store: MemoryStore, texts: list[str]) -> list[str]:
        ids = [*(entry.id for entry in store.add_many(texts[1:])), store.add(texts[0]).id]
        assert len({*ids}) == len(texts) and not given & {*ids}
        given.update(ids)
        return ids

    with MemoryStore.open(":memory:", embedder="hash") as store, MemoryStore.open(":memory:", embedder="hash") as copy:
        for number in range(20):  # an id ends in one of 32 characters while that is free
            ids = give(store, [f"pet: cat {number} {letter}" for letter in "abc"])
            store.erase(*ids[:2])
        store.erase_all()
        give(store, [f"pet: dog {number}" for number in range(30)])
        store.restore(store.snapshot() - 20)
        store.export_jsonl(tmp_path / "log.jsonl")
        copy.import_jsonl(tmp_path / "log.jsonl")
        heir = {"same store": store, "fork": store.fork("fork"), "import": copy}[way]
        give(heir, [f"pet: hen {number}" for number in range(60)])
