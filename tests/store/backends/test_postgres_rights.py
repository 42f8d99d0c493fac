"""A table role x verb x table in SQL: what each database role may do with the rows of a namespace."""

from __future__ import annotations

import secrets

import pytest

from memalpha.store.store import MemoryStore

psycopg = pytest.importorskip("psycopg")

pytestmark = pytest.mark.postgres

LOG, DATA = ("operations",), ("versions", "vectors", "postings")
VERBS = ("select", "insert", "update", "delete", "truncate")
# Rows of the own namespace that a verb reaches: "own", none of others; "no": the server refuses the statement.
OWNER = {table: dict.fromkeys(VERBS, "own") | {"truncate": "own"} for table in DATA}
OWNER |= {table: {"select": "own", "insert": "own", "update": "no", "delete": "no", "truncate": "no"} for table in LOG}
MEMBER = {table: dict.fromkeys(VERBS, "own") | {"truncate": "no"} for table in DATA}
MEMBER |= {table: {"select": "own", "insert": "own", "update": "no", "delete": "no", "truncate": "no"} for table in LOG}
STRANGER = {table: dict.fromkeys(VERBS, "no") for table in (*LOG, *DATA)}
ADMINISTRATION = {  # statements of a member that must fail, on the tables without a namespace's rows
    "close a namespace": "UPDATE namespaces SET closed = true",
    "rename it": "UPDATE namespaces SET name = 'mine'",
    "drop it": "DELETE FROM namespaces",
    "admit itself": "INSERT INTO members SELECT role, 'ben' FROM members LIMIT 1",
    "admit by the function": "SELECT admit('{role}', 'ben')",
    "leave": "DELETE FROM members",
    "change the metadata": "UPDATE meta SET value = '1'",
    "switch a guard off": "ALTER TABLE operations DISABLE TRIGGER operations_last",
    "read a partition": "SELECT * FROM versions_0",
}


def reach(connection, table: str, verb: str, ids: dict[str, int]) -> str:
    """Try a verb on all rows of a table and take it back; return "own", "no", or which foreign rows it reached."""
    cursor = connection.cursor()
    cursor.execute("SAVEPOINT tried")
    try:
        if verb == "insert":
            reached = set()
            for name, ns in ids.items():
                cursor.execute("SAVEPOINT row")
                columns = {"operations": "seq", "versions": "version", "vectors": "digest", "postings": "term"}
                key = {"digest": "'\\x00'"}.get(columns[table], "1000000")
                rows = [name for (name,) in cursor.execute(LIST_COLUMNS, [table]).fetchall()]
                values = ["%s" if row == "ns" else key if row == columns[table] else row for row in rows]
                statement = f"INSERT INTO {table} ({', '.join(rows)}) SELECT {', '.join(values)} FROM {table} LIMIT 1"
                try:
                    if cursor.execute(statement, [ns]).rowcount:
                        reached.add(name)
                except psycopg.errors.InsufficientPrivilege as error:
                    if "permission denied" in str(error):
                        raise
                cursor.execute("ROLLBACK TO row")
        elif verb == "truncate":
            cursor.execute(f"TRUNCATE {table}")
            return "own"  # for the owner alone
        else:
            set_own = {"operations": "content = content", "versions": "content = content"}.get(table, "ns = ns")
            statements = {"update": f"UPDATE {table} SET {set_own}", "delete": f"DELETE FROM {table}"}
            verb_rows = f"{statements[verb]} RETURNING ns" if verb in statements else f"SELECT ns FROM {table}"
            numbers = {ns for (ns,) in cursor.execute(verb_rows).fetchall()}
            reached = {name for name, ns in ids.items() if ns in numbers}
        return "own" if reached == {"ana"} else f"reached {sorted(reached)}"
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.RaiseException):
        return "no"
    except psycopg.errors.UndefinedTable:  # the schema itself is closed to a stranger
        return "no"
    finally:
        cursor.execute("ROLLBACK TO tried")


LIST_COLUMNS = (
    "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped "
    "AND attgenerated = ''"
)


def test_roles_reach_their_own_rows_alone(postgres, postgres_url: str) -> None:
    schema = postgres_url.rpartition("=")[2]
    for name in ("ana", "ben"):
        with MemoryStore.open(postgres_url, namespace=name, embedder="hash") as store:
            store.update(store.insert("semantic", f"{name}'s city: Porto").id, f"{name}'s city: Rome")
    member, stranger = (f"role_{secrets.token_hex(4)}" for _ in range(2))
    for role in (member, stranger):
        postgres.run(f"CREATE ROLE {role} LOGIN")
    postgres.run(f"SELECT {schema}.admit('{member}', 'ana')", user="memalpha")
    ids = dict(postgres.run(f"SELECT name, ns FROM {schema}.namespaces"))
    both = ",".join(map(str, ids.values()))
    seen: dict[str, object] = {}
    for role, named, expected in (
        ("memalpha", str(ids["ana"]), OWNER),  # the owner names the namespaces that it works on
        (member, both, MEMBER),
        (stranger, both, STRANGER),
    ):
        with psycopg.connect(f"postgresql://{role}@/postgres?host={postgres.host}") as connection:
            connection.execute(f"SET search_path = {schema}, public")
            connection.execute(f"SET memalpha.ns = '{named}'")
            table = {name: {verb: reach(connection, name, verb, ids) for verb in VERBS} for name in (*LOG, *DATA)}
            seen[role] = {
                f"{name} {verb}": outcome
                for name, row in table.items()
                for verb, outcome in row.items()
                if expected[name][verb] != outcome
            }
            connection.rollback()
    assert seen == {"memalpha": {}, member: {}, stranger: {}}
    with psycopg.connect(f"postgresql://{member}@/postgres?host={postgres.host}", autocommit=True) as connection:
        connection.execute(f"SET search_path = {schema}, public")
        connection.execute(f"SET memalpha.ns = '{both}'")
        assert connection.execute("SELECT name FROM namespaces").fetchall() == [("ana",)]
        assert connection.execute("SELECT namespace FROM members").fetchall() == [("ana",)]
        for what, statement in ADMINISTRATION.items():
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                rows = connection.execute(statement.format(role=member)).rowcount
                if what in ("leave", "read a partition") and rows == 0:
                    raise psycopg.errors.InsufficientPrivilege  # row-level security leaves nothing to it
    for role in (member, stranger):
        postgres.run(f"DROP OWNED BY {role}", f"DELETE FROM {schema}.members", f"DROP ROLE {role}")
