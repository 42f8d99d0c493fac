"""Stores in PostgreSQL: opening, namespace isolation, lost connections and servers."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from stores import import_file, new

from memalpha.errors import StoreError, UnknownEntry, install_command
from memalpha.store import open as opening
from memalpha.store.checks.integrity import examine
from memalpha.store.open import copy_store
from memalpha.store.store import MemoryStore

psycopg = pytest.importorskip("psycopg")
from memalpha.store.backends.postgres.database import (  # noqa: E402
    PostgresDatabase,
    PostgresStatements,
    redact_url,
    split_connections,
    split_schema,
)
from memalpha.store.backends.postgres.ddl import TABLES  # noqa: E402

pytestmark = pytest.mark.postgres
EVAL = Path(__file__).parents[3] / "eval" / "store" / "postgres_check.py"


@pytest.fixture
def check():
    pytest.importorskip("psutil")
    return import_file(EVAL)


def test_opening_errors_say_what_is_missing(postgres, postgres_url: str, monkeypatch) -> None:
    host = postgres.host
    for url, message in {
        "mysql://host/db": "mysql://...: give a path",
        "postgresql://u:geheim@127.0.0.1:1/db": "no server can be reached",
        postgres.url(database="nowhere"): "no such database .*CREATE DATABASE",
        postgres.url(user="nobody"): "no such user",
        f"postgresql://memalpha@/postgres?host={host}&schema=pg_x": "schema 'pg_x'",
    }.items():
        with pytest.raises(StoreError, match=message) as caught:
            new(url)
        assert "geheim" not in str(caught.value)
    with pytest.raises(StoreError, match="no such store"):
        new(postgres_url, create=False)
    with pytest.raises(StoreError, match="durability 'fast'"):
        new(postgres_url, durability="fast")
    schema = postgres_url.rpartition("=")[2]
    new(postgres_url).close()
    for version in ("0", "2", "5", "9", "x"):
        postgres.run(f"UPDATE {schema}.meta SET value = '{version}' WHERE key = 'format'")
        with pytest.raises(StoreError, match=f"format '{version}'; this memalpha reads 1: open it with the one that"):
            new(postgres_url)
    postgres.run(f"DELETE FROM {schema}.meta WHERE key = 'format'")
    with pytest.raises(StoreError, match="format None; this memalpha reads 1"):
        new(postgres_url)
    postgres.run(
        f"DROP SCHEMA {schema} CASCADE", f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.operations (a int)"
    )
    with pytest.raises(StoreError, match="tables that do not belong to a store"):
        new(postgres.url(schema, user="postgres"))
    monkeypatch.delitem(sys.modules, "memalpha.store.backends.postgres.database")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=re.escape(install_command("postgres"))):
        opening.open_database(postgres_url, None, None, create=True, durability="full", clock=None)  # pyright: ignore


def test_secrets_of_a_url_are_hidden() -> None:
    url = "postgresql://ana:ge%40heim@host:5432/db?sslmode=require&password=geheim&schema=my%20own"
    assert redact_url(url) == "postgresql://ana@host:5432/db?sslmode=require&schema=my%20own"
    assert split_schema(url) == (url.removesuffix("&schema=my%20own"), "my own")
    assert redact_url("postgresql://h/d?password=a&sslpassword=b&x=1") == "postgresql://h/d?x=1"
    for name in ("o'x", "a%b", "$$", "ä", "pg_x", ""):
        with pytest.raises(StoreError, match="schema"):
            split_schema(f"postgresql://h/d?schema={quote(name)}")
    assert split_schema("postgresql://h/d") == ("postgresql://h/d", "memalpha")
    assert split_connections("postgresql://h/d?a=b&connections=3") == ("postgresql://h/d?a=b", 3)
    assert split_connections("postgresql://h/d?connections=3") == ("postgresql://h/d", 3)
    assert split_connections("postgresql://h/d?a=b") == ("postgresql://h/d?a=b", 10)
    for number in ("many", "0", "-1", ""):
        with pytest.raises(StoreError, match="a number above 0"):
            split_connections(f"postgresql://h/d?connections={number}")


def test_texts_that_postgresql_cannot_hold(postgres_url: str) -> None:
    with new(postgres_url) as store:
        for text in ("a\0b", "\ud800"):
            with pytest.raises(UnknownEntry):
                store.get(text)
            assert store.find("semantic", text) is None and store.find(text, "a") is None
        with pytest.raises(StoreError, match="without NUL"):
            store.namespace("a\0b")


def test_the_log_is_append_only_for_its_owner_too(postgres_url: str, postgres) -> None:
    with new(postgres_url) as store:
        store.insert("semantic", "a")
        for statement in (
            "DELETE FROM operations",
            "UPDATE operations SET content = 'x'",
            "UPDATE operations SET kind = 'erased'",
            "TRUNCATE operations",
        ):
            with pytest.raises(StoreError, match="append-only"), store.rows.transaction() as rows:
                rows.execute(statement)
        assert len(list(store.log())) == 1


def test_no_role_sees_another_namespace(postgres_url: str, postgres, check) -> None:
    leaks = check.leaks(postgres, postgres_url.rpartition("=")[2])
    assert leaks["leaks"] == [] and leaks["sees its own"] and leaks["attempts"] > 100


def test_writers_of_one_namespace_wait_for_each_other_only(postgres_url: str, monkeypatch) -> None:
    monkeypatch.setattr("memalpha.store.backends.postgres.database.LOCK_TIMEOUT", 1)
    with new(postgres_url) as store, new(postgres_url) as second:
        store.insert("semantic", "a")
        other = second.namespace("other")
        with store.rows.transaction():
            other.insert("semantic", "b")
            assert second.list() == store.list()
            with pytest.raises(StoreError, match=r"kept it locked.*nothing was done: try again"):
                second.insert("semantic", "c")
        second.insert("semantic", "c")
        assert len(store.list()) == 2


def test_a_lost_connection(postgres_url: str, postgres) -> None:
    def end_connections() -> None:
        postgres.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'memalpha'")

    with new(postgres_url) as store:
        store.insert("semantic", "a")
        end_connections()  # those that wait in the pool: found out when a transaction begins, and replaced
        assert [entry.content for entry in store.list()] == ["a"]
        end_connections()
        store.insert("semantic", "b")
        with (
            pytest.raises(StoreError, match="connection was lost: nothing of this was stored"),
            store._transaction(write=True),
        ):
            end_connections()
            store.insert("semantic", "c")
        with pytest.raises(StoreError, match="whether this was stored is not known"), store.rows.transaction() as rows:
            rows.execute("SELECT 1")
            end_connections()
        assert [entry.content for entry in store.list()] == ["a", "b"]


def test_a_transaction_is_limited_to_its_namespaces(postgres_url: str) -> None:
    with new(postgres_url) as store:
        assert isinstance(store.database, PostgresDatabase)
        other = store.namespace("other")
        with store.rows.transaction(), pytest.raises(AssertionError, match="not opened for"):
            other.list()


def test_a_transaction_of_many_namespaces_takes_few_locks(postgres_url: str, monkeypatch) -> None:
    monkeypatch.setattr("memalpha.store.backends.postgres.database._MAX_LISTED_NAMESPACES", 3)
    names = [f"user {n}" for n in range(8)]
    with new(postgres_url) as store:
        with store.database.transaction(*names) as rows:
            for name in names:
                store.namespace(name).insert("semantic", f"of {name}")
            assert [[entry.content for entry in store.namespace(name).list()] for name in names] == [
                [f"of {name}"] for name in names
            ]
            lock_count = rows.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone()
            assert lock_count == (1,)
        assert store.namespaces() == names
        with store.database.transaction(*names):
            assert [store.namespace(name).snapshot() for name in names] == [1] * 8


def test_every_key_begins_with_the_namespace(postgres_url: str, postgres) -> None:
    schema = postgres_url.rpartition("=")[2]
    new(postgres_url).close()
    rows = postgres.run(
        "SELECT c.relname, i.indexrelid::regclass::text, a.attname FROM pg_index i "
        "JOIN pg_class c ON c.oid = i.indrelid JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0] "
        f"WHERE c.relnamespace = '{schema}'::regnamespace AND c.relname NOT IN ('meta', 'members', 'namespaces')"
    )
    assert {table for table, *_ in rows} == {*TABLES} and {column for *_, column in rows} == {"ns"}


def test_every_statement_names_its_namespace(postgres_url: str, monkeypatch, tmp_path: Path) -> None:
    """A cluster that spreads the tables by `ns` can send each statement to one of its nodes."""
    statements: set[str] = set()
    for name in ("execute", "executemany"):
        original = getattr(PostgresStatements, name)

        def record(self, sql, values=(), original=original):
            statements.add(sql)
            return original(self, sql, values)

        monkeypatch.setattr(PostgresStatements, name, record)
    with new(postgres_url) as store:
        store.insert_many(
            [{"category": "semantic", "content": f"fact {n}", "source": "a", "turn": f"{n}"} for n in range(3)]
        )
        entry = store.insert("semantic", "pet: cat", metadata={"user": "ana"}, expires="2999-01-01")
        store.core_update("Ana")
        store.core_update("Ana lives in Rome")
        with store.writing_as(speaker="Ben", key="phone"):
            store.update(entry.id, "pet: dog")
        position = store.snapshot()
        store.search("a dog", around=20)
        store.search("a dog", where={"user": "ana"})
        store.search("a dog", as_of=3, where={"user": "nobody"})
        store.list(where={"user": "ana"}, limit=1, after=store.list()[0].id)
        store.list("semantic", where={"user": "ana"}, as_of=3)
        _ = store.state, store.diff(2), store.recent(3), store.history(entry.id), store.count(as_of="2999-01-01")
        _ = store.get_many([entry.id]), store.find("semantic", "pet: dog"), store.around(store.list()[0].id)
        store.undo()
        store.redo()
        store.restore(2)
        store.restore(position)
        store.delete(store.list()[0].id)
        store.erase(entry.id)
        store.erase_core_history()
        store.export_jsonl(tmp_path / "log.jsonl")
        with store.transaction(), pytest.raises(StoreError):
            store.insert("none", "of it")
        store.fork("other").erase_all()
        store.namespace("third").import_jsonl(tmp_path / "log.jsonl")
        store.drop_namespace("third")
    examine(postgres_url, repair=True)
    copy_store(postgres_url, tmp_path / "copy.db")
    of_tables = [sql for sql in statements if re.search(rf"\b(FROM|JOIN|INTO|UPDATE) ({'|'.join(TABLES)})\b", sql)]
    assert len(of_tables) >= 55  # all of them: a drop says that the test lost calls, or the store statements
    for sql in of_tables:
        references = len(re.findall(rf"\b(?:FROM|JOIN|INTO|UPDATE) (?:{'|'.join(TABLES)})\b", sql))
        names = len(re.findall(r"\bns = |\(ns,|\(seq, [^()]*\bns,", sql))
        assert names >= references, sql


def test_a_batch_is_inserted_by_few_statements(postgres_url: str, monkeypatch) -> None:
    statements: list[str] = []
    execute = PostgresStatements.execute
    monkeypatch.setattr(
        PostgresStatements, "execute", lambda self, sql, *values: statements.append(sql) or execute(self, sql, *values)
    )
    counts = []
    with MemoryStore.open(postgres_url, embedder="hash") as store:
        store.core_update("Ana")
        for size in (250, 1000):
            statements.clear()
            store.insert_many({"category": "semantic", "content": f"{size}: {number}"} for number in range(size))
            counts.append(sum(statement.startswith("INSERT") for statement in statements))
        assert counts == [9, 30] and store.count() == 1250  # 100 rows each, of three tables


def test_a_store_works_prepared_for_a_cluster(postgres_url: str, postgres) -> None:
    """The statements of the page that precede the cluster's own leave a store that works."""
    page = (Path(__file__).parents[3] / "docs" / "guides" / "postgres.md").read_text()
    script = page.partition("```sql\nSET search_path = memalpha, public;\n")[2].partition("SELECT create_")[0]
    statements = [line.rstrip(";") for line in script.splitlines()]
    assert len(statements) == 13
    with new(postgres_url) as store:
        entry = store.insert("semantic", "pet: cat")
        postgres.run(f"SET search_path = {postgres_url.rpartition('=')[2]}", *statements, user="memalpha")
        store.update(entry.id, "pet: dog")
        store.namespace("other").insert("semantic", "pet: bird")
        assert [hit.entry.content for hit in store.search("pet")] == ["pet: dog"]
        assert store.drop_namespace("other") == 1 and store.namespaces() == ["default"]
    report = examine(postgres_url)
    assert report.counts["operations"] == 2 and {problem.part for problem in report.problems} == {"file"}
    assert "row-level security of the table versions is switched off" in str(report.problems)


def test_a_killed_server_loses_nothing_acknowledged(check) -> None:
    from postgres_server import server

    with server("") as fresh_server:  # fsync is on
        losses = check.kills(fresh_server, "killed", 2, 2)
        assert losses["wrong"] == [] and losses["acknowledged"] > 2
        losses = check.writers(fresh_server, "many", 4, 5)
        assert losses["wrong"] == [] and losses["acknowledged"] == 20


def test_doctor_checks_postgresql(postgres_url: str, postgres) -> None:
    with new(postgres_url) as store:
        store.insert_many([{"category": "semantic", "content": f"fact {n}"} for n in range(4)])
        store.namespace("other").insert("semantic", "a")
    report = examine(postgres_url)
    assert report.problems == [] and report.counts == {"namespaces": 2, "operations": 5, "versions": 5, "vectors": 5}
    assert any("fsync is off" in note for note in report.notes) and not any(
        "bypasses row-level security" in note for note in report.notes
    )
    schema = postgres_url.rpartition("=")[2]
    postgres.run(
        f"ALTER TABLE {schema}.versions DISABLE TRIGGER USER",
        f"DELETE FROM {schema}.versions WHERE content = 'fact 1'",
        f"UPDATE {schema}.versions SET content = 'fact two' WHERE content = 'fact 2'",
        f"DELETE FROM {schema}.vectors WHERE ns = 1",
        f"ALTER TABLE {schema}.versions ENABLE TRIGGER USER",
    )
    assert {problem.part for problem in examine(postgres_url).problems} == {"versions", "vectors"}
    mended = examine(postgres_url, repair=True)
    assert mended.problems == [] and mended.repaired
    with new(postgres_url) as store:
        assert store.search("fact 2", 1)[0].entry.content == "fact 2" and len(store.list()) == 4
    postgres.run(
        f"ALTER TABLE {schema}.versions NO FORCE ROW LEVEL SECURITY",
        f"ALTER TABLE {schema}.operations DISABLE TRIGGER operations_stay",
    )
    faults = [problem.message for problem in examine(postgres_url).problems]
    assert any("versions is switched off" in fault for fault in faults) and any("append-only" in f for f in faults)
    assert any(
        "bypasses row-level security" in note for note in examine(postgres_url.replace("memalpha@", "postgres@")).notes
    )
