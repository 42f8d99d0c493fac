"""Write the whole log of a new namespace at once, so that a namespace is complete or absent."""

from __future__ import annotations

from collections.abc import Sequence

from memalpha.store.backends.base import Backend
from memalpha.store.indexing.stored_embedder import RecordedEmbedder
from memalpha.store.open import open_namespace
from memalpha.store.schema import MemorySchema
from memalpha.types import Operation


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
    vectors = dict(zip(contents, embedder.load_checked().encode(contents), strict=True)) if contents else {}
    namespace = open_namespace(database, name, schema)
    with namespace.transaction():
        is_new = namespace.scope.namespace_id < 0
        if is_new:
            namespace.scope.create()
            for operation in operations:
                namespace.write(operation, vectors)
        _forget_id(database, name)
    return is_new
