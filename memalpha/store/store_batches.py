"""`StoreBatches`: the methods of `MemoryStore` that write several entries at once, all or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from memalpha.arguments import check_items, check_texts
from memalpha.errors import StoreError
from memalpha.store.filters import Where
from memalpha.store.store_erasure import StoreEraser
from memalpha.store.trust.provenance import writing_as
from memalpha.store.validation import (
    UPDATE_FIELDS,
    check_content_size,
    check_timestamp,
    clean_content,
    update_operation,
)
from memalpha.types import MemoryEntry, Operation


class StoreBatches(StoreEraser):
    """Transactions of several operations in one namespace, and writes of many entries."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all operations of the block happen together: one commit, or none of them if the block raises.

        Reads and searches of the block see its writes. An operation that fails is undone alone; if you catch its
        error, the others count. The block is of this namespace alone. Other writers wait until it ends, in SQLite also
        other threads of this process, so keep it short. What cannot be undone (`erase`, `drop_namespace`, `fork`,
        `backup`, `close`) raises `StoreError` inside.

        Raises:
            StoreError: A transaction is open already, or the store is read-only.
        """
        if self._database.is_atomic:
            raise StoreError("transaction: one is open already in this thread, and they do not nest")
        with self._database.atomic(self._namespace.name):
            yield

    @staticmethod
    def writing_as(*, speaker: str | None = None, key: str | None = None) -> AbstractContextManager[None]:
        """Record who is behind the operations of a block: the log, the entries and their histories say it.

        It holds for all that this thread or task writes in the block. An operation that names a speaker itself keeps
        that one.

        Args:
            speaker: Person on whose word the operations are written.
            key: Name of the server's key that they came with.

        Raises:
            InvalidContent: A name is no text that can be stored.
        """
        return writing_as(speaker=speaker, key=key)

    def update_many(self, updates: Iterable[Mapping[str, Any]]) -> list[MemoryEntry]:
        """Update many entries, all or none, embedded in one batch and stored in one transaction.

        Args:
            updates: Mappings with the arguments of `update` by name; "id" is needed.

        Returns:
            The new version of each entry.

        Raises:
            StoreError: An update is invalid, as in `update`; the message names its index.
        """
        rows: list[dict[str, Any]] = []
        for index, update in enumerate(check_items("updates", updates, of="mappings")):
            with _named("update", index):
                if not isinstance(update, Mapping) or not {"id"} <= update.keys() <= {"id", *UPDATE_FIELDS}:
                    raise StoreError(f"a mapping with id and none but {', '.join(UPDATE_FIELDS)} is needed")
                row = dict(update)
                if row.get("content") is not None:
                    row["content"] = clean_content(row["content"])
                    check_content_size(row["content"], self._max_content)
                check_timestamp(row.get("timestamp"))
                rows.append(row)
        vectors = self._embed(list(dict.fromkeys(row["content"] for row in rows if row.get("content") is not None)))
        entries = []
        with self._transaction(write=True):
            for index, row in enumerate(rows):
                with _named("update", index):
                    operation = update_operation(self.get(row["id"]), **row)
                    change = self._namespace.write(operation, vectors if operation.content in vectors else None)
                    assert change.entry is not None
                    entries.append(change.entry)
        return entries

    def delete_many(
        self,
        ids: Iterable[str] | None = None,
        *,
        category: str | None = None,
        where: Where = None,
        source: str | None = None,
        chunk: int | None = None,
        turn: str | None = None,
    ) -> list[MemoryEntry]:
        """End many entries, all or none, in one transaction.

        Args:
            ids: Ids of live entries. Without them, `category` or `where` says which entries to end.
            category: End entries of this category only; not with `ids`.
            where: End entries that pass this filter only (see `filters`); not with `ids`.
            source: Conversation or document that caused the deletion.
            chunk: Index of the chunk within the source.
            turn: Id of the turn within the chunk.

        Returns:
            The last version of each entry, with `valid_to` set.

        Raises:
            StoreError: Neither or both of `ids` and a condition are given, or the filter is invalid.
            UnknownEntry: No live entry has one of the ids; nothing was ended.
        """
        if isinstance(ids, str) or (ids is None) == (category is None and where is None):
            raise StoreError("delete_many: give either a list of ids, or a category or filter of the entries to end")
        ids = None if ids is None else check_texts("ids", ids)
        with self._transaction(write=True):
            if ids is None:
                ids = [entry.id for entry in self.list(category, where=where)]
            ended = []
            for index, id in enumerate(dict.fromkeys(ids)):
                with _named("delete", index):
                    operation = Operation("delete", id=id, source=source, chunk=chunk, turn=turn)
                    ended.append(self._namespace.write(operation).ended)
            return ended


@contextmanager
def _named(kind: str, index: int) -> Iterator[None]:
    """Put the kind and index of an operation before the message of its error."""
    try:
        yield
    except StoreError as error:
        error.args = (f"{kind} {index}: {error}", *error.args[1:])
        raise
