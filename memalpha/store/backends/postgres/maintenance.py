"""Work on tables and indexes that needs a role which owns them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from memalpha.errors import StoreError
from memalpha.store.backends.postgres import ddl as postgres_schema
from memalpha.store.backends.postgres.guards import LOG_TRIGGERS, VERSION_TRIGGERS
from memalpha.store.backends.postgres.statements import PostgresStatements

_IS_OWNER = "pg_has_role(c.relowner, 'USAGE')"


@contextmanager
def without_vector_index(statements: PostgresStatements) -> Iterator[None]:
    """Build the vector index once, after the block; a role that does not own it changes nothing."""
    query = "SELECT pg_get_indexdef(c.oid) FROM pg_class c WHERE c.oid = to_regclass('vectors_near') AND " + _IS_OWNER
    index = statements.execute(query).fetchone()
    if index is not None:
        statements.execute("DROP INDEX vectors_near")
    yield
    if index is not None:
        statements.execute(index[0].replace(" ON ONLY ", " ON "))
        statements.execute(f"ANALYZE {', '.join(postgres_schema.TABLES)}")


def analyze_partitions(statements: PostgresStatements, namespace_id: int) -> None:
    """Update the statistics of a namespace's partitions, if the role owns them."""
    for table in postgres_schema.TABLES:
        query = f"SELECT c.oid::regclass::text FROM pg_class c WHERE {_IS_OWNER} AND c.oid = "
        partition = statements.execute(
            query + f"(SELECT tableoid FROM {table} WHERE ns = ? LIMIT 1)", (namespace_id,)
        ).fetchone()
        if partition is not None:
            statements.execute(f"ANALYZE {partition[0]}")


@contextmanager
def unlocked(statements: PostgresStatements, path: str, purpose: str) -> Iterator[None]:
    """Switch the triggers off that keep the past, for the block.

    Args:
        statements: Executor of statements in a writing transaction.
        path: Path of the store, for messages.
        purpose: What the block does, for messages.

    Raises:
        StoreError: The role does not own the tables.
    """
    triggers = [("operations", "operations_last"), *(("versions", name) for name in VERSION_TRIGGERS)]
    try:
        for table, trigger in triggers:
            statements.execute(f"ALTER TABLE {table} DISABLE TRIGGER {trigger}")
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreError(f"{path}: only the owner of the tables can {purpose}") from error
    yield
    for table, trigger in triggers:
        statements.execute(f"ALTER TABLE {table} ENABLE TRIGGER {trigger}")


def guard_faults(statements: PostgresStatements) -> Iterator[str]:
    """Iterate over the triggers that are missing or switched off."""
    query = "SELECT tgname FROM pg_trigger WHERE tgrelid = ?::regclass AND tgenabled = 'O'"
    for table, triggers, purpose in (
        ("operations", LOG_TRIGGERS, "keeps the log append-only"),
        ("versions", VERSION_TRIGGERS, "keeps the versions as the log has them"),
    ):
        if {*triggers} - {name for (name,) in statements.execute(query, (table,))}:
            yield f"a trigger that {purpose} is missing or switched off"
