"""Reads of one namespace of a store: its log, versions and vectors."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from memalpha.errors import StoreError
from memalpha.store.backends.base import Backend
from memalpha.store.backends.row_codec import (
    ENTRY_COLUMNS,
    content_digest,
    decode_entry,
    decode_operation,
    is_storable,
)
from memalpha.store.filters import format_utc, parse_time
from memalpha.store.schema import MemorySchema
from memalpha.types import MemoryEntry, Operation

VERSION_COLUMNS = f"version, valid_from, valid_to, created, digest, {ENTRY_COLUMNS}"
_BATCH = 500  # values per statement
_FINGERPRINT_ROWS = 64  # log rows that a fingerprint covers
_SELECT_LOG_END = (
    "SELECT seq, time, (SELECT min(expires) FROM versions INDEXED BY expiring "
    "WHERE ns = ?1 AND valid_to IS NULL AND expires IS NOT NULL) "
    "FROM operations WHERE ns = ?1 ORDER BY seq DESC LIMIT 1"
)
_SELECT_DUPLICATE = (
    "SELECT id FROM versions INDEXED BY live_content "
    "WHERE ns = ? AND digest = ? AND valid_to IS NULL AND category = ? AND content = ?"
)  # one column only: sqlite3 describes every column at each execution, which costs as much as the lookup
_IS_LIVE = "valid_to IS NULL"
_WAS_LIVE = "valid_from <= ? AND (valid_to IS NULL OR valid_to > ?)"


class LogEnd(NamedTuple):
    """End of a namespace's log.

    Attributes:
        position: Position of the last operation; 0 for an empty log.
        time: Time of the last operation.
        next_expiry: Time at which the next live entry expires, or None.
    """

    position: int = 0
    time: str = ""
    next_expiry: str | None = None


class NamespaceReader:
    """Queries over one namespace. Call every method inside a transaction."""

    _HAS_SOURCE = "source = ?"
    _SELECT_ENTRY_VECTORS = (
        "SELECT v.id, x.vector FROM json_each(?) wanted CROSS JOIN versions v ON v.ns = ? AND v.id = wanted.value "
        "AND v.valid_to IS NULL CROSS JOIN vectors x ON x.ns = v.ns AND x.digest = v.digest"  # fixed order
    )
    _list_parameter = staticmethod(json.dumps)  # encodes a list as one parameter

    def __init__(self, database: Backend, name: str, schema: MemorySchema) -> None:
        self.database = database
        self.name = name
        self.schema = schema

    def transaction(self, *, write: bool = True) -> AbstractContextManager[Any]:
        """Open a database transaction on this namespace."""
        return self.database.transaction(self.name, write=write)

    @property
    def _statements(self) -> Any:
        return self.database._connection

    @property
    def namespace_id(self) -> int:
        """Id of the namespace; -1, which no row has, before its first operation."""
        namespace_id = self.database.namespace_ids.get(self.name)
        if namespace_id is None:
            row = self._statements.execute("SELECT ns FROM namespaces WHERE name = ?", (self.name,)).fetchone()
            if row is None:
                return -1
            namespace_id = self.database.namespace_ids[self.name] = int(row[0])
        return namespace_id

    @property
    def position(self) -> int:
        """Number of operations in the log."""
        query = "SELECT seq FROM operations WHERE ns = ? ORDER BY seq DESC LIMIT 1"
        return (self._statements.execute(query, (self.namespace_id,)).fetchone() or (0,))[0]

    def log_end(self) -> LogEnd:
        """Return the end of the log."""
        row = self._statements.execute(_SELECT_LOG_END, (self.namespace_id,)).fetchone()
        return LogEnd(*row) if row else LogEnd()

    def effective_position(self, position: int) -> int:
        """Return the position whose facts the memory holds after a log row; 0 before the first."""
        row = self._statements.execute(
            "SELECT head FROM operations WHERE ns = ? AND seq = ?", (self.namespace_id, position)
        ).fetchone()
        return row[0] if row else 0

    def operation_kind(self, position: int) -> str:
        """Return the kind of the operation at a position; "" before the first."""
        row = self._statements.execute(
            "SELECT kind FROM operations WHERE ns = ? AND seq = ?", (self.namespace_id, position)
        ).fetchone()
        return row[0] if row else ""

    def position_at(self, time: str) -> int:
        """Return the last position at or before `time`. Times never decrease along the log."""
        query = "SELECT time FROM operations WHERE ns = ? AND seq = ?"
        log = range(1, self.position + 1)
        return bisect_right(
            log, time, key=lambda position: self._statements.execute(query, (self.namespace_id, position)).fetchone()[0]
        )

    def resolve_as_of(self, as_of: int | str | None) -> int | None:
        """Return the log position that `as_of` means; None (now) stays None. Raises `StoreError`."""
        if as_of is None:
            return None
        if isinstance(as_of, str):
            try:
                return self.position_at(format_utc(parse_time(as_of)))
            except (ValueError, OverflowError) as error:
                raise StoreError(f"as_of {as_of!r} is neither a log position nor an ISO time") from error
        if isinstance(as_of, bool) or not isinstance(as_of, int) or as_of < 0:
            raise StoreError(f"as_of {as_of!r} is neither a log position (0 or more) nor an ISO time")
        return min(as_of, self.position)

    def resolve_position(self, as_of: int | str | None) -> int:
        """Return the log position that `as_of` means; for None, the current one. Raises `StoreError`."""
        position = self.resolve_as_of(as_of)
        return self.position if position is None else position

    def is_used(self, id: str) -> bool:
        """Return True if an entry ever had this id."""
        rows = self._statements.execute(
            "SELECT 1 FROM versions WHERE ns = ? AND id = ? LIMIT 1", (self.namespace_id, id)
        )
        return rows.fetchone() is not None

    def latest_version(self, id: str) -> MemoryEntry | None:
        """Return the newest version of an entry, live or ended; None for an unused id."""
        return self._select_one("id = ? ORDER BY version DESC LIMIT 1", id)

    def find(self, category: str, content: str) -> MemoryEntry | None:
        """Return the live entry of the category with exactly this content."""
        is_valid = is_storable(content) and is_storable(category)
        row = (
            is_valid
            and self._statements.execute(
                _SELECT_DUPLICATE, (self.namespace_id, content_digest(content), category, content)
            ).fetchone()
        )
        return self.latest_version(row[0]) if row else None

    def version_at(self, id: str, position: int | None) -> MemoryEntry | None:
        """Return the version of an entry that is live, or was live at a position."""
        entry = self._select_one(
            f"id = ? AND {_IS_LIVE if position is None else _WAS_LIVE}", id, *_live_parameters(position)
        )
        return replace(entry, valid_to=None) if entry else None

    def versions_at(self, ids: Sequence[str], position: int | None) -> dict[str, MemoryEntry]:
        """Return `version_at` of several entries, by id; entries that are not live are left out."""
        where = _IS_LIVE if position is None else _WAS_LIVE
        entries = {}
        for start in range(0, len(ids), _BATCH):
            batch = ids[start : start + _BATCH]
            for entry in self._select(
                f"id IN ({','.join('?' * len(batch))}) AND {where}", *batch, *_live_parameters(position)
            ):
                entries[entry.id] = entry if entry.valid_to is None else replace(entry, valid_to=None)
        return entries

    def entries_with_contents(self, contents: Sequence[str]) -> dict[tuple[str, str], MemoryEntry]:
        """Return the live entries with exactly one of these contents, by category and content."""
        digests, entries = [content_digest(content) for content in contents], {}
        for start in range(0, len(digests), _BATCH):
            batch = digests[start : start + _BATCH]
            where = f"valid_to IS NULL AND digest IN ({','.join('?' * len(batch))})"
            for entry in self._select(where, *batch, index="live_content"):
                entries[entry.category, entry.content] = entry
        return entries

    def version_ended_at(self, id: str, position: int) -> MemoryEntry | None:
        """Return the version of an entry that the operation at `position` ended, or None."""
        return self._select_one("id = ? AND valid_to = ?", id, position)

    def history(self, id: str) -> list[MemoryEntry]:
        """Return all versions of an entry, oldest first; an empty list for an unused id."""
        return list(self._select("id = ? ORDER BY version", id)) if is_storable(id) else []

    def live_entries(
        self,
        category: str | None = None,
        *,
        after: str | None = None,
        limit: int | None = None,
        position: int | None = None,
    ) -> list[MemoryEntry]:
        """Return the live entries, oldest id first.

        Args:
            category: Entries of this category only.
            after: Only entries created after this id.
            limit: Number of entries at most.
            position: Entries live at this position, as they were then; None means now.
        """
        where, values = _IS_LIVE if position is None else _WAS_LIVE, _live_parameters(position)
        if category is not None:
            where, values = where + " AND category = ?", [*values, category]
        if after is not None:
            where += " AND created > (SELECT min(created) FROM versions WHERE ns = ? AND id = ?)"
            values = [*values, self.namespace_id, after]
        index = "live_order" if position is None else None
        where += " ORDER BY created"
        if limit is not None:
            where, values = where + " LIMIT ?", [*values, limit]
        entries = self._select(where, *values, index=index)
        return [entry if entry.valid_to is None else replace(entry, valid_to=None) for entry in entries]

    def recent(self, position: int, n: int) -> list[MemoryEntry]:
        """Return the `n` live entries that were written last, newest first; `position` is the log's end.

        The log is read backwards in pages: the last operation on an id is the one that made its live version.
        """
        query = "SELECT seq, id FROM operations WHERE ns = ? AND seq <= ? ORDER BY seq DESC LIMIT ?"
        entries: dict[str, MemoryEntry | None] = {}
        live, page = 0, n
        while position > 0 and live < n:
            ids = [
                id
                for _, id in self._statements.execute(query, (self.namespace_id, position, page))
                if id and id not in entries
            ]
            current = self.versions_at(list(dict.fromkeys(ids)), None)
            entries.update((id, current.get(id)) for id in ids)
            live += len(current)
            position -= page
            page = min(2 * page, _BATCH)
        return [entry for entry in entries.values() if entry is not None][:n]

    def spans(self, entry: MemoryEntry, position: int | None, *, after: bool) -> Iterator[MemoryEntry]:
        """Iterate over the live spans of an entry's source, nearest first.

        Args:
            entry: Entry whose source is read.
            position: Position at which the spans are live; None means now.
            after: True for the spans after the entry, False for those before it.
        """
        comparison, direction = (">", "ASC") if after else ("<", "DESC")
        bounds_of_entry = -1 if entry.chunk is None else entry.chunk, self.creation_positions([entry.id])[entry.id]
        in_source = f"{self._HAS_SOURCE} AND source IS NOT NULL AND turn IS NOT NULL"  # conditions of the partial index
        in_source += f" AND {_IS_LIVE if position is None else _WAS_LIVE} AND coalesce(chunk, -1)"
        same_chunk = f"{in_source} = ? AND created {comparison} ? ORDER BY created {direction}"
        other_chunks = f"{in_source} {comparison} ? ORDER BY coalesce(chunk, -1) {direction}, created {direction}"
        index = "spans" if position is None else None
        for where, bounds in ((same_chunk, bounds_of_entry), (other_chunks, bounds_of_entry[:1])):
            for span in self._select(where, entry.source, *_live_parameters(position), *bounds, index=index):
                yield span if span.valid_to is None else replace(span, valid_to=None)

    def search_rows(self, page_size: int) -> Iterator[list[tuple[Any, ...]]]:
        """Iterate over the live entries in batches, oldest id first, with all that a search index needs.

        A row is id, content, category, position, source, chunk, turn, creation position, and vector or None.
        """
        rows = self._statements.execute(
            "SELECT v.id, v.content, v.category, v.valid_from, v.source, v.chunk, v.turn, v.created, x.vector "
            "FROM versions v INDEXED BY live_order "
            "LEFT JOIN vectors x ON x.ns = v.ns AND x.digest = v.digest "
            "WHERE v.ns = ? AND v.valid_to IS NULL ORDER BY v.created",
            (self.namespace_id,),
        )
        while batch := rows.fetchmany(page_size):
            yield batch

    def latest_versions(self) -> Iterator[tuple[MemoryEntry, int]]:
        """Iterate over the newest version of every entry ever made, with the position that created its id."""
        created = dict(
            self._statements.execute(
                "SELECT id, min(created) FROM versions WHERE ns = ? GROUP BY id", (self.namespace_id,)
            )
        )
        for entry in {entry.id: entry for entry in self._select("true ORDER BY id, version")}.values():
            yield entry, created[entry.id]

    def changed_ids(self, after: int) -> list[str]:
        """Return the ids that operations after a position changed."""
        query = "SELECT DISTINCT id FROM operations WHERE ns = ? AND seq > ? AND id IS NOT NULL"
        return [id for (id,) in self._statements.execute(query, (self.namespace_id, after))]

    def creation_positions(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the creation position of each id."""
        query = "SELECT created FROM versions WHERE ns = ? AND id = ? LIMIT 1"
        return {id: self._statements.execute(query, (self.namespace_id, id)).fetchone()[0] for id in ids}

    def core_at(self, position: int) -> str:
        """Return the core memory text at a position."""
        row = self._statements.execute(
            "SELECT content FROM operations INDEXED BY core_updates WHERE ns = ? AND kind = 'core_update' AND seq <= ? "
            "ORDER BY seq DESC LIMIT 1",
            (self.namespace_id, position),
        ).fetchone()
        return row[0] if row else ""

    def has_erasure_after(self, position: int) -> bool:
        """Return True if entries were erased after a position, so that earlier states may have changed."""
        query = "SELECT 1 FROM operations WHERE ns = ? AND seq > ? AND kind = 'erased' LIMIT 1"
        return self._statements.execute(query, (self.namespace_id, position)).fetchone() is not None

    def expired_entries(self, time: str) -> list[tuple[str, str]]:
        """Return id and expiry of the live entries that expire at or before a time, earliest first."""
        query = (
            "SELECT id, expires FROM versions INDEXED BY expiring WHERE ns = ? AND valid_to IS NULL "
            "AND expires IS NOT NULL AND expires <= ? ORDER BY expires, created"
        )
        return self._statements.execute(query, (self.namespace_id, time)).fetchall()

    def has_expired(self, position: int, later: int) -> bool:
        """Return True if the entry of a log row has expired by a later position."""
        query = (
            "SELECT v.valid_to, e.kind FROM versions v LEFT JOIN operations e ON e.ns = v.ns AND e.seq = v.valid_to "
            "WHERE v.ns = ?1 AND v.id = (SELECT id FROM operations WHERE ns = ?1 AND seq = ?2) AND v.valid_from <= ?3 "
            "ORDER BY v.version DESC LIMIT 1"
        )
        ended_at, kind = self._statements.execute(query, (self.namespace_id, position, later)).fetchone() or (0, "")
        return kind == "expired" and position < ended_at <= later

    def fingerprint(self, position: int) -> str:
        """Return a digest of the last log rows up to a position.

        Logs that have diverged differ in it.
        """
        query = f"SELECT seq, time, head, kind, {ENTRY_COLUMNS} FROM operations WHERE ns = ? AND seq > ? AND seq <= ?"
        rows = self._statements.execute(
            query + " ORDER BY seq", (self.namespace_id, position - _FINGERPRINT_ROWS, position)
        ).fetchall()
        return hashlib.sha256(repr(rows).encode("utf-8", "surrogatepass")).hexdigest()

    def log(self, after: int, limit: int) -> list[tuple[int, str, int, Operation]]:
        """Return at most `limit` rows after a position: position, time, effective position, operation."""
        rows = self._statements.execute(
            f"SELECT seq, time, head, kind, {ENTRY_COLUMNS} FROM operations "
            "WHERE ns = ? AND seq > ? ORDER BY seq LIMIT ?",
            (self.namespace_id, after, limit),
        )
        return [(position, time, head, decode_operation(kind, rest)) for position, time, head, kind, *rest in rows]

    def stored_vectors(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the stored embeddings of the texts that have one, float32 (dim,) each."""
        query, vectors = "SELECT vector FROM vectors WHERE ns = ? AND digest = ?", {}
        for text in texts:
            row = self._statements.execute(query, (self.namespace_id, content_digest(text))).fetchone()
            if row is not None:
                vectors[text] = np.frombuffer(row[0], "<f4")
        return vectors

    def entry_vectors(self, ids: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the stored embeddings of live entries by id, in one statement; missing ones are left out."""
        rows = self._statements.execute(self._SELECT_ENTRY_VECTORS, (self._list_parameter(ids), self.namespace_id))
        return {id: np.frombuffer(vector, "<f4") for id, vector in rows}

    def all_versions(self) -> Iterator[MemoryEntry]:
        """Iterate over every version of every entry, live or ended, oldest id first."""
        return self._select("true ORDER BY created, version")

    def version_rows(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the raw rows of `versions`; `version_row` builds the expected ones."""
        return self._statements.execute(f"SELECT {VERSION_COLUMNS} FROM versions WHERE ns = ?", (self.namespace_id,))

    def vector_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the raw rows of `vectors`: digest and vector."""
        return self._statements.execute("SELECT digest, vector FROM vectors WHERE ns = ?", (self.namespace_id,))

    def ids_with_same_content(self, ids: Collection[str]) -> list[str]:
        """Return other ids that hold, or held, a content of one of these ids."""
        query = (
            "SELECT DISTINCT id FROM versions WHERE ns = ? AND digest IN "
            "(SELECT digest FROM versions WHERE ns = ? AND id = ?) ORDER BY id"
        )
        candidates = [
            id
            for id_of_content in ids
            for (id,) in self._statements.execute(query, (self.namespace_id, self.namespace_id, id_of_content))
        ]
        return [id for id in dict.fromkeys(candidates) if id not in ids]

    def _select_one(self, where: str, *values: Any, index: str | None = None) -> MemoryEntry | None:
        is_valid = all(map(is_storable, values))
        row = (
            is_valid and self._statements.execute(_version_query(where, index), (self.namespace_id, *values)).fetchone()
        )
        return decode_entry(row) if row else None

    def _select(self, where: str, *values: Any, index: str | None = None) -> Iterator[MemoryEntry]:
        return map(decode_entry, self._statements.execute(_version_query(where, index), (self.namespace_id, *values)))


@cache
def _version_query(where: str, index: str | None) -> str:
    # Name partial indexes: without statistics, SQLite's planner would scan the namespace instead.
    table = f"versions INDEXED BY {index}" if index else "versions"
    return f"SELECT {ENTRY_COLUMNS}, version, valid_from, valid_to FROM {table} WHERE ns = ? AND {where}"


def _live_parameters(position: int | None) -> list[Any]:
    """Return the parameters of `_IS_LIVE` or `_WAS_LIVE`."""
    return [] if position is None else [position, position]
