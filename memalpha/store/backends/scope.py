"""`NamespaceScope`: what the tables of one namespace need of the database: its statements and the namespace's id."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from memalpha.store.backends.base import Backend, Cursor

_LAST_NAMESPACE = (  # highest id that was ever given
    "SELECT max(coalesce((SELECT max(ns) FROM namespaces), 0), "
    "coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'last namespace'), 0))"
)
_INSERT_NAMESPACE = f"INSERT INTO namespaces (ns, name) SELECT 1 + ({_LAST_NAMESPACE}), ?"


class NamespaceScope:
    """Rows of one namespace, whose id stands in the column `ns` of every table."""

    def __init__(self, database: Backend, name: str) -> None:
        self.database = database
        self.name = name

    @property
    def statements(self) -> Any:
        """Executor of statements in the open transaction."""
        return self.database._connection

    @property
    def namespace_id(self) -> int:
        """Id of the namespace; -1, which no row has, before its first operation."""
        namespace_id = self.database.namespace_ids.get(self.name)
        if namespace_id is None:
            row = self.statements.execute("SELECT ns FROM namespaces WHERE name = ?", (self.name,)).fetchone()
            if row is None:
                return -1
            namespace_id = self.database.namespace_ids[self.name] = int(row[0])
        return namespace_id

    def create(self) -> int:
        """Return the namespace's id, creating the namespace if needed."""
        if self.namespace_id < 0:
            self.statements.execute(_INSERT_NAMESPACE, (self.name,))
        return self.namespace_id

    def drop(self) -> None:
        """Delete the namespace's name. Its id is not given again, so that an open index or handle can tell."""
        (last_id,) = self.statements.execute(_LAST_NAMESPACE).fetchone()
        self.statements.execute("INSERT OR REPLACE INTO meta VALUES ('last namespace', ?)", (str(last_id),))
        self.select("DELETE FROM namespaces WHERE ns = ?")
        self.database.namespace_ids.clear()

    def select(self, sql: str, *values: Any) -> Cursor:
        """Execute a statement whose first value is the namespace's id."""
        return self.statements.execute(sql, (self.namespace_id, *values))

    def first(self, sql: str, *values: Any) -> Any:
        """Return the first row of `select`, or None."""
        return self.statements.execute(sql, (self.namespace_id, *values)).fetchone()

    def insert(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Execute a statement for each row of values, each after the namespace's id."""
        namespace_id = self.namespace_id
        self.statements.executemany(sql, ((namespace_id, *row) for row in rows))
