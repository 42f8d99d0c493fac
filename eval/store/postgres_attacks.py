"""What a role that is admitted to one namespace of a PostgreSQL store tries, to see or change another."""

from __future__ import annotations

from contextlib import suppress

import psycopg

TABLES = ("operations", "versions", "vectors", "postings")
SECRET = "zyxomma"  # stands in every content of the namespaces that are not the role's


def settings(schema: str, tenant: str, number: int, theirs: str) -> list[str]:
    """What it does first: it names the namespace of a number to the policies, puts on another role, fools the policies
    with functions of its own, admits itself to `theirs`."""
    evil = (
        "CREATE OR REPLACE FUNCTION public.current_setting(text, boolean) RETURNS text LANGUAGE sql AS "
        f"$$SELECT '{number}'$$; SET search_path = public, pg_catalog, {schema}"
    )
    first = [
        "",
        "SET row_security = off",
        "SET ROLE memalpha",
        "SET ROLE postgres",
        "SET SESSION AUTHORIZATION memalpha",
        f"ALTER ROLE {tenant} SET memalpha.ns = '{number}'",
        evil,
        f"INSERT INTO {schema}.members VALUES ('{tenant}'::regrole, '{theirs}')",
        f"SELECT {schema}.admit('{tenant}', '{theirs}')",
        f"UPDATE {schema}.namespaces SET name = '{theirs}2'",
    ]
    named = [f"SET memalpha.ns = '{number}'", f"SELECT set_config('memalpha.ns', '1,2,3,{number}', false)"]
    named.append(f"SET SESSION memalpha.ns = '{{{number}}}'")
    return [*first[:6], *named, *(f"{one}; {named[0]}" for one in first[6:])]


def statements(schema: str, number: int, mine: str, partitions: int) -> list[str]:
    """What it then asks: for rows that it may not see, or change, of the namespace of a number or of any but `mine`."""
    found = [f"SELECT * FROM {schema}.{table} WHERE ns = {number}" for table in TABLES]
    found += [
        f"SELECT * FROM {schema}.{table}_{part} WHERE ns = {number}" for table in TABLES for part in range(partitions)
    ]
    found += [
        f"SELECT * FROM {schema}.{table} WHERE ns <> (SELECT ns FROM {schema}.namespaces WHERE name = '{mine}')"
        for table in TABLES
    ]
    found += [f"DELETE FROM {schema}.{table} WHERE ns = {number}" for table in TABLES]
    found += [
        f"SELECT name FROM {schema}.namespaces WHERE name <> '{mine}'",
        f"SELECT * FROM {schema}.members WHERE namespace <> '{mine}'",
        f"UPDATE {schema}.versions SET content = 'x' WHERE ns = {number} RETURNING *",
        f"TRUNCATE {schema}.versions",
        f"INSERT INTO {schema}.operations (ns, seq, time, head, kind) VALUES ({number}, 99, '', 99, 'core_update')",
        f"UPDATE {schema}.versions SET ns = {number} WHERE ns <> {number} RETURNING *",
        f"COPY {schema}.versions TO STDOUT",
        f"SELECT FROM {schema}.namespaces WHERE ns = {number} FOR UPDATE",
        f"EXPLAIN ANALYZE SELECT 1 / (valid_from - valid_from) FROM {schema}.versions WHERE ns = {number}",
    ]
    return found


def attempt(url: str, setting: str, statement: str) -> list[object]:
    """The rows of others that a session of its own has seen or changed."""
    with psycopg.connect(url, autocommit=True) as link:
        with suppress(psycopg.Error):
            if setting:
                link.execute(setting.encode())
        try:
            if statement.startswith("COPY"):
                with link.cursor().copy(statement.encode()) as copy:
                    return [row for row in copy if SECRET.encode() in bytes(row)]
            cursor = link.execute(statement.encode())
        except psycopg.Error as error:
            return [str(error)] if "division by zero" in str(error) or SECRET in str(error) else []
        if statement.startswith("EXPLAIN"):
            return []
        rows = list(cursor.fetchall() if cursor.description else [])
        return rows or ([("rows changed", cursor.rowcount)] if cursor.rowcount > 0 else [])
