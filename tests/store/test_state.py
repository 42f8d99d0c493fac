import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.errors import DuplicateContent, InvalidContent, StoreError, UnknownCategory, UnknownEntry
from memalpha.store.fields import make_ids
from memalpha.store.schema import MEM_ALPHA, MemorySchema
from memalpha.store.state import MemoryState, inverse, plan
from memalpha.types import Operation

EMPTY = MemoryState.empty(MEM_ALPHA)


def insert(content: str, category: str = "semantic", **fields) -> Operation:
    return Operation("insert", category=category, content=content, **fields)


@pytest.mark.parametrize(
    ("content", "topic"),
    [
        ("city: Oslo", "city"),
        ("Tom's home city: Oslo", "tom-s-home-city"),
        ("one two three four five: x", "one-two"),
        ("Ana lives in Porto.", "ana-lives"),
        (": no head", "no-head"),
        ("!!!", "m"),
        ("名前: 花子", "名前"),
        ("Ünïcode: x", "ünïcode"),
        ("a" * 40 + ": x", "a" * 24),
        ("abcdefghijklmnopqrstuvw xyz: x", "abcdefghijklmnopqrstuvw"),
    ],
)
def test_ids_are_readable(content: str, topic: str) -> None:
    (id,) = make_ids([content], 0, lambda _: ())
    assert id[:-2] == topic
    assert id[-2] == "#"
    assert id[-1] in "abcdefghijkmnpqrstuvwxyz23456789"


@given(st.text(), st.integers(0, 10**6))
def test_ids_are_stable_and_grow_until_free(content: str, position: int) -> None:
    ids: list[str] = []
    for _ in range(4):
        ids += make_ids([content], position, lambda some, used=tuple(ids): set(some).intersection(used))
    assert len(set(ids)) == 4
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(ids))
    assert make_ids([content], position, lambda _: ()) == ids[:1]


@given(st.text(), st.integers(0, 10**6), st.integers(0, 10**6))
def test_ids_after_an_erasure_differ_from_all_earlier_ones(content: str, position: int, later: int) -> None:
    ids = make_ids([content], position, lambda _: (), has_erasure=True)
    assert ids not in (make_ids([content], position, lambda _: ()), make_ids([content], later, lambda _: ()))
    assert position == later or ids != make_ids([content], later, lambda _: (), has_erasure=True)


def test_duplicate_errors_name_the_entry() -> None:
    state = MemoryState.empty(MEM_ALPHA, unique_contents=True).apply(insert("a")).apply(insert("b"))
    a, b = (entry.id for entry in state.list())
    for operation, existing in [
        (insert("a", metadata={"user": "ben"}, id="key"), a),
        (insert(" a\n"), a),
        (Operation("update", id=b, content="a"), a),
        (Operation("update", id=a, content="a ", importance=1, source="s"), a),  # nothing but the origin is new
    ]:
        with pytest.raises(DuplicateContent) as caught:
            state.apply(operation)
        assert caught.value.entry_id == existing
    changed = state.apply(Operation("update", id=a, content="a", importance=0.1)).get(a)
    assert (changed.content, changed.importance, changed.version) == ("a", 0.1, 2)
    assert len(state.apply(insert("a", "episodic")).list()) == 3
    assert state.find("semantic", " a ") == state.get(a)
    assert state.find("episodic", "a") is None
    # A content that ended may be stored again.
    assert len(state.apply(Operation("delete", id=a)).apply(insert("a")).list()) == 2


def test_an_explicit_id_revives_an_ended_entry() -> None:
    state = EMPTY.apply(insert("a")).apply(insert("b"))
    a, b = state.list()
    deletion = plan(state, Operation("delete", id=a.id), 3)
    back = state.advance(deletion).apply(inverse(deletion, ""))
    assert [entry.id for entry in back.list()] == [a.id, b.id]
    assert back.get(a.id).version == 2
    assert back == state
    with pytest.raises(StoreError, match="in use: update its entry, or import into another namespace"):
        back.apply(insert("c", id=a.id))
    with pytest.raises(StoreError, match="category"):
        state.advance(deletion).apply(insert("c", "episodic", id=a.id))


@pytest.mark.parametrize(
    "fields",
    [
        {"content": ""},
        {"content": " \n"},
        {"content": "a\x00b"},
        {"content": "\ud800"},
        {"content": None},
        {"content": 3},
        {"timestamp": 2024},
        {"source": "\ud800"},
        {"chunk": -1},
        {"chunk": True},
        {"chunk": 2**63},
        {"importance": float("nan")},
        {"importance": "high"},
        {"metadata": {"a": object()}},
        {"metadata": {1: 2}},
        {"metadata": {"a": [{1: "x", "1": "y"}]}},
        {"metadata": {"a": float("inf")}},
        {"id": "has space"},
        {"id": ""},
    ],
)
def test_invalid_fields_are_refused(fields) -> None:
    with pytest.raises(InvalidContent):
        EMPTY.apply(Operation(**{"kind": "insert", "category": "semantic", "content": "a", **fields}))


def test_unknown_ids_categories_and_kinds() -> None:
    with pytest.raises(UnknownCategory, match="semantic, episodic"):
        EMPTY.apply(insert("a", "life"))
    for kind in ("update", "delete"):
        for id in ("none", None, 3):
            with pytest.raises(UnknownEntry):
                EMPTY.apply(Operation(kind, id=id, content="a"))  # pyright: ignore
    with pytest.raises(UnknownEntry):
        EMPTY.get("none")
    with pytest.raises(StoreError, match="core_update"):
        EMPTY.apply(Operation("forget"))  # pyright: ignore


def test_core_memory_is_never_truncated() -> None:
    state = EMPTY.apply(Operation("core_update", content=" Ana, 34. "))
    assert state.core == "Ana, 34."
    full = state.apply(Operation("core_update", content="word " * 512))
    assert len(full.core.split()) == 512
    with pytest.raises(InvalidContent, match="513 tokens is over the limit of 512"):
        full.apply(Operation("core_update", content="word " * 513))
    assert full.apply(Operation("core_update", content="")) == EMPTY
    with pytest.raises(StoreError, match="no core memory"):
        MemoryState.empty(MemorySchema("x", MEM_ALPHA.categories, core=False)).apply(
            Operation("core_update", content="a")
        )


def test_states_pickle() -> None:
    state = EMPTY.apply(insert("a")).apply(Operation("core_update", content="c"))
    copy = pickle.loads(pickle.dumps(state))
    assert copy == state
    assert copy.list() == state.list()
    assert hash(copy) == hash(state)
