"""Reads from a streaming replica: own writes, a bound on what others wrote, and a replica that stops or is away."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from memalpha.errors import StoreError
from memalpha.store.store import MemoryStore

pytest.importorskip("psycopg")
from memalpha.store.backends.postgres.url import ServerOptions, split_host, split_options

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def replica(postgres):
    from postgres_server import replica as start_replica

    with start_replica(postgres) as running:
        yield running


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_options_of_a_url() -> None:
    url = "postgresql://ana@db1/x?sslmode=require&replica=db2:5433&max_lag=0.5&connections=3"
    assert split_options(url) == ("postgresql://ana@db1/x?sslmode=require", ServerOptions("db2:5433", 0.5, 3))
    assert split_options("postgresql://h/d") == ("postgresql://h/d", ServerOptions(None, 1.0, 10))
    assert [split_host(text) for text in ("db2:5433", "db2", "/run/pg", "[::1]:5433")] == [
        {"host": "db2", "port": "5433"},
        {"host": "db2"},
        {"host": "/run/pg"},
        {"host": "::1", "port": "5433"},
    ]
    for query in ("max_lag=-1", "max_lag=0", "connections=many"):
        with pytest.raises(StoreError, match="a number above 0 is needed"):
            split_options(f"postgresql://h/d?{query}")


def test_reads_of_a_replica_show_own_writes_and_are_within_the_bound(postgres, replica, postgres_url: str) -> None:
    with (
        MemoryStore.open(f"{postgres_url}&replica={replica.host}&max_lag=0.4", embedder="hash") as store,
        MemoryStore.open(postgres_url) as other,
    ):
        reads = store._database._replica  # pyright: ignore[reportAttributeAccessIssue]
        for number in range(20):
            store.insert("semantic", f"own fact {number}")
            assert len(store.list()) == number + 1, "own writes are read, wherever"
        wait_for(lambda: len(store.list()) == 20 and reads.reads > 10)
        count, expected = reads.reads, other.search("own fact 7", 1)

        def replica_has_searched() -> bool:
            # log of the server's own that is not flushed yet sends a single read to the primary
            assert store.search("own fact 7", 1) == expected
            return reads.reads > count

        wait_for(replica_has_searched)
        for number in range(5):
            store.list()
            other.insert("semantic", f"of another {number}")
            written = time.monotonic()
            while len(store.list()) < 21 + number:
                assert time.monotonic() - written < 0.4 + 1, "the bound, and what one read takes on a busy machine"
        replica.run("SELECT pg_wal_replay_pause()")
        try:
            other.insert("semantic", "while the replica stands still")
            time.sleep(0.5)
            count = reads.reads
            assert len(store.list()) == 26 and reads.reads == count, "the primary was read"
        finally:
            replica.run("SELECT pg_wal_replay_resume()")
        wait_for(lambda: len(store.list()) == 26 and reads.reads > count)
        with store.transaction():
            store.insert("semantic", "in a transaction")
            assert len(store.list()) == 27
        store.insert("semantic", "gone soon", expires="2000-01-01")
        assert len(store.list()) == 27, "a read that ends expired entries writes to the primary"


def test_a_replica_that_is_away_is_not_needed(postgres, replica, postgres_url: str) -> None:
    with MemoryStore.open(f"{postgres_url}&replica={replica.host}", embedder="hash") as store:
        store.insert("semantic", "a fact")
        wait_for(lambda: len(store.list()) == 1 and store._database._replica.reads > 0)  # pyright: ignore
        replica.stop()
        try:
            for _ in range(3):
                assert len(store.list()) == 1
        finally:
            replica.start()
    with (
        MemoryStore.open(f"{postgres_url}&replica=/nowhere") as store,
    ):
        assert [len(store.list()) for _ in range(2)] == [1, 1]


def test_another_server_is_no_replica(postgres, postgres_url: str) -> None:
    from postgres_server import server

    with server() as stranger, MemoryStore.open(postgres_url, embedder="hash") as store:
        store.insert("semantic", "a fact")
        with (
            MemoryStore.open(f"{postgres_url}&replica={stranger.host}") as wrong,
            pytest.raises(StoreError, match="no replica of the store's server"),
        ):
            wrong.list()
