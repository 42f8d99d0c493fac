"""A table role x verb x table in SQL: what each database role may do with the rows of a namespace."""

from __future__ import annotations

import secrets

import pytest

from memalpha.store.checks.integrity import examine
from memalpha.store.store import MemoryStore

psycopg = pytest.importorskip("psycopg")

pytestmark = pytest.mark.postgres

LOG, DATA = ("operations",), ("versions", "vectors")
VERBS = ("select", "insert", "update", "delete", "truncate")
# Rows of the own namespace that a verb reaches: "own", none of others; "no": the server refuses the statement.
OWNER = {table: dict.fromkeys(VERBS, "own") | {"truncate": "own"} for table in DATA}
OWNER |= {table: {"select": "own", "insert": "own", "update": "no", "delete": "no", "truncate": "no"} for table in LOG}
# Versions are inserted, ended and deleted as the log has them alone, so these verbs fail by themselves for everybody.
OWNER["versions"] |= {"insert": "no", "update": "no", "delete": "no"}
MEMBER: dict[str, dict[str, str]] = {table: OWNER[table] | {"update": "no", "truncate": "no"} for table in DATA}
MEMBER |= {table: {"select": "own", "insert": "own", "update": "no", "delete": "no", "truncate": "no"} for table in LOG}
STRANGER = {table: dict.fromkeys(VERBS, "no") for table in (*LOG, *DATA)}
NEW_ROW = {  # columns in which an inserted row differs from one that is there; both logs have two rows
    "operations": {"seq": "3", "time": "'2999'"},
    "versions": {"version": "9"},
    "vectors": {"digest": "'\\x00'"},
}
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


def reach(connection, table: str, verb: str, ids: dict[str, int]) -> str:
    """Try a verb on all rows of a table and take it back; return "own", "no", or which foreign rows it reached."""
    cursor = connection.cursor()
    cursor.execute("SAVEPOINT tried")
    try:
        if verb == "insert":
            reached = set()
            for name, ns in ids.items():
                cursor.execute("SAVEPOINT row")
                fresh = {"ns": "%s", **NEW_ROW[table]}
                rows = [name for (name,) in cursor.execute(LIST_COLUMNS, [table]).fetchall()]
                values = [fresh.get(row, row) for row in rows]
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
                if what == "leave" and rows == 0:
                    raise psycopg.errors.InsufficientPrivilege  # row-level security leaves nothing to it
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
