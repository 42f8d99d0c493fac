"""Copies of PostgreSQL stores, and the index in memory that their transactions share."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from memalpha.errors import StoreError
from memalpha.store.backends.namespace import VectorTable
from memalpha.store.open import copy_store
from memalpha.store.schema import Category, MemorySchema
from memalpha.store.search.index import NamespaceIndex
from memalpha.store.store import MemoryStore

pytest.importorskip("psycopg")
pytestmark = pytest.mark.postgres
WORDS = ["ana", "lives", "oslo", "likes", "tea", "bike", "moved", "lisbon", "dog", "cat", "work", "garden", "piano"]
SCHEMA = MemorySchema("own", (Category("a", ""), Category("semantic", "")))


def facts(number: int, seed: int = 1) -> list[dict]:
    rng = random.Random(seed)
    return [{"category": "a", "content": " ".join(rng.choices(WORDS, k=6)) + f" {index}"} for index in range(number)]


def in_a_thread(work: Callable[[], object]) -> None:
    """Run `work` in another thread."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def contents(store: MemoryStore, query: str, **options) -> list[str]:
    return sorted(hit.entry.content for hit in store.search(query, 100, **options))


def test_a_transaction_searches_the_memory_of_its_moment(postgres_url: str) -> None:
    with MemoryStore.open(postgres_url, SCHEMA, "hash") as store:
        cat, dog, bird = (store.insert("a", f"ana has a {pet}") for pet in ("cat", "dog", "bird"))
        before = ["ana has a bird", "ana has a cat", "ana has a dog"]
        assert contents(store, "ana") == before

        def change() -> None:
            store.insert("a", "ana has a fish")
            store.update(cat.id, "ana has a parrot")
            store.delete(dog.id)
            assert contents(store, "ana") == ["ana has a bird", "ana has a fish", "ana has a parrot"]
            store.core_update("Ana")
            store.insert("a", "ana has a horse")
            assert len(contents(store, "ana")) == 4

        with store.read_transaction():
            assert store.snapshot() == 3
            in_a_thread(change)
            assert contents(store, "ana") == before and contents(store, "ana", where={"category": "a"}) == before
            assert [entry.content for entry in store.list(where={"content": {"$contains": "cat"}})] == before[1:2]
            in_a_thread(lambda: store.erase(bird.id))
            in_a_thread(lambda: contents(store, "ana"))
            assert contents(store, "ana") == before and contents(store, "ana", as_of=2) == before[1:]
        after = ["ana has a fish", "ana has a horse", "ana has a parrot"]
        assert contents(store, "ana") == after and contents(store, "ana", as_of=2) == ["ana has a cat", "ana has a dog"]


def test_an_earlier_transaction_takes_back_few_entries(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build = NamespaceIndex._build_corpus
    monkeypatch.setattr(NamespaceIndex, "_build_corpus", lambda index: built.append(index) or build(index))
    with MemoryStore.open(postgres_url, SCHEMA, "hash") as store:
        store.insert_many(facts(30))
        expected = contents(store, "ana")

        def change() -> None:
            for number in range(3):
                store.insert("a", f"ana moved {number}")
                assert len(contents(store, "ana moved", where={"content": {"$contains": "ana moved"}})) >= number + 1

        with store.read_transaction():
            store.snapshot()
            in_a_thread(change)
            assert contents(store, "ana") == expected
            in_a_thread(lambda: store.search("ana"))
            assert contents(store, "ana") == expected
        assert {f"ana moved {number}" for number in range(3)} <= {*contents(store, "ana")} and len(built) == 1


def test_what_was_undone_or_lost_is_not_found(postgres_url: str, postgres) -> None:
    schema = postgres_url.rpartition("schema=")[2]
    with MemoryStore.open(postgres_url, SCHEMA, "hash") as store:
        store.insert("a", "ana has a cat")
        with pytest.raises(ZeroDivisionError), store.transaction():
            store.insert("a", "ana has a dog")
            assert len(contents(store, "ana")) == 2
            in_a_thread(lambda: contents(store, "ana"))
            raise ZeroDivisionError
        store.insert("a", "ana has a fish")  # at the position of what was undone
        assert contents(store, "ana") == ["ana has a cat", "ana has a fish"]
        with store.transaction():
            with pytest.raises(StoreError):
                store.insert_many([{"category": "a", "content": "ana has a bird"}, {"category": "x", "content": "y"}])
            store.insert("a", "ana has a horse")
            assert len(contents(store, "ana")) == 3
        # A standby that lacks the last operation takes the server's place, and gets another one.
        postgres.run(
            "SET session_replication_role = replica",
            *(
                f"UPDATE {schema}.{table} SET content = 'ana has a mouse' WHERE content LIKE '%horse'"
                for table in ("operations", "versions")
            ),
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'memalpha'",
        )
        assert contents(store, "ana") == ["ana has a cat", "ana has a fish", "ana has a mouse"]


def test_a_round_trip_copy_is_the_same_store(postgres_url: str, tmp_path) -> None:
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
        for where in (postgres_url, back):
            with MemoryStore.open(where) as copied:
                for name in ("default", "other"):
                    original, copy = store.namespace(name), copied.namespace(name)
                    assert list(copy.log()) == list(original.log()) and copy.state == original.state
                    assert copy.search("ana in rome") == original.search("ana in rome")
                assert [e.content for e in copied.list(as_of=1)] == ["ana: lives in Oslo"]
        with MemoryStore.open(back) as copied:
            assert copied.redo() is not None and copied.search("trip")[0].entry.content == "a trip"
    for target in (postgres_url, back):
        with pytest.raises(StoreError, match="already"):
            copy_store(file, target)


def test_a_failed_copy_leaves_nothing(postgres_url: str, tmp_path, postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    file, extend = tmp_path / "a.db", VectorTable.extend
    with MemoryStore.open(file, SCHEMA, "hash") as store:
        store.insert("a", "a cat")
        store.namespace("zz").insert("a", "a dog")

    def extended(table, rows):
        if table._scope.name == "zz":
            raise StoreError("the server has had enough")
        extend(table, rows)

    monkeypatch.setattr(VectorTable, "extend", extended)
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
    """Nothing is analyzed here: a look for one content or id could read the whole namespace."""
    size = 1500
    query = (
        "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_xact_user_tables "
        f"WHERE schemaname = '{postgres_url.rpartition('schema=')[2]}' AND relname <> 'namespaces'"
    )
    with MemoryStore.open(postgres_url, SCHEMA, "hash") as store:
        store.insert_many(facts(size))
        for least, most, call in (
            (size, 8 * size, lambda: store.search("ana likes tea")),
            (0, 100, lambda: store.search("ana likes oslo")),
            (size, 4 * size, lambda: store.search("tea", where={"p": {"$gt": 3}})),
            (0, 100, lambda: store.insert("a", "one more")),
            (0, 100, lambda: store.update(store.list(limit=1)[0].id, "one other")),
        ):
            with store.rows.transaction() as connection:
                before = connection.execute(query).fetchone()[0]
                call()
                assert least <= connection.execute(query).fetchone()[0] - before <= most
