"""SQL attacks by a role admitted to one namespace of a PostgreSQL store, to see or change another."""

from __future__ import annotations

from contextlib import suppress

import psycopg

TABLES = ("operations", "versions", "vectors")
SECRET = "zyxomma"  # stands in every content of the namespaces that are not the role's


def settings(schema: str, tenant: str, number: int, victim: str) -> list[str]:
    """Return statements that prepare an attack.

    They name the victim's namespace to the policies, take on another role, shadow functions that the policies call, or
    admit the role to the victim's namespace.

    Args:
        schema: Schema of the store.
        tenant: Name of the attacking role.
        number: Id of the attacked namespace.
        victim: Name of the attacked namespace.
    """
    evil = (
        "CREATE OR REPLACE FUNCTION public.current_setting(text, boolean) RETURNS text LANGUAGE sql AS "
        f"$$SELECT '{number}'$$; SET search_path = public, pg_catalog, {schema}"
    )
    statements = [
        "",
        "SET row_security = off",
        "SET ROLE memalpha",
        "SET ROLE postgres",
        "SET SESSION AUTHORIZATION memalpha",
        f"ALTER ROLE {tenant} SET memalpha.ns = '{number}'",
        evil,
        f"INSERT INTO {schema}.members VALUES ('{tenant}'::regrole, '{victim}')",
        f"SELECT {schema}.admit('{tenant}', '{victim}')",
        f"UPDATE {schema}.namespaces SET name = '{victim}2'",
    ]
    parameter_statements = [
        f"SET memalpha.ns = '{number}'",
        f"SELECT set_config('memalpha.ns', '1,2,3,{number}', false)",
    ]
    parameter_statements.append(f"SET SESSION memalpha.ns = '{{{number}}}'")
    return [
        *statements[:6],
        *parameter_statements,
        *(f"{statement}; {parameter_statements[0]}" for statement in statements[6:]),
    ]


def statements(schema: str, number: int, own_namespace: str) -> list[str]:
    """Return statements that read or change rows outside the role's own namespace.

    Args:
        schema: Schema of the store.
        number: Id of the attacked namespace.
        own_namespace: Name of the namespace that the role may use.
    """
    attacks = [f"SELECT * FROM {schema}.{table} WHERE ns = {number}" for table in TABLES]
    attacks += [
        f"SELECT * FROM {schema}.{table} WHERE ns <> "
        f"(SELECT ns FROM {schema}.namespaces WHERE name = '{own_namespace}')"
        for table in TABLES
    ]
    attacks += [f"DELETE FROM {schema}.{table} WHERE ns = {number}" for table in TABLES]
    attacks += [
        f"SELECT name FROM {schema}.namespaces WHERE name <> '{own_namespace}'",
        f"SELECT * FROM {schema}.members WHERE namespace <> '{own_namespace}'",
        f"UPDATE {schema}.versions SET content = 'x' WHERE ns = {number} RETURNING *",
        f"TRUNCATE {schema}.versions",
        f"INSERT INTO {schema}.operations (ns, seq, time, head, kind) VALUES ({number}, 99, '', 99, 'core_update')",
        f"UPDATE {schema}.versions SET ns = {number} WHERE ns <> {number} RETURNING *",
        f"COPY {schema}.versions TO STDOUT",
        f"SELECT FROM {schema}.namespaces WHERE ns = {number} FOR UPDATE",
        f"EXPLAIN ANALYZE SELECT 1 / (valid_from - valid_from) FROM {schema}.versions WHERE ns = {number}",
    ]
    return attacks


def attempt(url: str, setting: str, statement: str) -> list[object]:
    """Return the foreign rows that one session has seen or changed.

    Args:
        url: Database URL of the attacking role.
        setting: Statement to run first; may be empty.
        statement: The attack.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        with suppress(psycopg.Error):
            if setting:
                connection.execute(setting.encode())
        try:
            if statement.startswith("COPY"):
                with connection.cursor().copy(statement.encode()) as copy:
                    return [row for row in copy if SECRET.encode() in bytes(row)]
            cursor = connection.execute(statement.encode())
        except psycopg.Error as error:
            return [str(error)] if "division by zero" in str(error) or SECRET in str(error) else []
        if statement.startswith("EXPLAIN"):
            return []
        rows = list(cursor.fetchall() if cursor.description else [])
        return rows or ([("rows changed", cursor.rowcount)] if cursor.rowcount > 0 else [])
