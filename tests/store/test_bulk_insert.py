"""Bulk inserts equal single inserts, all or none."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import new

import memalpha.store.backends.namespace
from memalpha.errors import DuplicateContent, InvalidContent, StoreError, UnknownCategory
from memalpha.store import fields
from memalpha.store.embedding import HashEmbedder
from memalpha.store.memory import Memory
from memalpha.store.state import MemoryState
from memalpha.store.store import MemoryStore
from memalpha.types import Operation

facts = st.lists(
    st.fixed_dictionaries(
        {
            "category": st.sampled_from(["semantic", "episodic"]),
            "content": st.sampled_from(
                ["pet: cat", " pet: cat", "pet: dog", "city: Oslo", "値: 猫", "it's 'x'", "pet cat"]
            ),
        },
        optional={
            "timestamp": st.sampled_from([None, "", "2024-05-01"]),
            "importance": st.sampled_from([0.5, 1]),
            "metadata": st.sampled_from([None, {"user": "ana"}, {"a": [1, {"b": None}], "x": 0.5}]),
            "source": st.just("chat"),
            "chunk": st.integers(0, 2),
            "turn": st.just("D1:3"),
        },
    ),
    max_size=12,
)


def rows_of(store: MemoryStore) -> list[list[tuple]]:
    """All that the file holds but times, and vectors in no order."""
    with store.rows.transaction(write=False) as rows:
        operations = [row[:2] + row[3:] for row in rows.execute("SELECT * FROM operations ORDER BY ns, seq")]
        versions = rows.execute("SELECT * FROM versions ORDER BY ns, id, version").fetchall()
        return [operations, versions, rows.execute("SELECT * FROM vectors ORDER BY digest").fetchall()]


faulty = st.sampled_from([
    {"category": "nine"}, {"content": " "}, {"content": "x" * 50}, {"timestamp": "May"}, {"chunk": -1},
    {"metadata": {1: 2}}, {"importance": float("nan")}, {"expires": "2100-01-01"}, {"expires": "never"},
    {"category": "nine", "content": ""}, {"category": "nine", "content": "x" * 50}, {"content": 7, "chunk": -1},
    {"speaker": "Ana"}, {"speaker": "\0"},
])  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    facts, facts, st.dictionaries(st.integers(0, 11), faulty), st.booleans(), st.sampled_from([None, "Ben"]),
    st.sampled_from([2, 500]),
)  # fmt: skip
def test_facts_written_together_are_those_written_alone(before, batch, faults, erase, writer, many) -> None:
    operations = [Operation("insert", **{**fact, **faults.get(n, {})}) for n, fact in enumerate(batch)]
    stores = [MemoryStore.open(":memory:", embedder="hash", max_content=40) for _ in range(3)]
    alone, together, bulk = stores
    with pytest.MonkeyPatch.context() as patch, MemoryStore.writing_as(speaker=writer):
        patch.setattr(memalpha.store.backends.namespace, "_FEW", many)
        for store in stores:
            store.insert_many(before)
            if before and erase:
                store.erase(store.list()[0].id)
        expected = Memory.apply_each(alone, operations)
        assert outcomes(together.apply_each(operations)) == outcomes(expected)
        if not faults:
            ids = [item.entry_id if isinstance(item, DuplicateContent) else item.id for item in expected]
            assert [entry.id for entry in bulk.insert_many(batch)] == ids
    for store in stores if not faults else stores[:2]:
        assert [line[2] for line in store.log()] == [line[2] for line in alone.log()]
        assert rows_of(store) == rows_of(alone)
        assert store.search("a cat in Oslo", 20) == alone.search("a cat in Oslo", 20)
    assert alone.state == MemoryState.replay(alone.schema, (line[2] for line in alone.log()))


def outcomes(results: list[Operation | StoreError]) -> list:
    """Operations, and of each error all that it says."""
    return [item if isinstance(item, Operation) else (type(item), str(item), item.__dict__) for item in results]


def test_given_vectors_are_the_stored_ones() -> None:
    class Deaf(HashEmbedder):
        def encode(self, texts):
            assert not any(text.startswith("fact") for text in texts)
            return super().encode(texts)

    store = MemoryStore.open(":memory:", embedder=Deaf())
    vectors = np.random.default_rng(0).normal(size=(300, store.recorded_embedder.dim))
    scaled = vectors * np.geomspace(1e-150, 1e150, 300)[:, None]  # of any length
    entries = store.insert_many([{"category": "semantic", "content": f"fact {i}"} for i in range(300)], scaled)
    assert [entry.content for entry in entries] == [f"fact {i}" for i in range(300)]
    query = HashEmbedder().encode(["pet"])[0]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = {hit.entry.content: hit.score for hit in store.search("pet", 300, route="dense")}
    assert np.allclose([scores[f"fact {i}"] for i in range(300)], unit @ query, atol=2e-5)
    for wrong in (vectors[:2], vectors[:, :5], vectors * np.nan):
        with pytest.raises(StoreError, match=r"vectors: \(300, 256\)"):
            store.insert_many([{"category": "semantic", "content": f"other {i}"} for i in range(300)], wrong)


@pytest.mark.parametrize(
    ("fact", "kind", "message"),
    [
        ({"category": "nine", "content": "a"}, UnknownCategory, "fact 1: .*nine"),
        ({"category": "semantic", "content": "a", "chunk": -1}, InvalidContent, "fact 1: chunk"),
        ({"category": "semantic"}, StoreError, "fact 1: a mapping with category, content"),
        ({"category": "semantic", "content": "a", "id": "x"}, StoreError, "fact 1: a mapping"),
        ("a", StoreError, "fact 1: a mapping"),
    ],
)
def test_all_or_none(fact, kind, message) -> None:
    store = new()
    with pytest.raises(kind, match=message):
        store.insert_many([{"category": "semantic", "content": "good"}, fact])
    assert store.list() == [] and store.snapshot() == 0
    assert store.insert_many([]) == []


@pytest.mark.parametrize("erase", [False, True])
def test_ids_of_one_topic_are_those_of_single_inserts(erase: bool) -> None:
    single, bulk = new(), new()
    for store in (single, bulk):
        store.insert_many([{"category": "semantic", "content": f"user: {number}"} for number in range(40)])
        if erase:
            store.erase(store.list()[3].id)
    batch: list[dict[str, Any]] = [{"category": "semantic", "content": f"user: no. {number}"} for number in range(120)]
    ids = [entry.id for entry in bulk.insert_many(batch)]
    assert ids == [single.insert(**fact).id for fact in batch]
    assert len(set(ids)) == 120 and max(map(len, ids)) > len("user#ab")  # some need three characters


@pytest.mark.sqlite
def test_a_batch_asks_the_database_a_few_times() -> None:
    queries = []
    for size in (20, 200):
        store = new()
        store.insert_many([{"category": "semantic", "content": f"user: {number}"} for number in range(40)])
        statements: list[str] = []
        store.database.connection.set_trace_callback(statements.append)
        store.insert_many(
            [{"category": "semantic", "content": f"user: no. {number}"} for number in range(size)],
            np.ones((size, store.recorded_embedder.dim)),
        )
        queries.append(sum(statement.startswith("SELECT") for statement in statements))
    assert queries[1] <= queries[0] + 2 <= 12, queries  # nothing is asked for each fact


def test_metadata_of_a_batch_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[object] = []
    encode = fields._ENCODE
    monkeypatch.setattr(fields, "_ENCODE", lambda value: encoded.append(value) or encode(value))
    for size in (20, 80):
        store = new()
        encoded.clear()
        store.insert_many(
            {"category": "semantic", "content": f"user: {number}", "metadata": {"n": number}} for number in range(size)
        )
        assert encoded == [{"n": number} for number in range(size)]


@pytest.mark.sqlite
def test_a_batch_binds_no_column_that_no_fact_fills() -> None:
    store, statements = new(), list[str]()
    store.database.connection.set_trace_callback(statements.append)
    store.insert_many([{"category": "semantic", "content": text, "metadata": {"n": 1}} for text in ("pet: cat", "x")])
    rows = [statement for statement in statements if statement.startswith("INSERT INTO")]
    assert len(rows) == 1 + 2 * 3, rows  # the namespace; an operation, a version and a vector of each
    assert not any("NULL" in row for row in rows), rows
    store.insert_many(
        [{"category": "semantic", "content": "y", "source": "chat"}, {"category": "semantic", "content": "z"}]
    )
    assert [entry.source for entry in store.list()] == [None, None, "chat", None]


@pytest.mark.sqlite
def test_a_read_is_one_select() -> None:
    store = new()
    ids = [entry.id for entry in store.insert_many([{"category": "semantic", "content": f"{n}"} for n in range(40)])]
    statements: list[str] = []
    store.database.connection.set_trace_callback(statements.append)
    for read in (lambda: store.get(ids[3]), lambda: store.list(limit=10), store.list):
        statements.clear()
        read()
        words = [statement.split()[0] for statement in statements]
        assert words == ["BEGIN", "PRAGMA", "SELECT", "COMMIT"], statements
