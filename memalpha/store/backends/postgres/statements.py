"""Statements in SQLite's dialect on a PostgreSQL connection, and the open transaction of a thread."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import psycopg


class Transaction:
    """Open transaction of a thread."""

    def __init__(
        self,
        statements: PostgresStatements,
        namespace_ids: MutableMapping[str, int],
        writes: bool,
        namespaces: set[str],
    ) -> None:
        self.statements, self.numbers, self.writes, self.of = statements, namespace_ids, writes, namespaces
        self.shown: str | None = None  # the visible one of many namespaces
        self.is_atomic = False  # True while a caller's transaction is open


@contextmanager
def savepoint(transaction: Transaction) -> Iterator[None]:
    """Undo the block alone, and the ids of namespaces that it made, if it fails."""
    namespace_ids = dict(transaction.numbers)
    transaction.statements.execute("SAVEPOINT operation")
    try:
        yield
    except BaseException:
        for name in transaction.numbers.keys() - namespace_ids.keys():
            del transaction.numbers[name]
        transaction.shown = None
        transaction.statements.execute("ROLLBACK TO operation")
        transaction.statements.execute("RELEASE operation")
        raise
    transaction.statements.execute("RELEASE operation")


class PostgresStatements:
    """Executor of statements in SQLite's dialect on a PostgreSQL connection."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[Any] = ()) -> psycopg.Cursor:
        """Execute a statement; the cursor holds all of its rows."""
        return self._connection.execute(_translate(sql), values, binary=True)

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each row of values, without waiting for each."""
        self._connection.cursor().executemany(_translate(sql), rows)


@lru_cache(2048)
def _translate(statement: str) -> bytes:
    """Translate a statement of SQLite: numbered placeholders, no index hints."""
    highest = 0

    def replace_placeholder(match: re.Match[str]) -> str:
        nonlocal highest
        value = int(match[1] or highest + 1)
        highest = max(highest, value)
        return f"${value}"

    return re.sub(r"\?(\d*)", replace_placeholder, re.sub(r" INDEXED BY \w+", "", statement)).encode()


def namespaces_setting(numbers: Iterable[int]) -> str:
    """Return the statement that names a transaction's namespaces to the policies."""
    return f"SET LOCAL memalpha.ns = '{','.join(map(str, numbers))}'"


def read_namespace_numbers(connection: psycopg.Connection, names: Collection[str], write: bool) -> dict[str, int]:
    """Return the ids of existing namespaces by name; with `write` their rows are locked.

    Args:
        connection: Connection inside a transaction.
        names: Names of namespaces; missing ones are left out.
        write: Lock the rows.
    """
    if not names:
        return {}
    query = f"SELECT name, ns FROM namespaces WHERE name = ANY ($1) ORDER BY ns{' FOR UPDATE' if write else ''}"
    return dict(connection.execute(query.encode(), [list(names)]).fetchall())
