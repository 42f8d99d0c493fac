"""Rows of one namespace on one server of a sharded store: copying, closing, reopening and deleting them.

A closed namespace keeps its row in `namespaces`, so that whoever still looks for it here learns that it has moved.
Only the owner of a server's tables can close, reopen and delete.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import psycopg

from memalpha.errors import StoreError, StoreUnavailable
from memalpha.store.backends.entry_table import VERSION_COLUMNS
from memalpha.store.backends.postgres.database import PostgresDatabase
from memalpha.store.backends.postgres.namespace import PostgresNamespace
from memalpha.store.backends.postgres.terms import index_contents
from memalpha.store.backends.postgres.vector_codec import Vector
from memalpha.store.backends.row_codec import decode_vectors
from memalpha.store.backends.vector_table import INSERT_VECTOR

_DIGEST, _CONTENT = 4, 7  # indices in a row of `VERSION_COLUMNS`


class Extent(NamedTuple):
    """How much a namespace has on a server, and how its log ends; equal for equal copies."""

    position: int
    versions: int
    live: int
    fingerprint: str


def log_end(namespace: PostgresNamespace) -> tuple[int, str]:
    """Return position and fingerprint of a namespace's log, inside a transaction; equal for equal logs."""
    position = namespace.log.position
    return position, namespace.log.fingerprint(position)


def extent(namespace: PostgresNamespace) -> Extent:
    """Return the extent of a namespace, inside a transaction."""
    position, fingerprint = log_end(namespace)
    versions, live = namespace.scope.first(
        "SELECT count(*), count(*) FILTER (WHERE valid_to IS NULL) FROM versions WHERE ns = ?"
    )
    return Extent(position, versions, live, fingerprint)


def copy_erasures(source: PostgresNamespace, target: PostgresNamespace, position: int) -> None:
    """Erase from a copy what was erased from its source since, up to the position that the copy is of.

    Entries whose id is in use again have the versions that they had before, at most.

    Args:
        source: The namespace that was copied, in a transaction.
        target: Its copy, in a transaction.
        position: Log position up to which `target` is a copy.
    """
    known = target.log.stubs(position)
    stubs = [(id, seq) for seq, id in source.log.stubs(position).items() if seq not in known]
    if not stubs:
        return
    query = "SELECT DISTINCT id FROM operations WHERE ns = ? AND seq = ANY (?) AND id IS NOT NULL"
    ids = [id for (id,) in target.scope.select(query, [seq for _, seq in stubs])]
    query = "SELECT DISTINCT digest FROM versions WHERE ns = ? AND id = ANY (?)"
    digests = [digest for (digest,) in target.scope.select(query, ids)]
    query = "SELECT digest FROM vectors WHERE ns = ? AND digest = ANY (?)"
    kept = {digest for (digest,) in source.scope.select(query, digests)}
    target.log.clear(stubs)
    target.entries.delete(ids)
    target.vectors.delete(digest for digest in digests if digest not in kept)


def copy_since(source: PostgresNamespace, target: PostgresNamespace, position: int) -> int:
    """Copy what the log has after a position, and the entries that this changed; return the log's end.

    Args:
        source: The namespace to copy, in a transaction.
        target: The namespace as it was at `position`, in a transaction.
        position: Log position up to which `target` is a copy.
    """
    if source.log.has_erasure_after(position):
        copy_erasures(source, target, position)
    end = source.log.position
    if end == position:
        return end
    ids = source.log.changed_ids(position, end)
    target.log.extend(source.log.rows(end, after=position))
    rows = source.scope.select(f"SELECT {VERSION_COLUMNS} FROM versions WHERE ns = ? AND id = ANY (?)", ids).fetchall()
    target.entries.delete(ids)
    target.entries.extend(rows)
    digests = list({row[_DIGEST] for row in rows})
    query = "SELECT digest, vector FROM vectors WHERE ns = ? AND digest = ANY (?)"
    vectors = dict(source.scope.select(query, digests).fetchall())
    dim = int(json.loads(target.database.meta["embedder"])["dim"])
    decode_vectors([digest.hex() for digest in vectors], list(vectors.values()), dim)
    target.scope.insert(INSERT_VECTOR, ((digest, Vector(vector)) for digest, vector in vectors.items()))
    index_contents(target.scope.statements, target.scope.namespace_id, [row[_CONTENT] for row in rows])
    return end


def copy_members(source: PostgresNamespace, target: PostgresNamespace) -> None:
    """Admit exactly the roles to the target that are admitted to the source, inside transactions.

    Raises `StoreError` if the target's server lacks one.
    """
    query = "SELECT r.rolname FROM members m JOIN pg_roles r ON r.oid = m.role::oid WHERE m.namespace = ? ORDER BY 1"
    roles = [role for (role,) in source.scope.statements.execute(query, (source.name,))]
    statements = target.scope.statements
    known = {role for (role,) in statements.execute("SELECT rolname FROM pg_roles WHERE rolname = ANY (?)", (roles,))}
    if missing := set(roles) - known:
        raise StoreError(
            f"{target.database.path}: the server lacks the role {min(missing)!r}, which is admitted to the namespace "
            f"{source.name!r}: create it there first"
        )
    statements.execute("DELETE FROM members WHERE namespace = ?", (source.name,))
    for role in roles:
        statements.execute("SELECT admit(?::name, ?)", (role, source.name))


def set_closed(namespace: PostgresNamespace, closed: bool) -> None:
    """Close or reopen a namespace, inside a writing transaction of the owner."""
    namespace.scope.statements.execute("UPDATE namespaces SET closed = ? WHERE name = ?", (closed, namespace.name))


def reopen(database: PostgresDatabase, name: str) -> None:
    """Reopen a namespace. Raises `StoreUnavailable` for a role that does not own the tables."""
    try:
        with database.transaction() as statements:
            statements.execute("UPDATE namespaces SET closed = false WHERE name = ? AND closed", (name,))
    except StoreError as error:
        if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise
        message = (
            f"{database.path}: a move of {name!r} was interrupted: the tables' owner ends it with `memalpha doctor`"
        )
        raise StoreUnavailable(f"{message} --repair", "nothing was done") from error


def delete_rows(namespace: PostgresNamespace) -> None:
    """Delete log, entries and vectors of a closed namespace, inside a writing transaction; its name stays, closed."""
    for table in (*namespace._TABLES, "operations"):
        namespace.scope.select(f"DELETE FROM {table} WHERE ns = ?")
