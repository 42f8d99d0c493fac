"""What a member of a namespace may not do to its past and to others, in SQL."""

from __future__ import annotations

import secrets

import pytest

from memalpha.store.checks.integrity import examine
from memalpha.store.store import MemoryStore

psycopg = pytest.importorskip("psycopg")

pytestmark = pytest.mark.postgres

ADMINISTRATION = {  # statements of a member that must fail, on the tables without a namespace's rows
    "rename it": "UPDATE namespaces SET name = 'mine'",
    "drop it": "DELETE FROM namespaces",
    "admit itself": "INSERT INTO members SELECT role, 'ben' FROM members LIMIT 1",
    "admit by the function": "SELECT admit('{role}', 'ben')",
    "leave": "DELETE FROM members",
    "change the metadata": "UPDATE meta SET value = '1'",
    "switch a guard off": "ALTER TABLE operations DISABLE TRIGGER operations_last",
    "change a version": "UPDATE versions SET content = 'forged'",
}
LOG_ROW = "INSERT INTO operations (ns, seq, time, head, kind, id, category, content) VALUES"


def insert_version(id: str, version: int, valid_from: int, content: str) -> str:
    """Return the statement that inserts a version; `{ns}` and an id `{pet}` are filled in later."""
    return (
        "INSERT INTO versions (ns, id, version, valid_from, content, category, importance, metadata, created, digest) "
        f"VALUES ({{ns}}, '{id}', {version}, {valid_from}, '{content}', 'semantic', 1, '{{{{}}}}', {valid_from}, '')"
    )


ERASE_PET = (
    "UPDATE operations SET kind = 'erased', category = NULL, content = NULL, importance = NULL, metadata = NULL "
    "WHERE seq = 3"
)
PAST = {  # what a member may not do to the past of its own namespace, with the guard that refuses it
    "unend a version": ("UPDATE versions SET valid_to = NULL WHERE valid_from = 1", "do not change"),
    "end a version later": ("UPDATE versions SET valid_to = 3 WHERE valid_from = 1", "do not change"),
    "end one in the past": ("UPDATE versions SET valid_to = 1 WHERE valid_from = 2", "as the log has them"),
    "end one by a row of another": ("UPDATE versions SET valid_to = 3 WHERE valid_from = 2", "as the log has them"),
    "end one in the future": ("UPDATE versions SET valid_to = 9 WHERE valid_from = 2", "as the log has them"),
    "delete a version": ("DELETE FROM versions WHERE valid_from = 1", "was erased"),
    "delete one of another's erasure": (f"{ERASE_PET}; DELETE FROM versions WHERE valid_from = 1", "was erased"),
    "make one up": (insert_version("other#1", 1, 2, "x"), "as the log has them"),
    "make a second one for a row of the log": (insert_version("{pet}", 2, 3, "pet: cat"), "duplicate key"),
    "make one again after its erasure": (
        f"{ERASE_PET}; DELETE FROM versions WHERE valid_from = 3; {insert_version('{pet}', 1, 3, 'pet: cat')}",
        "as the log has them",
    ),
    "log a row again": (f"{LOG_ROW} ({{ns}}, 0, '2999', 0, 'core_update', NULL, NULL, 'x')", "after the last"),
    "log past the end": (f"{LOG_ROW} ({{ns}}, 9, '2999', 9, 'core_update', NULL, NULL, 'x')", "after the last"),
    "log at a time before": (f"{LOG_ROW} ({{ns}}, 4, '2001', 4, 'core_update', NULL, NULL, 'x')", "not before its"),
    "log one thing and hold another": (
        f"{LOG_ROW} ({{ns}}, 4, '2999', 4, 'insert', 'new#1', 'semantic', 'a'); {insert_version('new#1', 1, 4, 'b')}",
        "as the log has them",
    ),
    "put other tables in their place": (
        "CREATE TEMP TABLE operations AS SELECT ns, seq, time, head, 'erased' AS kind FROM {schema}.operations; "
        "SET search_path = pg_temp, {schema}, public; DELETE FROM {schema}.versions",
        "was erased",
    ),
}


def test_a_member_administers_nothing_and_a_stranger_reads_nothing(postgres, postgres_url: str) -> None:
    """What roles reach of others' rows: `test_postgres.test_no_role_sees_another_namespace`."""
    schema = postgres_url.rpartition("=")[2]
    for name in ("ana", "ben"):
        with MemoryStore.open(postgres_url, namespace=name, embedder="hash") as store:
            store.update(store.insert("semantic", f"{name}'s city: Porto").id, f"{name}'s city: Rome")
    member, stranger = (f"role_{secrets.token_hex(4)}" for _ in range(2))
    for role in (member, stranger):
        postgres.run(f"CREATE ROLE {role} LOGIN")
    postgres.run(f"SELECT {schema}.admit('{member}', 'ana')", user="memalpha")
    both = ",".join(str(ns) for (ns,) in postgres.run(f"SELECT ns FROM {schema}.namespaces"))
    with psycopg.connect(f"postgresql://{member}@/postgres?host={postgres.host}", autocommit=True) as connection:
        connection.execute(f"SET search_path = {schema}, public; SET memalpha.ns = '{both}'")
        for table, column in (("namespaces", "name"), ("members", "namespace")):
            assert connection.execute(f"SELECT {column} FROM {table}").fetchall() == [("ana",)]
        assert connection.execute("SELECT count(DISTINCT ns) FROM operations").fetchone() == (1,)
        for what, statement in ADMINISTRATION.items():
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                rows = connection.execute(statement.format(role=member)).rowcount
                if what == "leave" and rows == 0:
                    raise psycopg.errors.InsufficientPrivilege  # row-level security leaves nothing to it
    with psycopg.connect(f"postgresql://{stranger}@/postgres?host={postgres.host}", autocommit=True) as connection:
        for table in ("meta", "namespaces", "operations", "versions", "vectors"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"SELECT * FROM {schema}.{table}")
    for role in (member, stranger):
        postgres.run(f"DROP OWNED BY {role}", f"DELETE FROM {schema}.members", f"DROP ROLE {role}")


def test_no_member_rewrites_its_past(postgres, postgres_url: str) -> None:
    schema = postgres_url.rpartition("=")[2]
    member = f"role_{secrets.token_hex(4)}"
    with MemoryStore.open(postgres_url, namespace="ana", embedder="hash") as store:
        store.update(store.insert("semantic", "city: Porto").id, "city: Rome")
        pet = store.insert("semantic", "pet: cat").id
    postgres.run(f"CREATE ROLE {member} LOGIN")
    postgres.run(f"SELECT {schema}.admit('{member}', 'ana')", user="memalpha")
    ((ns,),) = postgres.run(f"SELECT ns FROM {schema}.namespaces")
    names = {"ns": ns, "pet": pet, "schema": schema}
    tables = f"SELECT (SELECT array_agg(o ORDER BY seq) FROM {schema}.operations o)::text, " + (
        f"(SELECT array_agg(v ORDER BY valid_from) FROM {schema}.versions v)::text"
    )
    before = postgres.run(tables)
    role_url = f"postgresql://{member}@/postgres?host={postgres.host}"
    for what, (statements, message) in PAST.items():
        with psycopg.connect(role_url) as connection, pytest.raises(psycopg.Error) as refused:
            connection.execute(f"SET search_path = {schema}, public; SET memalpha.ns = '{ns}'")
            connection.execute(statements.format(**names))
        assert message in str(refused.value), what
    assert postgres.run(tables) == before
    with MemoryStore.open(f"{role_url}&schema={schema}", namespace="ana") as own:  # what the store does goes on
        own.update(pet, "pet: dog", importance=0.5)
        own.undo()
        own.insert_many([{"category": "semantic", "content": f"fact {n}", "expires": "2999-01-01"} for n in range(3)])
        own.delete(own.insert("semantic", "gone").id)
        own.erase(pet)
        assert own.list()[0].content == "city: Rome"
    assert examine(postgres_url).problems == []
    postgres.run(f"DROP OWNED BY {member}", f"DELETE FROM {schema}.members", f"DROP ROLE {member}")
