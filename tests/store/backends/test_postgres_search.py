"""PostgreSQL searches, filters and copies against SQLite's."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from filter_strategies import wheres
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memalpha.errors import DamagedStore, StoreError
from memalpha.store.embedding import normalize
from memalpha.store.filters import parse_filter
from memalpha.store.io.copy import copy_store
from memalpha.store.schema import Category, MemorySchema
from memalpha.store.search.boost import Boost
from memalpha.store.search.ranking import ROUTES
from memalpha.store.store import MemoryStore
from memalpha.types import MemoryEntry

search = pytest.importorskip("memalpha.store.backends.postgres.search")
search_queries = pytest.importorskip("memalpha.store.backends.postgres.search_queries")
filters = pytest.importorskip("memalpha.store.backends.postgres.filters")
postgres_rows = pytest.importorskip("memalpha.store.backends.postgres.namespace")
pytestmark = pytest.mark.postgres
WORDS = ["ana", "lives", "oslo", "likes", "tea", "bike", "moved", "lisbon", "dog", "cat", "work", "garden", "piano"]
SCHEMA = MemorySchema("own", (Category("a", ""), Category("semantic", "")))
HARD = [  # metadata that jsonb refuses or compares otherwise
    {"p": "a\0b", "q": 2**53 + 1}, {"p": "\ud800", "q": float(2**53)}, {"p": 10**400}, {"p": 1e23, "q": 10**23},
    {"p.x": 1, "p": {"x": 2}}, {"p": {"x.y": True, "x": {"y": 2}}}, {'q": "a': 1}, {"q": "caf\u00e9 \U0001f600"},
]  # fmt: skip


def facts(number: int, seed: int = 1) -> list[dict]:
    rng = random.Random(seed)
    generated = []
    for index in range(number):
        fact = {
            "category": rng.choice(["a", "semantic"]),
            "content": " ".join(rng.choices(WORDS, k=rng.randint(2, 9))) + f" {index}",
            "timestamp": rng.choice([None, f"2024-05-{rng.randint(1, 28):02}", "2024-05-01T23:30-12:00", "20240510"]),
            "importance": rng.choice([0.0, 1.0, 2.5]),
            "metadata": rng.choice([{}, {"p": index % 3}, {"p": "a", "q": [1, "ab"]}, {"p": {"x": {"y": 2.5}}}, *HARD]),
        }
        if index % 2:
            fact |= {"source": rng.choice(["a", "ab"]), "chunk": rng.choice([None, 0, 1, 2]), "turn": str(index)}
        generated.append(fact)
    return generated


@contextmanager
def both_stores(postgres_url: str) -> Iterator[tuple[MemoryStore, MemoryStore]]:
    """Yield an empty store in PostgreSQL and one in SQLite."""
    with MemoryStore.open(postgres_url, SCHEMA, "hash") as remote, MemoryStore.open(":memory:", SCHEMA, "hash") as lite:
        yield remote, lite


def alike(left, right) -> bool:
    """Return True if two searches returned the same entries with the same score parts."""
    pairs = list(zip(left, right, strict=True))
    return all(x.entry == y.entry and x.explain.keys() == y.explain.keys() for x, y in pairs) and all(
        abs(x.score - y.score) < 1e-3 and all(abs(x.explain[part] - y.explain[part]) < 1e-3 for part in x.explain)
        for x, y in pairs
    )


def test_searches_agree_with_sqlite(postgres_url: str) -> None:
    with both_stores(postgres_url) as (remote, local):
        other = remote.namespace("other")
        for fact in facts(40, seed=2):
            other.insert(**fact)
        for store in (remote, local):
            for fact in facts(70):
                store.insert(**fact)
            ids = [entry.id for entry in store.list()]
            store.update(ids[3], "ana moved to a garden in lisbon")
            store.delete(ids[4])
            store.insert("a", "here and gone", expires="2024-01-01")
        texts = ["ana lives in lisbon", "dog cat", "garden 7 garden", "nothing of it"]
        more = [
            {}, {"category": "a"}, {"as_of": 30}, {"where": {"p": 1}, "as_of": 60},
            {"where": {"timestamp": {"$gte": "2024-05-10"}}, "boost": Boost(0.5, 0.3, now="2024-06-01")},
            {"where": {"content": {"$contains": "tea"}, "importance": {"$gt": 0}}},
        ]  # fmt: skip
        for route in ROUTES:
            for chosen in more:
                for query in texts[:2] if chosen else texts:
                    left, right = (s.search(query, 8, route=route, **chosen) for s in (remote, local))
                    assert alike(left, right), (route, chosen, query)
        assert alike(remote.search_many(texts, 5)[2], local.search_many(texts, 5)[2])
        assert [h.around for h in remote.search("dog", around=20)] == [h.around for h in local.search("dog", around=20)]
        assert remote.search("dog", where={"p": "nobody"}) == remote.search("dog", 0) == []
        with pytest.raises(StoreError, match="route"):
            remote.search("dog", route="nearest")  # pyright: ignore
        with pytest.raises(StoreError, match="float32"):
            MemoryStore.open(postgres_url, vectors="int8")


@pytest.fixture(scope="module")
def filled(postgres) -> Iterator[MemoryStore]:
    with MemoryStore.open(postgres.url(f"filters_{os.getpid()}"), SCHEMA, "hash") as store:
        store.insert_many(facts(80, seed=3))
        yield store


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=wheres)
def test_server_filters_agree_with_matches(filled: MemoryStore, where) -> None:
    check(filled, where)


numbers = [2**53, 2**53 + 1, 1e23, 10**23, 10**400, float("inf"), float("nan"), -0.0, True, None, 0, 1.5]
odd = st.sampled_from([*numbers, "\0", "\ud800", "a\0b", "caf\u00e9", "'; --", "%", "\\"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    field=st.sampled_from(["p", "q", "p.x", "p.x.y", "metadata.p", "content", "id", "turn", "importance", "chunk"]),
    operator=st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$contains", "$in"]),
    operand=odd,
    opposite=st.booleans(),
)
def test_unusual_operands_agree_with_matches(filled: MemoryStore, field, operator, operand, opposite) -> None:
    where = {field: {operator: [operand] if operator == "$in" else operand}}
    check(filled, {"$not": where} if opposite else where)


def check(store: MemoryStore, where) -> None:
    chosen = parse_filter(where)
    assert chosen is not None
    everything: list[MemoryEntry] = store.list()
    expected = {entry.id for entry in everything if chosen.matches(entry)}
    hits = store.search("ana likes tea", 100, where=where, route="bm25")
    assert {hit.entry.id for hit in hits} == expected
    assert all(verdict in (None, id in expected) for id, verdict in verdicts(store, where))


def verdicts(store: MemoryStore, where) -> list[tuple]:
    """The entries' ids, and what the server says of each."""
    chosen = parse_filter(where)
    assert chosen is not None
    sql = filters.sql_verdict(chosen)
    query = f"SELECT v.id, {sql.sql} FROM (SELECT v.*, {filters.PARSED_METADATA} FROM versions v WHERE v.ns = ?) v"
    with store._namespace.transaction(write=False) as connection:
        return connection.execute(query, (*sql.values, store._namespace.scope.namespace_id)).fetchall()


def test_the_server_decides_filters_where_it_can(filled: MemoryStore) -> None:
    sure = [
        {"p": 1}, {"p": {"$ne": 1}}, {"p": {"$gt": 0, "$lte": 1.5}}, {"q": {"$contains": "ab"}}, {"p": None},
        {"p.x.y": 2.5}, {"p": {"$in": ["a", 2, True]}}, {"p": {"x": {"y": 2.5}}}, {"$not": {"p": {"$gt": "Z"}}},
        {"importance": {"$gt": 0}}, {"content": {"$contains": "tea"}}, {"timestamp": None},
    ]  # fmt: skip
    odd = {entry.id for entry in filled.list() if entry.metadata in (*HARD[:2], HARD[-1])}  # \\u0000, \\ud8..
    for where in sure:
        assert {id for id, verdict in verdicts(filled, where) if verdict is None} <= odd, where
    near = [id for id, verdict in verdicts(filled, {"timestamp": {"$gte": "2024-05-10"}}) if verdict is None]
    written = {entry.id: entry.timestamp for entry in filled.list()}
    assert near and {written[id] for id in near} <= {"20240510", *(f"2024-05-{day:02}" for day in range(8, 13))}
    assert {verdict for _, verdict in verdicts(filled, {"q": {"$lt": 2**60}})} == {None}  # decimals are no floats there


def test_writes_of_another_process_are_seen_at_once(postgres_url: str) -> None:
    with MemoryStore.open(postgres_url, SCHEMA, "hash") as first, MemoryStore.open(postgres_url) as second:
        entry = first.insert("a", "the cat of ana")
        first.insert("a", "a dog")
        before = first.search("cat ana")
        assert second.search("cat ana") == before
        for number in range(20):
            second.namespace("noise").insert("a", f"the cat of ana {number}")
        assert first.search("cat ana") == before
        second.update(entry.id, "the parrot of ana")
        assert "parrot" in first.search("parrot")[0].entry.content
        second.delete(entry.id)
        assert [hit.entry.content for hit in first.search("parrot")] == ["a dog"]


def test_a_large_memory_is_searched_by_candidates(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "EXHAUSTIVE_UP_TO": 100,
        "NEAREST": 60,
        "LEXICAL": 60,
        "SAMPLED": 60,
        "_MAX_POSTINGS": 100,
    }.items():
        monkeypatch.setattr(search if name == "EXHAUSTIVE_UP_TO" else search_queries, name, value)
    rng = random.Random(5)
    with both_stores(postgres_url) as (remote, local):
        words = [f"{rng.choice(WORDS)}{number}" for number in range(150)]
        many = [{"category": "a", "content": " ".join(rng.sample(words, 6)) + f" {n}"} for n in range(400)]
        for store in (remote, local):
            store.insert_many(many)
        texts = [" ".join(rng.sample(fact["content"].split(), 3)) for fact in many[::20]]
        narrowed: list[bool] = []
        candidates = search_queries.SearchQueries.candidates

        def counted(self, *arguments):
            selection = candidates(self, *arguments)
            narrowed.append(selection is not None and len(selection.created) < 400)
            return selection

        monkeypatch.setattr(search_queries.SearchQueries, "candidates", counted)
        both = [({h.entry.id for h in remote.search(q)}, {h.entry.id for h in local.search(q)}) for q in texts]
        assert len(narrowed) == len(texts) and all(narrowed)
        assert sum(len(left & right) for left, right in both) >= 0.8 * 10 * len(texts)
        assert all(alike(remote.search(q, exact=True), local.search(q)) for q in texts[:3])
        assert len(narrowed) == len(texts)  # no more than before
        assert len(remote.search(texts[0], 10, where={"content": {"$contains": "7"}})) == 10
        for number in range(80):  # what is gone takes nobody's postgres_url among the candidates
            remote.delete(remote.insert("a", f"{words[0]} {words[1]} {number}").id)
        living = {hit.entry.id for hit in remote.search(f"{words[0]} {words[1]}")}
        assert len(living & {hit.entry.id for hit in local.search(f"{words[0]} {words[1]}")}) >= 8
        remote.delete(remote.search(texts[0])[0].entry.id)
        monkeypatch.setattr(search_queries, "NEAREST", 5000)  # more than remote are: then all are looked at
        assert len(remote.search(texts[0], 100)) == 100 and not narrowed[-1]


class Scattered:
    """Vectors that say nothing of their texts."""

    name, dim = "scattered", 16

    def encode(self, texts):
        rows = [np.random.default_rng(list(text.encode())).standard_normal(self.dim) for text in texts]
        return normalize(np.array(rows))


def test_candidates_are_found_by_their_words_alone(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "EXHAUSTIVE_UP_TO": 100,
        "NEAREST": 20,
        "LEXICAL": 20,
        "SAMPLED": 20,
        "_MAX_POSTINGS": 100,
    }.items():
        monkeypatch.setattr(search if name == "EXHAUSTIVE_UP_TO" else search_queries, name, value)
    monkeypatch.setattr(search_queries, "_HNSW_SCAN", search_queries._HNSW_SCAN.replace("'300'", "'20'"))
    with MemoryStore.open(postgres_url, SCHEMA, Scattered()) as store:
        texts = [f"fact {number}" if number % 40 else f"rare{number} fact" for number in range(400)]
        store.insert_many([{"category": "a", "content": text} for text in texts])
        for number in range(0, 400, 40):
            best = store.search(f"rare{number}", 1, route="flat")[0]
            assert best.entry.content == f"rare{number} fact" and best.explain["bm25"] > 0


def test_words_that_are_missing_are_damage(postgres_url: str, postgres) -> None:
    with MemoryStore.open(postgres_url, SCHEMA, "hash") as store:
        store.insert("a", "a cat")
        postgres.run(f"DELETE FROM {postgres_url.rpartition('schema=')[2]}.postings")
        with pytest.raises(DamagedStore, match="doctor --repair"):
            store.search("cat")


def test_a_round_trip_copy_is_the_same_store(postgres_url: str, tmp_path, postgres) -> None:
    file, back = tmp_path / "a.db", tmp_path / "b.db"
    with MemoryStore.open(file, SCHEMA, "hash") as store, store.namespace("other") as other:
        entry = store.insert("a", "ana: lives in Oslo", metadata={"n": 1e23})
        store.update(entry.id, "ana: lives in Rome")
        store.insert("semantic", "a trip", timestamp="2024-05-01")
        store.undo()
        erased = other.insert("a", "a secret")
        other.erase(erased.id)
        other.insert("a", "no secret")
        assert copy_store(file, postgres_url) == {"default": 4, "other": 3}
        assert copy_store(postgres_url, back) == {"default": 4, "other": 3}
        near = f"{postgres_url.rpartition('schema=')[2]}.vectors_near"
        is_valid = postgres.run(f"SELECT indisvalid FROM pg_index WHERE indexrelid = '{near}'::regclass")
        assert is_valid == [(True,)]  # anew, after the vectors had come
        for where in (postgres_url, back):
            with MemoryStore.open(where) as copied:
                for name in ("default", "other"):
                    original, copy = store.namespace(name), copied.namespace(name)
                    assert list(copy.log()) == list(original.log()) and copy.state == original.state
                    assert alike(copy.search("ana in rome"), original.search("ana in rome"))
                assert [e.content for e in copied.list(as_of=1)] == ["ana: lives in Oslo"]
        with MemoryStore.open(back) as copied:
            assert copied.redo() is not None and copied.search("trip")[0].entry.content == "a trip"
    for target in (postgres_url, back):
        with pytest.raises(StoreError, match="already"):
            copy_store(file, target)


def test_a_failed_copy_leaves_nothing(postgres_url: str, tmp_path, postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    file, fill = tmp_path / "a.db", postgres_rows.fill_missing_postings
    with MemoryStore.open(file, SCHEMA, "hash") as store:
        store.insert("a", "a cat")
        store.namespace("zz").insert("a", "a dog")

    def filled(scope):
        if scope.name == "zz":
            raise StoreError("the server has had enough")
        fill(scope)

    monkeypatch.setattr(postgres_rows, "fill_missing_postings", filled)
    with pytest.raises(StoreError, match="'zz': the server"):
        copy_store(file, postgres_url)
    with pytest.raises(StoreError, match="no such store"):  # no empty tables either
        MemoryStore.open(postgres_url, create=False)
    schema = postgres_url.rpartition("schema=")[2]
    assert postgres.run(f"SELECT FROM pg_namespace WHERE nspname = '{schema}'") == []
    with MemoryStore.open(postgres_url, SCHEMA, "hash") as remote, pytest.raises(StoreError, match="'zz': the server"):
        copy_store(file, postgres_url)
    with MemoryStore.open(postgres_url, create=False) as remote:  # earlier entries stay
        assert remote.namespaces() == []
    with pytest.raises(StoreError, match="no such store"):
        copy_store(tmp_path / "none.db", tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()


def test_a_store_of_many_namespaces_is_copied(postgres_url: str, tmp_path) -> None:
    file, back = tmp_path / "a.db", tmp_path / "b.db"
    with MemoryStore.open(file, SCHEMA, "hash") as store:
        for number in range(60):  # more than have a lock each
            store.namespace(f"user {number}").insert("a", f"fact {number}")
    expected = dict.fromkeys(sorted(f"user {number}" for number in range(60)), 1)
    assert copy_store(file, postgres_url) == expected == copy_store(postgres_url, back)
    with MemoryStore.open(postgres_url, namespace="user 7") as remote:
        assert [entry.content for entry in remote.list()] == ["fact 7"]


def test_nothing_depends_on_statistics_of_the_tables(postgres_url: str) -> None:
    """Nothing is analyzed here: by loops over a namespace for each of its entries a search would read millions of rows,
    and a look for one content or id the whole namespace."""
    rng, size = random.Random(7), 1500
    many = [{"category": "a", "content": " ".join(rng.choices(WORDS, k=6)) + f" {n}"} for n in range(size)]
    query = (
        "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_xact_user_tables "
        f"WHERE schemaname = '{postgres_url.rpartition('schema=')[2]}' AND relname <> 'namespaces'"
    )
    with MemoryStore.open(postgres_url, SCHEMA, "hash") as store:
        store.insert_many(many)
        for least, most, call in (
            (size, 8 * size, lambda: store.search("ana likes tea")),
            (size, 8 * size, lambda: store.search("tea", where={"p": {"$gt": 3}})),
            (size, 8 * size, lambda: store._namespace.vectors.count_unindexed()),
            (0, 100, lambda: store.insert("a", "one more")),
            (0, 100, lambda: store.update(store.list(limit=1)[0].id, "one other")),
        ):
            with store._namespace.transaction() as connection:
                before = connection.execute(query).fetchone()[0]
                call()
                assert least <= connection.execute(query).fetchone()[0] - before <= most


def test_session_settings_are_restored(postgres_url: str) -> None:
    query = "SELECT current_setting('enable_nestloop')"
    with MemoryStore.open(postgres_url, SCHEMA, "hash") as store:
        store.insert("a", "a cat")
        for before in ("off", "on"):
            with store._namespace.transaction() as connection:
                connection.execute(f"SET LOCAL enable_nestloop = {before}")
                postgres_rows.fill_missing_postings(store._namespace.scope)
                assert store._namespace.vectors.count_unindexed() == 0 and connection.execute(query).fetchone() == (
                    before,
                )
