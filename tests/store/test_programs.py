"""Random programs of operations: two connections to a store agree with the in-memory state at every position.

That holds whatever was undone, redone, restored, forked or erased.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import cycle, pairwise
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

contents = st.sampled_from(
    ["pet: cat", "pet: dog", " pet: dog", "city: Oslo", "値: 猫", "", "a\x00", "\ud800", "it's 'x'"]
)
places = st.integers(0, 7)
commands = st.lists(
    st.one_of(
        st.tuples(
            st.just("insert"),
            st.sampled_from(["semantic"] * 5 + ["episodic", "nine"]),
            contents,
            st.sampled_from([None, "2024-05-01"]),
            st.sampled_from([None, {"a": [1, {"b": None}]}]),
            st.sampled_from([{"chunk": 3}, {"source": "s", "turn": "1"}, {"source": "s", "chunk": 2, "turn": "2"}]),
        ),
        st.tuples(
            st.just("update"),
            places,
            contents | st.none(),  # None: the content it has
            st.sampled_from([None, "", "2025-01-01"]),
            st.sampled_from([None, 0.5]),
        ),
        st.tuples(st.just("delete"), places),
        st.tuples(st.just("core"), st.sampled_from(["", "Ana", "word " * 513])),
        st.tuples(st.just("undo")),
        st.tuples(st.just("undo")),
        st.tuples(st.just("redo")),
        st.tuples(st.just("redo")),
        st.tuples(st.just("restore"), st.floats(0, 1)),
        st.tuples(st.just("fork"), st.floats(0, 1)),
        st.tuples(st.just("erase"), places),
        st.tuples(st.just("search")),
        st.tuples(st.just("reopen")),
    ),
    min_size=8,
    max_size=30,
)


ENDING = [("insert", "semantic", "pet: bat", None, None, {}), ("insert", "semantic", "pet: hen", None, None, {})]
ENDING += [("erase", 0), ("erase", 3)]


def memory_of(state: MemoryState) -> WorkingMemory:
    return WorkingMemory(state, HASH)


def operation(command: tuple, state: MemoryState) -> Operation:
    kind, *rest = command
    if kind == "insert":
        category, content, timestamp, metadata, origin = rest
        return Operation("insert", category=category, content=content, timestamp=timestamp, metadata=metadata, **origin)
    if kind == "core":
        return Operation("core_update", content=rest[0])
    ids = [entry.id for entry in state.list()]
    id = ids[rest[0] % len(ids)] if ids and rest[0] < 7 else "nobody#x"
    if kind == "delete":
        return Operation("delete", id=id, source="s")
    content = rest[1] if rest[1] is not None or id == "nobody#x" else state.get(id).content
    origin = {} if rest[3] is None else {"source": "s", "chunk": 2, "turn": "2:1"}
    return Operation("update", id=id, content=content, timestamp=rest[2], importance=rest[3], **origin)


def outcome(run, operation: Operation) -> object:
    try:
        return run(operation)
    except MemalphaError as error:
        return type(error), str(error)


class Witness:
    """What must hold whatever the rules are: nothing here asks `plan`, `make_ids` or any other code of the store."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder  # of the store's file
        self.ids: set[str] = set()  # ever given
        self.erased_texts: set[str] = set()

    def insert(self, done: Operation) -> None:
        assert done.id and done.id not in self.ids, f"the id {done.id} was given before"
        self.ids.add(done.id)

    def erase(self, versions: list[MemoryEntry]) -> None:
        self.erased_texts |= {version.content for version in versions}

    def check_log(self, store: MemoryStore) -> None:
        positions, times, _ = zip(*store.log(), strict=True) if store.snapshot() else ((), (), ())
        assert list(positions) == list(range(1, len(positions) + 1))
        moments = [datetime.fromisoformat(time) for time in times]
        assert moments == sorted(moments) and all(moment.utcoffset() == timedelta(0) for moment in moments)

    def check_files(self, store: MemoryStore) -> None:
        """No file of the folder holds an erased text, unless some log has the same text still, or again."""
        logs = [operation for name in store.namespaces() for _, _, operation in store.namespace(name).log()]
        gone = [text for text in self.erased_texts if not any(text in (done.content or "") for done in logs)]
        files = {file: file.read_bytes() for file in self.folder.iterdir()} if self.folder else {}
        assert [(file.name, text) for file, data in files.items() for text in gone if text.encode() in data] == []


class Model:
    """Expected store: its state at every position, and which operations are in effect."""

    def __init__(self) -> None:
        self.log: list[Operation] = []
        self.states = [MemoryState.empty(MEM_ALPHA)]  # by position
        self.in_effect: list[list[int]] = [[]]  # by position: the positions an undo would go back through, oldest first
        self.undone: list[int] = []  # the positions a redo would bring back, next one last

    @property
    def now(self) -> MemoryState:
        return self.states[-1]

    def write(self, operation: Operation) -> Operation:
        """Apply an ordinary operation."""
        memory = memory_of(self.now)
        done = memory.apply(operation)
        self.undone.clear()
        self._append(done, [*self.in_effect[-1], len(self.log) + 1])
        return done

    def _append(self, done: Operation, in_effect: list[int]) -> None:
        self.states.append(self.now.apply(done))
        self.log.append(done)
        self.in_effect.append(in_effect)

    def follow(self, store: MemoryStore, goal: list[int]) -> int:
        """Append what the store appended to get to where `goal` is in effect; the number of operations."""
        added = [done for _, _, done in store.log(len(self.log))]
        for done in added:  # the steps of a restore but the last are operations like others
            self._append(done, goal if done is added[-1] else [*self.in_effect[-1], len(self.log) + 1])
        assert self.now == self.states[goal[-1] if goal else 0]
        return len(added)

    def undo(self, store: MemoryStore) -> None:
        effective = self.in_effect[-1]
        undone = store.undo()
        assert undone == (self.log[effective[-1] - 1] if effective else None)
        assert self.follow(store, effective[:-1]) == len(effective[-1:])
        self.undone += effective[-1:]

    def redo(self, store: MemoryStore) -> None:
        redone = store.redo()
        if not self.undone:
            assert redone is None and not self.follow(store, self.in_effect[-1])
            return
        position = self.undone.pop()
        assert redone == self.log[position - 1] and self.follow(store, self.in_effect[position]) == 1

    def restore(self, store: MemoryStore, position: int) -> None:
        effective, goal = self.in_effect[-1], self.in_effect[position]
        steps = store.restore(position)
        assert self.follow(store, goal) == steps
        assert self.now == self.states[position]
        if steps == 1 and goal == effective[:-1] != effective:  # what an undo would have done
            self.undone.append(effective[-1])
        elif steps == 1 and self.undone and goal == self.in_effect[self.undone[-1]]:
            self.undone.pop()
        elif steps:
            self.undone.clear()

    def fork(self, store: MemoryStore, position: int, name: str) -> None:
        fork, log = store.fork(name, as_of=position), list(store.log())
        assert list(fork.log()) == log[:position] and fork.state == self.states[position]
        assert fork.list() == self.states[position].list()
        assert fork.search(QUERY, 5) == memory_of(self.states[position]).search(QUERY, 5)
        effective = self.in_effect[position]
        assert fork.undo() == (self.log[effective[-1] - 1] if effective else None)
        assert fork.state == self.states[effective[-2] if effective[1:] else 0]
        fork.insert("semantic", "only in the fork")
        assert list(store.log()) == log

    def erase(self, store: MemoryStore, number: int, witness: Witness) -> None:
        """Erase an entry that lives or lived: every state is what it was without it."""
        ids = list(dict.fromkeys(done.id for done in self.log if done.id and done.kind != "erased"))
        if number == 7 or not ids:
            with pytest.raises(UnknownEntry):
                store.erase("nobody#x")
            return
        id = ids[number % len(ids)]
        places = [step for step, done in enumerate(self.log, 1) if done.id == id]
        stub = Operation("erased", id=f"erased#{places[0]}")
        contents = {done.content for done in self.log if done.id == id and done.content}
        same_content = {done.id for done in self.log if done.content in contents and done.id} - {id}
        witness.erase(store.history(id))
        assert store.erase(id) == sorted(same_content)
        witness.check_files(store)
        self.log = [stub if done.id == id else done for done in self.log] + [Operation("erased")]
        before, self.states = self.states, [MemoryState.empty(MEM_ALPHA)]
        for done in self.log:
            self.states.append(self.now.apply(done))
        for old, new in zip(before, self.states, strict=False):
            assert [entry for entry in old.list() if entry.id != id] == new.list() and old.core == new.core
        self.in_effect = [[step for step in effective if step not in places] for effective in self.in_effect]
        self.in_effect.append(self.in_effect[-1])
        self.undone = []
        for step in range(1, len(self.states)):  # what would wait for a redo if the entry had never been
            old, new = self.in_effect[step - 1 : step + 1]
            # A restore that took back nothing but what is erased would have found the memory as it was.
            if old == new and (
                self.log[step - 1].kind == "erased" or self.states[step - 1].core == self.states[step].core
            ):
                continue
            if old and new == old[:-1]:
                self.undone.append(old[-1])
            elif self.undone and new == self.in_effect[self.undone[-1]]:
                self.undone.pop()
            else:
                self.undone.clear()
        assert [done for _, _, done in store.log()] == self.log


def check_program(program: list, opened: Callable[[], MemoryStore], folder: Path | None = None) -> Model:
    """Run it on the store, by turns through two connections, and on the model; compare after every step."""
    store, other, model, witness = opened(), opened(), Model(), Witness(folder)
    for number, command in enumerate(program):
        if command[0] == "reopen":
            store.close()
            store = opened()
        writer, reader = (store, other) if number % 3 else (other, store)
        if command[0] in ("reopen", "search"):
            assert writer.search(QUERY, 5) == memory_of(model.now).search(QUERY, 5)
        elif command[0] == "undo":
            model.undo(writer)
        elif command[0] == "redo":
            model.redo(writer)
        elif command[0] == "restore":
            model.restore(writer, round(command[1] * len(model.log)))
        elif command[0] == "fork":
            model.fork(writer, round(command[1] * len(model.log)), f"fork {number}")
        elif command[0] == "erase":
            model.erase(writer, command[1], witness)
        else:
            wished = operation(command, model.now)
            done = outcome(writer.apply, wished)
            assert done == outcome(model.write, wished)
            if isinstance(done, Operation) and done.kind == "insert":
                witness.insert(done)
        assert reader.state == model.now
        assert reader.list() == model.now.list()
        assert reader.core == model.now.core
        assert reader.snapshot() == len(model.log)
    compare_everything(store, model.states)
    witness.check_log(store)
    store.close()
    other.close()
    return model


def compare_everything(store: MemoryStore, states: list[MemoryState]) -> None:
    log = [done for _, _, done in store.log()]
    assert MemoryState.replay(store.schema, log).list() == states[-1].list()
    assert store.state.position == len(log) == len(states) - 1
    ids = {done.id for done in log if done.id and done.kind != "erased"}
    for position, state in enumerate(states):
        assert store.list(as_of=position) == state.list()
        assert store.search(QUERY, 3, as_of=position) == memory_of(state).search(QUERY, 3)
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
            current = [
                version
                for version in versions
                if version.valid_from <= position and (version.valid_to is None or position < version.valid_to)
            ]
            assert [version.content for version in current] == [
                state.get(id).content for _ in [0] if id in state.entries
            ]
    assert store.search(QUERY, 8) == memory_of(states[-1]).search(QUERY, 8)
    assert store.search(QUERY, 8, category="semantic") == memory_of(states[-1]).search(QUERY, 8, category="semantic")


def check_diff(diff: Diff, first: MemoryState, second: MemoryState) -> None:
    assert list(diff.removed) == [entry for entry in first.list() if entry.id not in second.entries]
    assert list(diff.added) == [entry for entry in second.list() if entry.id not in first.entries]
    assert diff.core == (None if first.core == second.core else (first.core, second.core))
    changed = {after.id: (before, after) for before, after in diff.changed}
    for id in set(first.entries) & set(second.entries):
        assert (id in changed) is not is_same_fact(first.get(id), second.get(id))
        assert changed.get(id, (first.get(id), second.get(id))) == (first.get(id), second.get(id))


A, B = (("insert", "semantic", text, None, None, {}) for text in ("pet: cat", "city: Oslo"))
SWAPPED = [A, B, ("update", 0, "c", None, None), ("update", 1, "pet: cat", None, None)]
SWAPPED += [("update", 0, "city: Oslo", "2024-01-01", 0.1), ("restore", 2 / 5)]
"""Contents that would be duplicates on the way back."""
RESTORED_EQUAL = [A, B, ("delete", 1), ("restore", 1 / 3), ("restore", 1 / 4), ("undo",), ("undo",)]
"""The facts are the same as then: one operation that changes nothing, then none."""
RESTORED_ERASED = [
    ("core", "Ana"),
    A,
    ("erase", 0),
    ("undo",),
    A,
    ("delete", 0),
    ("restore", 0.0),
    ("erase", 0),
    ("redo",),
]
"""What a restore took back is erased: the undo before it still waits for its redo."""

MOVED_ERASED = [A, ("delete", 0), A, ("undo",), ("undo",), ("delete", 0), ("restore", 2 / 3), ("erase", 0), ("redo",)]
"""A restore between two operations that are erased since: as if it had found the memory as it was."""


@settings(max_examples=150, deadline=None)
@given(commands)
@example(SWAPPED)
@example(RESTORED_EQUAL)
@example(RESTORED_ERASED)
@example(MOVED_ERASED)
def test_a_store_is_its_state(program: list) -> None:
    seconds = cycle([5, 3, 9, 1])  # a clock that is set back
    store = MemoryStore.open(
        ":memory:", embedder="hash", clock=lambda: datetime(2024, 5, 1, tzinfo=UTC) + timedelta(seconds=next(seconds))
    )
    store.namespace("other").insert("semantic", "pet: parrot")
    check_program([command for command in program if command[0] != "reopen"], lambda: store.namespace("mine"))
    store.close()


@settings(max_examples=15, deadline=None)
@given(commands)
def test_a_store_on_disk_is_its_state(tmp_path_factory: pytest.TempPathFactory, program: list) -> None:
    path: Path = tmp_path_factory.mktemp("store") / "a.db"
    program = [  # texts that nobody else has, half of the time, so that an erased one is gone
        (*command[:2], f"{command[2]} of case {number}", *command[3:])
        if command[0] == "insert" and number % 2
        else command
        for number, command in enumerate([*program, *ENDING])
    ]
    model = check_program(program, lambda: MemoryStore.open(path, embedder="hash"), path.parent)
    with MemoryStore.open(path) as store, store.fork(path=path.with_name("b.db")) as fork:
        compare_everything(fork, model.states)
        assert list(fork.log()) == list(store.log())
    assert examine(path).problems == [] == examine(path.with_name("b.db")).problems


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
