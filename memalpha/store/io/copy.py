"""Copying a whole store into another database: all namespaces, each with its log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from memalpha.errors import StoreError
from memalpha.store.backends.base import Backend, system_clock
from memalpha.store.embedding import RecordedEmbedder
from memalpha.store.open import create_database, is_url, open_database, open_namespace
from memalpha.store.schema import MemorySchema
from memalpha.types import Operation


def copy_store(source: str | Path, target: str | Path) -> dict[str, int]:
    """Copy all namespaces of a store into a new one.

    Both may be a file or a PostgreSQL URL.

    Logs are copied unchanged, with positions, times, ids and erasure stubs, and so are versions and vectors. Nothing
    is embedded again, and every past state, undo and redo is the same in both. The copy shows one moment of the
    source, and either all of it exists or nothing. A target URL may name a store without namespaces, of the same
    schema and embedder.

    Args:
        source: Store to read.
        target: Store to create.

    Returns:
        Number of operations by namespace.

    Raises:
        StoreError: The source is no store, or the target is not empty or cannot hold the source.
    """
    source_database, schema, _ = open_database(source, None, None, create=False, durability="full", clock=system_clock)
    try:
        return _copy_database(source_database, schema, target)
    finally:
        source_database.close()


def back_up(database: Backend, schema: MemorySchema, target: str | Path) -> dict[str, int]:
    """Copy all namespaces of an open store into a new file, as `copy_store` does.

    A store file is read through a connection of its own, so that threads that use this one do not wait.

    Args:
        database: The open store.
        schema: Its schema.
        target: New file.

    Returns:
        Number of operations by namespace.

    Raises:
        StoreError: The file exists already or cannot be written.
    """
    if database.path == ":memory:" or is_url(database.path):
        return _copy_database(database, schema, target)
    reader, _, _ = open_database(
        database.path,
        None,
        None,
        create=False,
        durability="full",
        clock=database.clock,
        read_only=database.is_read_only,
    )
    try:
        return _copy_database(reader, schema, target)
    finally:
        reader.close()


def _copy_database(source: Backend, schema: MemorySchema, target: str | Path) -> dict[str, int]:
    with source.transaction(write=False):
        names = source.namespaces()
    with (
        source.transaction(*names, write=False),
        create_database(target, source.meta) as target_database,
        target_database.transaction(*names),
    ):
        if target_database.namespaces():
            raise StoreError(f"{target_database.path} holds namespaces already: give another with ?schema=NAME")
        positions: dict[str, int] = {}
        for name in names:
            original, copy = open_namespace(source, name, schema), open_namespace(target_database, name, schema)
            position = positions[name] = original.log.position
            try:
                original.copy_to(copy, position)
            except StoreError as error:
                raise type(error)(f"namespace {name!r}: {error}") from error
            if copy.log.fingerprint(position) != original.log.fingerprint(position):
                raise StoreError(f"namespace {name!r}: the copy's log does not end as that of {source.path} does")
        return positions


def is_written(database: Backend, name: str, schema: MemorySchema) -> bool:
    """Return True if a namespace was ever written, without operations too.

    Args:
        database: Open database.
        name: Name of the namespace.
        schema: Schema of the store.
    """
    namespace = open_namespace(database, name, schema)
    with namespace.transaction(write=False):
        is_present = namespace.scope.namespace_id >= 0
        _forget_id(database, name)
        return is_present


def _forget_id(database: Backend, name: str) -> None:
    """Drop the id that the connection remembers, so that memory does not grow with the number of namespaces."""
    database.namespace_ids.pop(name, None)


def write_log(
    database: Backend, name: str, schema: MemorySchema, operations: Sequence[Operation], embedder: RecordedEmbedder
) -> bool:
    """Write operations into a new namespace in one transaction.

    Without operations the namespace is created all the same.

    Args:
        database: Open database.
        name: Name of the namespace.
        schema: Schema of the store.
        operations: Complete log, as a memory in RAM of the same schema returned it.
        embedder: Recorded embedder of the store.

    Returns:
        False, with nothing written, if the namespace is there already.

    Raises:
        StoreError: The operations do not make a log, or the database cannot be written.
        EmbedderError: The embedder returned vectors that cannot be stored.
    """
    kinds = ("insert", "update")
    contents = list(dict.fromkeys(item.content for item in operations if item.kind in kinds and item.content))
    # Embed before the transaction, so that a slow embedder blocks no other process.
    vectors = dict(zip(contents, embedder.load().encode(contents), strict=True)) if contents else {}
    namespace = open_namespace(database, name, schema)
    with namespace.transaction():
        is_new = namespace.scope.namespace_id < 0
        if is_new:
            namespace.scope.create()
            for operation in operations:
                namespace.write(operation, vectors)
        _forget_id(database, name)
    return is_new
