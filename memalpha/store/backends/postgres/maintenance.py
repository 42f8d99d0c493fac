"""Work on tables and indexes that needs a role which owns them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from memalpha.store.backends.postgres import ddl as postgres_schema
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
