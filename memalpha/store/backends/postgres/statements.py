"""Statements of a PostgreSQL store: SQLite's language translated, and the transaction that a thread has open."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, MutableMapping, Sequence
from functools import lru_cache
from typing import Any

import psycopg


class Transaction:
    """What a thread is in the midst of."""

    def __init__(
        self,
        statements: PostgresStatements,
        namespace_ids: MutableMapping[str, int],
        writes: bool,
        namespaces: set[str],
    ) -> None:
        self.statements, self.numbers, self.writes, self.of = statements, namespace_ids, writes, namespaces
        self.shown: str | None = None  # of many namespaces, the one that the policies let through


class PostgresStatements:
    """Statements in SQLite's language, on a connection."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[Any] = ()) -> psycopg.Cursor:
        """Execute one; the cursor has all of its rows."""
        return self._connection.execute(_translate(sql), values, binary=True)

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute one for each row of values, without waiting for each."""
        self._connection.cursor().executemany(_translate(sql), rows)


@lru_cache(2048)
def _translate(statement: str) -> bytes:
    """A statement of SQLite's for PostgreSQL, which numbers its values and chooses its indexes by itself."""
    highest = 0

    def replace_placeholder(match: re.Match[str]) -> str:
        nonlocal highest
        value = int(match[1] or highest + 1)
        highest = max(highest, value)
        return f"${value}"

    return re.sub(r"\?(\d*)", replace_placeholder, re.sub(r" INDEXED BY \w+", "", statement)).encode()


def namespaces_setting(numbers: Iterable[int]) -> str:
    """The statement that names the namespaces of a transaction to the policies."""
    return f"SET LOCAL memalpha.ns = '{','.join(map(str, numbers))}'"


def read_namespace_numbers(connection: psycopg.Connection, names: Collection[str], write: bool) -> dict[str, int]:
    """The numbers of those of the namespaces that there are; a writer's rows are locked."""
    if not names:
        return {}
    query = "SELECT name, ns FROM namespaces WHERE name = ANY ($1) ORDER BY ns" + (" FOR UPDATE" if write else "")
    return dict(connection.execute(query, [list(names)]).fetchall())
