"""`Namespace`: the log, entries and vectors of one namespace, written together.

`postgres.namespace` replaces the tables' statements that differ in PostgreSQL.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from memalpha.store.backends.base import Backend
from memalpha.store.backends.row_codec import (
    content_digest,
    decode_vectors,
    operation_values,
    vector_blob,
    version_row,
)
from memalpha.store.backends.rows import EntryTable, LogEnd, NamespaceScope, OperationLog, VectorTable, check_clock
from memalpha.store.fields import ENTRY_NAMES, new_defaults
from memalpha.store.filters import Filter
from memalpha.store.schema import MemorySchema
from memalpha.store.state import NOT_UNDOABLE, Change, plan
from memalpha.store.trust.quarantine import (
    WRITER,
    accepted_as,
    list_quarantined,
    past_core_quarantine,
    quarantined_contents,
)
from memalpha.types import MemoryEntry, Operation

_MAX_PAGE = 500  # log rows read at once

_CHECKED_TOGETHER = 1000  # copied vectors; one by one the check takes twelve times as long


class Namespace:
    """Operation log, entry table and vector table of one namespace. Call every method inside a transaction."""

    _SCOPE, _LOG, _ENTRIES, _VECTORS = NamespaceScope, OperationLog, EntryTable, VectorTable
    _BATCH: int | None = None  # entries that are appended at once; None appends all

    def __init__(self, database: Backend, name: str, schema: MemorySchema) -> None:
        self.database, self.name, self.schema = database, name, schema
        self.scope = self._SCOPE(database, name)
        self.log = self._LOG(self.scope)
        self.entries = self._ENTRIES(self.scope, schema)
        self.vectors = self._VECTORS(self.scope)

    def transaction(self, *, write: bool = True) -> AbstractContextManager[Any]:
        """Open a database transaction on this namespace."""
        return self.database.transaction(self.name, write=write)

    def recent(self, position: int, n: int) -> list[MemoryEntry]:
        """Return the `n` live entries that were written last, newest first; `position` is the log's end.

        The log is read backwards in pages: the last operation on an id is the one that made its live version.
        """
        entries: dict[str, MemoryEntry | None] = {}
        live, page_size = 0, n
        while live < n and (rows := self.log.last_ids(position, page_size)):
            ids = [id for _, id in rows if id and id not in entries]
            current = self.entries.versions_at(list(dict.fromkeys(ids)), None)
            entries.update((id, current.get(id)) for id in ids)
            live += len(current)
            position = rows[-1][0] - 1  # not by the page's size: a damaged log has gaps
            page_size = min(2 * page_size, _MAX_PAGE)
        return [entry for entry in entries.values() if entry is not None][:n]

    def write(
        self,
        operation: Operation,
        vectors: Mapping[str, np.ndarray] | None = None,
        *,
        log_end: LogEnd | None = None,
        effective_position: int | None = None,
        time: str | None = None,
    ) -> Change:
        """Plan one operation and append all its rows.

        Args:
            operation: Operation as requested.
            vectors: Embedding by content; None if the content's vector is stored already.
            log_end: End of the log, if the caller has read it.
            effective_position: Position whose facts the memory holds afterwards; by default this operation's own.
            time: Log time; by default the clock's. Times never decrease along the log.
        """
        log_end = log_end or self.log.end()
        position = log_end.position + 1
        if (writer := WRITER.get()) and operation.kind not in ("expired", "erased"):
            missing = {name: value for name, value in writer.items() if getattr(operation, name) is None}
            operation = replace(operation, **missing)
        change = plan(self.entries, operation, position)
        completed, entry = change.operation, change.entry
        ns = self.scope.create()
        time = max(
            time or check_clock(self.database, log_end), log_end.time
        )  # keep the log ordered if the clock is set back
        if effective_position is None:  # time, erasure and reviews are not undone
            is_undoable = completed.kind not in NOT_UNDOABLE
            effective_position = position if is_undoable else self.log.effective_position(log_end.position)
        vector = None if entry is None or vectors is None else vector_blob(vectors[entry.content])
        created = position
        if entry is not None and entry.version > 1:
            created = self.entries.creation_positions([entry.id])[entry.id]
        row = (ns, position, time, effective_position, completed.kind, *operation_values(completed))
        self.insert_rows(row, change, created, vector)
        return change

    def insert_rows(self, operation: tuple[Any, ...], change: Change, created: int, vector: bytes | None) -> None:
        """Insert the rows of a change: its operation, the version it ended and the version it made.

        Args:
            operation: The row of the log; its second column is the operation's position.
            change: What the operation changed.
            created: Position of the operation that first made the entry.
            vector: Encoded vector of the content, if the namespace lacks it.
        """
        self.log.append(operation)
        if change.ended is not None:
            self.entries.end_version(change.ended, operation[1])
        if change.entry is not None:
            self.entries.insert(version_row(change.entry, created))
            if vector is not None:
                self.vectors.insert(content_digest(change.entry.content), vector)

    def append(
        self,
        log_end: LogEnd,
        entries: Sequence[MemoryEntry],
        optional_fields: Sequence[Mapping[str, Any]],
        vectors: Mapping[str, tuple[bytes, bytes]],
    ) -> None:
        """Append inserts of new ids at the end of the log, in bulk.

        Args:
            log_end: End of the log.
            entries: First versions of the new entries.
            optional_fields: For each entry, the optional fields that its insert gave.
            vectors: Rows of the embeddings, digest and vector, by content.
        """
        self.scope.create()
        time = max(check_clock(self.database, log_end), log_end.time)
        size = self._BATCH or len(entries) or 1
        for start in range(0, len(entries), size):
            batch = entries[start : start + size]
            rows = {entry.content: vectors[entry.content] for entry in batch}
            position = log_end.position + 1 + start
            self.log.append_inserts(position, time, batch, optional_fields[start : start + size])
            self.entries.insert_logged(position, [vectors[entry.content][0] for entry in batch])
            self.vectors.insert_new(rows)

    def ids_matching(self, where: Filter) -> tuple[list[str], list[int]]:
        """Return the ids of which any version passes a filter, and the positions of other quarantined changes that do.

        The ids are those of entries, live or ended, and of quarantined inserts.
        """
        ids = dict.fromkeys(entry.id for entry in self.entries.all_versions() if where.matches(entry))
        changes = []
        for item in list_quarantined(self.log, pending=False):
            intended = item.operation
            id = intended.id or f"quarantined#{item.position}"
            fields = {name: getattr(intended, name) for name in ENTRY_NAMES}
            fields |= {"id": id} | {name: fields[name] or value for name, value in new_defaults().items()}
            if where.matches(MemoryEntry(**fields)):
                if intended.id is None:
                    ids[id] = None
                else:
                    changes.append((item.position, id))
        return list(ids), [position for position, id in changes if id not in ids]

    def erase(self, ids: Collection[str], changes: Collection[int] = ()) -> list[str]:
        """Turn all operations on `ids` into stubs; return other ids that hold, or held, the same content.

        Their versions and vectors are deleted and the erasure is logged. The database must be scrubbed afterwards. An
        operation that was quarantined and then accepted as one of the entries is erased with it.

        Args:
            ids: Ids of entries, or of quarantined inserts.
            changes: Positions of quarantined changes to other entries, which become stubs, too.
        """
        quarantined = [(id, content_digest(content)) for id, content in quarantined_contents(self.log)]
        ids = {*ids, *accepted_as(self.log, ids)} if quarantined else ids
        holders = self.entries.holders(ids)
        for digest in {digest for id, digest in quarantined if id in ids} - holders.keys():
            holders[digest] = self.entries.ids_with(digest)
        erased = self.log.erase(ids)
        self.log.clear([(None, position) for position in changes])
        if erased or changes:
            self.entries.delete(dict.fromkeys(erased))
            self.vectors.delete(digest for digest, other in holders.items() if other <= set(ids))
            self.write(Operation("erased"))
            self.database.mark_for_scrub()
        quarantined_ids = {id for id, digest in quarantined if digest in holders}
        return sorted(quarantined_ids.union(*holders.values()).difference(ids))

    def erase_all(self) -> int:
        """Turn all operations into stubs, as `erase` does; return their number."""
        erased = self.log.erase(None)
        if erased:
            self.entries.delete(dict.fromkeys(erased))
            self.vectors.delete_unused()
            self.write(Operation("erased"))
            self.database.mark_for_scrub()
        return len(erased)

    def erase_core_history(self) -> int:
        """Turn all core updates but the last into stubs; return their number. As after `erase`, a scrub is due.

        Quarantined updates that hold a text of the past, as the one they would replace, become stubs, too.
        """
        quarantined = past_core_quarantine(self.log, self.log.core_at(self.log.position))
        count = self.log.erase_core_history(quarantined)
        if count or quarantined:
            self.write(Operation("erased"))
            self.database.mark_for_scrub()
        return count

    def drop(self) -> int:
        """Delete the namespace with its log; return the number of operations. As after `erase`, a scrub is due."""
        count = self.log.position
        if self.scope.namespace_id >= 0:
            with self.database.unlock_log():
                for table in ("versions", "vectors", "operations"):
                    self.scope.select(f"DELETE FROM {table} WHERE ns = ?")
            self.scope.drop()
            self.database.mark_for_scrub()
        return count

    def copy_to(self, target: Namespace, position: int) -> None:
        """Copy the log up to a position, with its versions and vectors, into an empty namespace of any database.

        Raises `DamagedStore` for a vector that no store writes.
        """
        target.scope.create()
        target.log.extend(self.log.rows(position))
        target.entries.extend(self.entries.rows(position))
        dim = int(json.loads(target.database.meta["embedder"])["dim"])
        target.vectors.extend(_sound_vectors(self.vectors.rows(position), dim))


def _sound_vectors(rows: Iterable[tuple[bytes, bytes]], dim: int) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over rows of `VectorTable.rows`. Raises `DamagedStore` for an unsound one."""
    remaining = iter(rows)
    while batch := list(islice(remaining, _CHECKED_TOGETHER)):
        digests, vectors = zip(*batch, strict=True)
        decode_vectors([digest.hex() for digest in digests], vectors, dim)
        yield from batch
