"""`Namespace`: the log, entries and vectors of one namespace, written together, in SQLite and PostgreSQL.

Their tables are `OperationLog`, `EntryTable` (every version of every entry, live or ended) and `VectorTable` (the
embedding of each content). `NamespaceScope` is what all three need of the database: its statements and the namespace's
id. `postgres.database` replaces the statements that differ in PostgreSQL.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from itertools import islice, repeat
from numbers import Integral
from typing import Any, NamedTuple, TypeVar

import numpy as np

from memalpha.arguments import brief_repr
from memalpha.errors import DamagedStore, InvalidArgument, StoreError, UnknownEntry
from memalpha.store.backends.base import Backend
from memalpha.store.embedding import first_faulty_row
from memalpha.store.fields import (
    ENTRY_COLUMNS,
    ENTRY_NAMES,
    NAMES,
    OPERATION_NAMES,
    OPERATION_VALUES,
    TIMES,
    CheckedFact,
    check_stored,
    content_digest,
    decode_entries,
    decode_entry,
    decode_log_row,
    format_utc,
    is_storable,
    iso_hint,
    make_entry,
    make_ids,
    new_defaults,
    operation_values,
    parse_time,
    row_values,
    version_row,
)
from memalpha.store.filters import Filter
from memalpha.store.quarantine import WRITER, accepted_as, list_quarantined, past_core_quarantine, quarantined_contents
from memalpha.store.schema import MemorySchema
from memalpha.store.state import NOT_UNDOABLE, Change, canonical_json, fact_identity, plan
from memalpha.types import MemoryEntry, Operation

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
        return self.database.connection

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

    def select(self, sql: str, *values: Any) -> Any:
        """Execute a statement whose first value is the namespace's id, and return its cursor."""
        return self.statements.execute(sql, (self.namespace_id, *values))

    def first(self, sql: str, *values: Any) -> Any:
        """Return the first row of `select`, or None."""
        return self.statements.execute(sql, (self.namespace_id, *values)).fetchone()

    def execute_each(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Execute a statement for each row of values, each after the namespace's id."""
        namespace_id = self.namespace_id
        self.statements.executemany(sql, ((namespace_id, *row) for row in rows))

    def insert(self, table: str, columns: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert rows of values of some columns, without those that are None in 500 rows: binding one takes .26 µs."""
        for batch, _ in _batches(rows):
            pairs = zip(columns.split(", "), zip(*batch, strict=True), strict=True)
            filled = {name: values for name, values in pairs if values.count(None) < len(values)}
            sql = f"INSERT INTO {table} (ns, {', '.join(filled)}) VALUES (?{', ?' * len(filled)})"
            self.statements.executemany(sql, zip(repeat(self.namespace_id), *filled.values(), strict=False))


T = TypeVar("T")
OPERATION_COLUMNS = f"seq, time, head, kind, {OPERATION_VALUES}"
_FEW = 500  # ids that a statement names
_LAST = 2**63 - 1  # position after all others
_INSERT_OPERATION = f"INSERT INTO operations (ns, {OPERATION_COLUMNS}) VALUES (?{', ?' * (4 + len(OPERATION_NAMES))})"
_SELECT_LOG_END = (
    "SELECT seq, time, (SELECT min(expires) FROM versions INDEXED BY expiring "
    "WHERE ns = ?1 AND valid_to IS NULL AND expires IS NOT NULL) "
    "FROM operations WHERE ns = ?1 ORDER BY seq DESC LIMIT 1"
)


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


def _batches(values: Iterable[T]) -> Iterator[tuple[list[T], str]]:
    """Yield the values in batches that a statement can name, each with its placeholders."""
    remaining = iter(values)
    while batch := list(islice(remaining, _FEW)):
        yield batch, ",".join("?" * len(batch))


class OperationLog:
    """Operations of a namespace by position: 1, 2, 3 and so on. Call every method inside a transaction."""

    def __init__(self, scope: NamespaceScope) -> None:
        self._scope = scope

    @property
    def position(self) -> int:
        """Position of the last operation; 0 for an empty log."""
        (position,) = self._scope.first("SELECT seq FROM operations WHERE ns = ? ORDER BY seq DESC LIMIT 1") or (0,)
        return check_stored("the log", "its last position", position, int)

    def end(self) -> LogEnd:
        """Return the end of the log. Raises `DamagedStore`."""
        row = self._scope.first(_SELECT_LOG_END)
        if row is None:
            return LogEnd()
        position, time, expiry = row
        if expiry is not None and type(expiry) is not str:
            (id,) = self._scope.first("SELECT id FROM versions WHERE ns = ? AND typeof(expires) = 'blob' LIMIT 1")
            check_stored(id, "its expiry", expiry, str)
        check_stored("the log", "its last time", time, str)
        return LogEnd(check_stored("the log", "its last position", position, int), time, expiry)

    def effective_position(self, position: int) -> int:
        """Return the position whose facts the memory holds after a log row; 0 before the first."""
        row = self._scope.first("SELECT head FROM operations WHERE ns = ? AND seq = ?", position)
        return check_stored("the log", f"the head of position {position}", row[0], int) if row else 0

    def kind_at(self, position: int) -> str:
        """Return the kind of the operation at a position; "" before the first."""
        return (self._scope.first("SELECT kind FROM operations WHERE ns = ? AND seq = ?", position) or ("",))[0]

    def position_at(self, time: str) -> int:
        """Return the last position at or before `time`. Times never decrease along the log."""

        def time_at(position: int) -> str:
            row = self._scope.first("SELECT time FROM operations WHERE ns = ? AND seq = ?", position) or (None,)
            return check_stored("the log", f"the time of position {position}", row[0], str)

        return bisect_right(range(1, self.position + 1), time, key=time_at)

    def resolve_as_of(self, as_of: int | str | None, name: str = "as_of") -> int | None:
        """Return the log position that `as_of` means; None (now) stays None. Raises `StoreError` with its name."""
        if as_of is None:
            return None
        if isinstance(as_of, str):
            try:
                return self.position_at(format_utc(parse_time(as_of)))
            except (ValueError, OverflowError) as error:
                raise StoreError(f"{name} {brief_repr(as_of)} is neither a log position nor an ISO time") from error
        if isinstance(as_of, bool) or not isinstance(as_of, Integral) or as_of < 0:
            raise StoreError(f"{name} {brief_repr(as_of)} is no log position from 0, nor an ISO time{iso_hint(as_of)}")
        if as_of > (end := self.position):
            raise InvalidArgument(f"{name} {brief_repr(as_of)}: the log ends at position {end}")
        return int(as_of)

    def resolve_position(self, as_of: int | str | None, name: str = "as_of") -> int:
        """Return the log position that `as_of` means; for None, the current one. Raises `StoreError` with its name."""
        position = self.resolve_as_of(as_of, name)
        return self.position if position is None else position

    def page(self, after: int, limit: int) -> list[tuple[int, str, int, Operation]]:
        """Return at most `limit` rows after a position: position, time, effective position, operation."""
        rows = self._scope.select(
            f"SELECT {OPERATION_COLUMNS} FROM operations WHERE ns = ? AND seq > ? ORDER BY seq LIMIT ?", after, limit
        )
        return [decode_log_row(tuple(row)) for row in rows]

    def quarantine(self) -> list[tuple[int, str, Operation]]:
        """Return the operations that were quarantined, and their reviews: position, time, operation."""
        query = (
            f"SELECT {OPERATION_COLUMNS} FROM operations INDEXED BY quarantine "
            "WHERE ns = ? AND kind IN ('quarantined', 'reviewed') ORDER BY seq"
        )
        rows = (decode_log_row(tuple(row)) for row in self._scope.select(query))
        return [(position, time, operation) for position, time, _, operation in rows]

    def core_at(self, position: int) -> str:
        """Return the core memory text at a position."""
        row = self._scope.first(
            "SELECT content FROM operations INDEXED BY core_updates WHERE ns = ? AND kind = 'core_update' AND seq <= ? "
            "ORDER BY seq DESC LIMIT 1",
            position,
        )
        return check_stored("the log", "a text of the core memory", row[0], str) if row else ""

    def changed_ids(self, after: int, last: int | None = None) -> list[str]:
        """Return the ids that operations after a position changed, up to `last` (the log's end)."""
        query = "SELECT DISTINCT id FROM operations WHERE ns = ? AND seq > ? AND seq <= ? AND id IS NOT NULL"
        return [id for (id,) in self._scope.select(query, after, _LAST if last is None else last)]

    def last_ids(self, position: int, limit: int) -> list[tuple[int, str | None]]:
        """Return position and id of the last `limit` operations up to a position, newest first.

        The id is None where an operation changes no entry, as in quarantine.
        """
        query = "SELECT seq, kind, id FROM operations WHERE ns = ? AND seq <= ? ORDER BY seq DESC LIMIT ?"
        rows = self._scope.select(query, position, limit)
        return [(at, None if kind == "quarantined" else id) for at, kind, id in rows]

    def has_erasure_after(self, position: int) -> bool:
        """Return True if entries were erased after a position, so that earlier states may have changed."""
        query = "SELECT 1 FROM operations INDEXED BY erasures WHERE ns = ? AND seq > ? AND kind = 'erased' LIMIT 1"
        return self._scope.first(query, position) is not None

    def rows(self, position: int) -> Any:
        """Return a cursor over the raw rows up to a position, in log order."""
        query = f"SELECT {OPERATION_COLUMNS} FROM operations WHERE ns = ? AND seq <= ? ORDER BY seq"
        return self._scope.select(query, position)

    def extend(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Append raw rows: position, time, effective position, kind and the columns `OPERATION_VALUES`."""
        self._scope.insert("operations", OPERATION_COLUMNS, rows)

    def erase_core_history(self, quarantined: Iterable[int] = ()) -> int:
        """Turn all core updates but the last into stubs and return their number.

        Args:
            quarantined: Positions of quarantined core updates that become stubs, too.
        """
        query = "SELECT seq FROM operations INDEXED BY core_updates WHERE ns = ? AND kind = 'core_update' ORDER BY seq"
        positions = [position for (position,) in self._scope.select(query)][:-1]
        self.clear([(None, position) for position in (*positions, *quarantined)])
        return len(positions)

    def erase(self, ids: Collection[str] | None) -> list[str | None]:
        """Turn all operations on `ids` (None: all operations) into stubs and return their ids, in log order."""
        few = () if ids is None or len(ids) > _FEW else tuple(ids)  # the database finds a few in a quarter of the time
        condition = f"AND id IN ({','.join('?' * len(few))})" if few else ""
        query = f"SELECT seq, id FROM operations WHERE ns = ? AND kind <> 'erased' {condition} ORDER BY seq"
        erased_ids = set(ids or ())
        rows = [(position, id) for position, id in self._scope.select(query, *few) if ids is None or id in erased_ids]
        first_positions: dict[str | None, int] = {}
        for position, id in rows:
            first_positions.setdefault(id, position)
        self.clear([(id and f"erased#{first_positions[id]}", position) for position, id in rows])
        return [id for _, id in rows]

    def forks(self, ids: Sequence[str], names: Sequence[str]) -> list[str]:
        """Return those of `names` whose log shares operations on some ids with this one, as forks do."""
        found: set[str] = set()
        for batch, marks in _batches(ids):
            query = (  # each log is read by its positions
                "SELECT DISTINCT n.name FROM operations own CROSS JOIN namespaces n CROSS JOIN operations o "
                f"WHERE own.ns = ? AND own.id IN ({marks}) "
                f"AND n.name IN ({','.join('?' * len(names))}) "
                "AND o.ns = n.ns AND o.seq = own.seq AND o.id = own.id AND o.time = own.time"
            )
            found.update(name for (name,) in self._scope.select(query, *batch, *names))
        return sorted(found)

    def clear(self, stubs: Iterable[tuple[str | None, int]]) -> None:
        """Turn operations into stubs, given by the id of the stub and the position."""
        cleared = ", ".join(f"{name} = NULL" for name in OPERATION_NAMES[1:])
        self._scope.statements.executemany(
            f"UPDATE operations SET kind = 'erased', id = ?, {cleared} WHERE ns = ? AND seq = ?",
            [(id, self._scope.namespace_id, position) for id, position in stubs],
        )


VERSION_COLUMNS = f"version, valid_from, valid_to, created, digest, {ENTRY_COLUMNS}"
_PAGE = 1000  # entries that are read at once to filter them
_INSERT_VERSION = f"INSERT INTO versions (ns, {VERSION_COLUMNS}) VALUES ({','.join('?' * (6 + len(ENTRY_NAMES)))})"
_SELECT_DUPLICATE = (
    "SELECT id FROM versions INDEXED BY live_content "
    "WHERE ns = ? AND digest = ? AND valid_to IS NULL AND category = ? AND content = ?"
)  # one column only: sqlite3 describes every column at each execution, which costs as much as the lookup
_SELECT_SAME = (  # what `fact_identity` has of a lasting fact
    f"{_SELECT_DUPLICATE.replace('id', 'id, metadata', 1)} AND length(metadata) = ? AND coalesce(expires, '') = ? "
    "AND coalesce(turn, '') = ? "
)
_AT_PLACE = "AND coalesce(timestamp, '') = ? AND coalesce(source, '') = ? AND coalesce(chunk, -1) = ? "
_IS_LIVE = "valid_to IS NULL"
_WAS_LIVE = "valid_from <= ? AND (valid_to IS NULL OR valid_to > ?)"


class EntryTable:
    """Versions of a namespace's entries, which `plan` reads. Call every method inside a transaction."""

    unique_contents = False
    _HAS_SOURCE = "source = ?"
    _HAS_TEXT = "instr(metadata, ?2) > 0"

    def __init__(self, scope: NamespaceScope, schema: MemorySchema) -> None:
        self._scope, self.schema = scope, schema

    def used_ids(self, ids: Sequence[str]) -> set[str]:
        used = set()
        for batch, marks in _batches(ids):
            query = f"SELECT DISTINCT id FROM versions WHERE ns = ? AND id IN ({marks})"
            used.update(id for (id,) in self._scope.select(query, *batch))
        return used

    def has_erasure(self) -> bool:
        query = "SELECT 1 FROM operations INDEXED BY erasures WHERE ns = ? AND kind = 'erased' LIMIT 1"
        return self._scope.first(query) is not None

    def latest_version(self, id: str) -> MemoryEntry | None:
        return self._select_one("id = ? ORDER BY version DESC LIMIT 1", id) if isinstance(id, str) else None

    def find(self, category: str, content: str) -> MemoryEntry | None:
        """Return the oldest live entry of the category with exactly this content."""
        if not (is_storable(content) and is_storable(category)):
            return None
        row = self._scope.first(f"{_SELECT_DUPLICATE} ORDER BY created", content_digest(content), category, content)
        return self.latest_version(row[0]) if row else None

    def find_same(self, fact: Operation) -> MemoryEntry | None:
        assert fact.content is not None
        holder = content_digest(fact.content), fact.category, fact.content
        if self._scope.first(_SELECT_DUPLICATE, *holder) is None:
            return None
        _, _, metadata, *rest = fact_identity(self.schema, fact)
        query = f"{_SELECT_SAME}{_AT_PLACE if len(rest) > 2 else ''}ORDER BY created"
        rows = self._scope.select(query, *holder, len(metadata), *rest)
        letters = sorted(metadata)  # compared first: parsing the metadata of thousands of holders would take long
        same = (id for id, text in rows if sorted(text) == letters and canonical_json(json.loads(text)) == metadata)
        return self.latest_version(next(same, ""))

    def version_at(self, id: str, position: int | None) -> MemoryEntry | None:
        """Return the version of an entry that is live, or was live at a position."""
        if not isinstance(id, str):
            return None
        where, values = _live_condition(position)
        entry = self._select_one(f"id = ? AND {where}", id, *values)
        return None if entry is None else _as_live(entry)

    def versions_at(self, ids: Sequence[str], position: int | None) -> dict[str, MemoryEntry]:
        """Return `version_at` of several entries, by id; entries that are not live are left out."""
        where, values = _live_condition(position)
        entries = {}
        for batch, marks in _batches(filter(is_storable, ids)):
            for entry in self._select_all(f"id IN ({marks}) AND {where}", *batch, *values):
                entries[entry.id] = _as_live(entry)
        return entries

    def with_contents(self, digests: Sequence[bytes]) -> dict[Hashable, MemoryEntry]:
        """Return the live entries whose content has one of these digests, by `fact_identity`; of equals the oldest."""
        entries: dict[Hashable, MemoryEntry] = {}
        for batch, marks in _batches(digests):
            where = f"{_IS_LIVE} AND digest IN ({marks}) ORDER BY created"
            for entry in self._select_all(where, *batch, index="live_content"):
                entries.setdefault(fact_identity(self.schema, entry), entry)
        return entries

    def version_ended_at(self, id: str, position: int) -> MemoryEntry | None:
        """Return the version of an entry that the operation at `position` ended, or None."""
        return self._select_one("id = ? AND valid_to = ?", id, position)

    def history(self, id: str) -> list[MemoryEntry]:
        """Return all versions of an entry, oldest first; an empty list for an unused id."""
        return list(self._select("id = ? ORDER BY version", id)) if isinstance(id, str) and is_storable(id) else []

    def histories(self, ids: Sequence[str]) -> dict[str, list[MemoryEntry]]:
        """Return all versions of several entries by id, oldest first; unused ids are left out."""
        versions: dict[str, list[MemoryEntry]] = {}
        for batch, marks in _batches(filter(is_storable, ids)):
            for entry in self._select(f"id IN ({marks}) ORDER BY id, version", *batch):
                versions.setdefault(entry.id, []).append(entry)
        return versions

    def live(
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
        where, values = _live_condition(position)
        if category is not None:
            where, values = where + " AND category = ?", [*values, category]
        if after is not None:
            where += " AND created > (SELECT min(created) FROM versions WHERE ns = ? AND id = ?)"
            values = [*values, self._scope.namespace_id, after]
        where += " ORDER BY created"
        if limit is not None:
            where, values = where + " LIMIT ?", [*values, limit]
        index = "live_order" if position is None else None
        return [_as_live(entry) for entry in self._select_all(where, *values, index=index)]

    def matching(
        self, where: Filter, category: str | None, *, after: str | None, limit: int | None, position: int | None
    ) -> list[MemoryEntry]:
        """Return the live entries that pass a filter, oldest id first.

        Args:
            where: Filter.
            category: Entries of this category only.
            after: Only entries created after this id.
            limit: Number of entries at most.
            position: Entries live at this position, as they were then; None means now.
        """
        matches: list[MemoryEntry] = []
        while limit is None or len(matches) < limit:
            page = self.live(category, after=after, limit=_PAGE, position=position)
            matches += [entry for entry in page if where.matches(entry)]
            if len(page) < _PAGE:
                break
            after = page[-1].id
        return matches[:limit]

    def count(self, category: str | None, position: int | None) -> int:
        """Return the number of entries that are live, or were at a position; of one category, if given."""
        where, values = _live_condition(position)
        if category is not None:
            where, values = where + " AND category = ?", [*values, category]
        index = " INDEXED BY live_order" if position is None else ""
        return self._scope.first(f"SELECT count(*) FROM versions{index} WHERE ns = ? AND {where}", *values)[0]

    def has_metadata_key(self, key: str) -> bool:
        """Return True if a live entry has this key in its metadata, or perhaps in a text there."""
        query = f"SELECT 1 FROM versions WHERE ns = ?1 AND {_IS_LIVE} AND {self._HAS_TEXT} LIMIT 1"
        return self._scope.first(query, json.dumps(key) + ": ") is not None

    def spans(self, entry: MemoryEntry, position: int | None, *, after: bool) -> Iterator[MemoryEntry]:
        """Iterate over the live spans of an entry's source, nearest first.

        Args:
            entry: Entry whose source is read.
            position: Position at which the spans are live; None means now.
            after: True for the spans after the entry, False for those before it.
        """
        comparison, direction = (">", "ASC") if after else ("<", "DESC")
        bounds_of_entry = -1 if entry.chunk is None else entry.chunk, self.creation_positions([entry.id])[entry.id]
        is_live, values = _live_condition(position)
        in_source = f"{self._HAS_SOURCE} AND source IS NOT NULL AND turn IS NOT NULL"  # conditions of the partial index
        in_source += f" AND {is_live} AND coalesce(chunk, -1)"
        same_chunk = f"{in_source} = ? AND created {comparison} ? ORDER BY created {direction}"
        other_chunks = f"{in_source} {comparison} ? ORDER BY coalesce(chunk, -1) {direction}, created {direction}"
        index = "spans" if position is None else None
        for where, bounds in ((same_chunk, bounds_of_entry), (other_chunks, bounds_of_entry[:1])):
            yield from map(_as_live, self._select(where, entry.source, *values, *bounds, index=index))

    def latest_versions(self) -> Iterator[tuple[MemoryEntry, int]]:
        """Iterate over the newest version of every entry ever made, with the position that created its id."""
        created = dict(self._scope.select("SELECT id, min(created) FROM versions WHERE ns = ? GROUP BY id"))
        for entry in {entry.id: entry for entry in self._select("true ORDER BY id, version")}.values():
            yield entry, created[entry.id]

    def all_versions(self) -> Iterator[MemoryEntry]:
        """Iterate over every version of every entry, live or ended, oldest id first."""
        return self._select("true ORDER BY created, version")

    def creation_positions(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the creation position of each id. Raises `UnknownEntry` or `DamagedStore`."""
        query = "SELECT created FROM versions WHERE ns = ? AND id = ? LIMIT 1"
        positions = {}
        for id in ids:
            row = self._scope.first(query, id) if isinstance(id, str) and is_storable(id) else None
            if row is None:
                raise UnknownEntry(f"no entry ever had the id {brief_repr(id)}")
            positions[id] = check_stored(id, "a position", row[0], int)
        return positions

    def holders(self, ids: Collection[str]) -> dict[bytes, set[str]]:
        """Return every content that one of these ids holds, or held: its digest, with all ids that do."""
        holders: dict[bytes, set[str]] = {}
        for batch, _ in _batches(dict.fromkeys(ids)):
            query = (
                "SELECT DISTINCT digest, id FROM versions WHERE ns = ?1 AND digest IN (SELECT digest FROM versions "
                f"WHERE ns = ?1 AND id IN ({','.join(f'?{number}' for number in range(2, 2 + len(batch)))}))"
            )
            for digest, id in self._scope.select(query, *batch):
                holders.setdefault(check_stored(id, "a digest", digest, bytes), set()).add(id)
        return holders

    def expired_by(self, time: str) -> list[tuple[str, str]]:
        """Return id and expiry of the live entries that expire at or before a time, earliest first."""
        query = (
            "SELECT id, expires FROM versions INDEXED BY expiring WHERE ns = ? AND valid_to IS NULL "
            "AND expires IS NOT NULL AND expires <= ? ORDER BY expires, created"
        )
        return self._scope.select(query, time).fetchall()

    def has_expired(self, position: int, later: int) -> bool:
        """Return True if the entry of a log row has expired by a later position."""
        query = (
            "SELECT v.valid_to, e.kind FROM versions v LEFT JOIN operations e ON e.ns = v.ns AND e.seq = v.valid_to "
            "WHERE v.ns = ?1 AND v.id = (SELECT id FROM operations WHERE ns = ?1 AND seq = ?2) AND v.valid_from <= ?3 "
            "ORDER BY v.version DESC LIMIT 1"
        )
        ended_at, kind = self._scope.first(query, position, later) or (0, "")
        return kind == "expired" and position < ended_at <= later

    def rows(self, position: int | None = None) -> Iterator[tuple[Any, ...]]:
        """Iterate over the raw rows, as `version_row` builds them; with `position`, as they were then."""
        query = f"SELECT {VERSION_COLUMNS} FROM versions WHERE ns = ?"
        if position is None:
            return iter(self._scope.select(query))
        rows = self._scope.select(f"{query} AND valid_from <= ?", position)

        def valid_to(row: tuple[Any, ...]) -> int | None:
            return None if row[2] is None or check_stored(row[5], "a position", row[2], int) > position else row[2]

        return ((*row[:2], valid_to(row), *row[3:]) for row in rows)

    def extend(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert rows of `version_row`."""
        self._scope.insert("versions", VERSION_COLUMNS, rows)

    def delete(self, ids: Iterable[str | None]) -> None:
        """Delete all versions of some ids."""
        self._scope.execute_each("DELETE FROM versions WHERE ns = ? AND id = ?", ((id,) for id in ids))

    def replace(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Replace all rows."""
        self._scope.select("DELETE FROM versions WHERE ns = ?")
        self.extend(rows)

    def _select_one(self, where: str, *values: Any) -> MemoryEntry | None:
        row = self._scope.first(_version_query(where, None), *values) if all(map(is_storable, values)) else None
        return decode_entry(row) if row else None

    def _select(self, where: str, *values: Any, index: str | None = None) -> Iterator[MemoryEntry]:
        return map(decode_entry, self._scope.select(_version_query(where, index), *values))

    def _select_all(self, where: str, *values: Any, index: str | None = None) -> list[MemoryEntry]:
        return decode_entries(self._scope.select(_version_query(where, index), *values).fetchall())


@cache
def _version_query(where: str, index: str | None) -> str:
    # Name partial indexes: without statistics, SQLite's planner would scan the namespace instead.
    table = f"versions INDEXED BY {index}" if index else "versions"
    return f"SELECT {ENTRY_COLUMNS}, version, valid_from, valid_to FROM {table} WHERE ns = ? AND {where}"


def _live_condition(position: int | None) -> tuple[str, list[Any]]:
    """Return the condition on versions that are live, or were at a position, and its values."""
    return (_IS_LIVE, []) if position is None else (_WAS_LIVE, [position, position])


def _as_live(entry: MemoryEntry) -> MemoryEntry:
    """Return a version as it was while it was live."""
    return entry if entry.valid_to is None else replace(entry, valid_to=None)


_INSERT_VECTOR = "INSERT INTO vectors (ns, digest, vector) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"


class VectorTable:
    """Embeddings by content digest. Call every method inside a transaction."""

    def __init__(self, scope: NamespaceScope) -> None:
        self._scope = scope

    def of_texts(self, texts: Sequence[str], dim: int) -> dict[str, np.ndarray]:
        """Return the stored embeddings of the texts that have one, float32 (dim,) each. Raises `DamagedStore`."""
        texts_by_digest, vectors = {content_digest(text): text for text in texts}, {}
        for batch, marks in _batches(texts_by_digest):
            query = f"SELECT digest, vector FROM vectors WHERE ns = ? AND digest IN ({marks})"
            for digest, vector in self._scope.select(query, *batch):
                text = texts_by_digest[digest]
                vectors[text] = decode_vectors([text], [vector], dim)[0]
        return vectors

    def rows(self, position: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the raw rows, digest and vector; with `position`, of the contents stored by then."""
        query = "SELECT digest, vector FROM vectors WHERE ns = ?1"
        if position is None:
            return iter(self._scope.select(query))
        condition = "AND digest IN (SELECT digest FROM versions WHERE ns = ?1 AND valid_from <= ?2)"
        return iter(self._scope.select(f"{query} {condition}", position))

    def extend(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Insert vectors by content digest; the versions with these contents must exist."""
        self._scope.execute_each(_INSERT_VECTOR, rows)

    def delete(self, digests: Iterable[bytes]) -> None:
        """Delete the vectors of contents that no version holds any more."""
        self._scope.execute_each("DELETE FROM vectors WHERE ns = ? AND digest = ?", ((digest,) for digest in digests))

    def replace(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace all rows."""
        self._scope.select("DELETE FROM vectors WHERE ns = ?")
        self.extend(rows)

    def search_rows(self, page_size: int) -> Iterator[list[tuple[Any, ...]]]:
        """Iterate over the live entries in batches, oldest id first, with all that a search index needs.

        A row is id, content, category, position, source, chunk, turn, creation position, and vector or None.
        """
        query = (  # a statement for each page: a cursor of PostgreSQL holds all rows, and a statement has a deadline
            "SELECT v.id, v.content, v.category, v.valid_from, v.source, v.chunk, v.turn, v.created, x.vector "
            "FROM versions v INDEXED BY live_order LEFT JOIN vectors x ON x.ns = v.ns AND x.digest = v.digest "
            "WHERE v.ns = ?1 AND v.valid_to IS NULL AND v.created > ?2 ORDER BY v.created LIMIT ?3"
        )
        created = 0
        while page := self._scope.select(query, created, page_size).fetchall():
            yield page
            created = check_stored(page[-1][0], "a position", page[-1][7], int)


_MAX_PAGE = 500  # log rows read at once

_CHECKED_TOGETHER = 1000  # copied vectors; one by one the check takes twelve times as long


class Namespace:
    """Operation log, entry table and vector table of one namespace. Call every method inside a transaction."""

    _SCOPE, _ENTRIES = NamespaceScope, EntryTable

    def __init__(self, database: Backend, name: str, schema: MemorySchema) -> None:
        self.database, self.name, self.schema = database, name, schema
        self.scope = self._SCOPE(database, name)
        self.log = OperationLog(self.scope)
        self.entries = self._ENTRIES(self.scope, schema)
        self.vectors = VectorTable(self.scope)

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
        # The log stays ordered if the clock is set back.
        time = max(time or self.database.checked_now(log_end.time), log_end.time)
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
        self.scope.statements.execute(_INSERT_OPERATION, operation)
        if change.ended is not None:
            query = "UPDATE versions SET valid_to = ?2 WHERE ns = ?1 AND id = ?3 AND version = ?4"
            self.scope.select(query, operation[1], change.ended.id, change.ended.version)
        if change.entry is not None:
            row = version_row(change.entry, created)
            self.scope.select(_INSERT_VERSION, *row)
            if vector is not None:
                self.scope.select(_INSERT_VECTOR, row[4], vector)

    def insert_facts(
        self, log_end: LogEnd, facts: Sequence[CheckedFact], vectors: Mapping[str, np.ndarray]
    ) -> list[MemoryEntry]:
        """Append inserts of all facts at the end of the log, in one write.

        Args:
            log_end: End of the log.
            facts: Facts of `check_fact`.
            vectors: Embeddings by content.

        Returns:
            The entry of each fact; for a duplicate, the existing one.
        """
        start, entries = log_end.position, dict[Hashable, MemoryEntry]()  # live entries by key
        digests = {content: content_digest(content) for content in vectors}
        if start:
            entries = self.entries.with_contents(list(digests.values()))
        # A text that is told once needs no identity, which costs as much as a row.
        holders = Counter(fact.content for fact in facts)
        holders.update(entry.content for entry in entries.values())
        new_facts, keys = dict[Hashable, CheckedFact](), []
        for fact in facts:
            key: Hashable = fact.content
            if holders[key] > 1:
                operation = Operation("insert", None, fact.category, fact.content, **fact.fields)
                key = fact_identity(self.schema, operation)
            if key not in entries:
                new_facts.setdefault(key, fact)
            keys.append(key)
        self.scope.create()
        time = max(self.database.checked_now(log_end.time), log_end.time)
        used_ids = self.entries.used_ids if start else lambda _: ()
        contents = [fact.content for fact in new_facts.values()]
        ids = make_ids(contents, start, used_ids, has_erasure=self.entries.has_erasure())
        unset, writer = dict.fromkeys(NAMES), WRITER.get()
        operations, versions = [], []
        for position, (id, (key, fact)) in enumerate(zip(ids, new_facts.items(), strict=True), start + 1):
            fields = {**unset, **new_defaults(), **writer, **fact.fields}
            logged = row_values((id, fact.category, fact.content, *fields.values()))
            operations.append((position, time, position, "insert", *logged, None))
            if "" in fact.fields.values():  # a version has None where the log has a blank date
                fields |= {name: fields[name] or None for name in TIMES}
                logged = row_values((id, fact.category, fact.content, *fields.values()))
            entries[key] = make_entry(id, fact.category, fact.content, *fields.values(), 1, position)
            versions.append((1, position, None, position, digests[fact.content], *logged))
        self.log.extend(operations)
        self.entries.extend(versions)
        self.vectors.extend((digests[content], vector_blob(vectors[content])) for content in dict.fromkeys(contents))
        return [entries[key] for key in keys]

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
            rows = self.scope.select("SELECT DISTINCT id FROM versions WHERE ns = ? AND digest = ?", digest)
            holders[digest] = {id for (id,) in rows}
        erased = self.log.erase(ids)
        self.log.clear([(None, position) for position in changes])
        if erased or changes:
            self.entries.delete(dict.fromkeys(erased))
            self.vectors.delete(digest for digest, other in holders.items() if other <= set(ids))
            self._log_erasure()
        quarantined_ids = {id for id, digest in quarantined if digest in holders}
        return sorted(quarantined_ids.union(*holders.values()).difference(ids))

    def erase_all(self) -> int:
        """Turn all operations into stubs, as `erase` does; return their number."""
        erased = self.log.erase(None)
        if erased:
            self.entries.delete(dict.fromkeys(erased))
            self.vectors.replace(())
            self._log_erasure()
        return len(erased)

    def _log_erasure(self) -> None:
        self.write(Operation("erased"))
        self.database.mark_for_scrub()

    def erase_core_history(self) -> int:
        """Turn all core updates but the last into stubs; return their number. As after `erase`, a scrub is due.

        Quarantined updates that hold a text of the past, as the one they would replace, become stubs, too.
        """
        quarantined = past_core_quarantine(self.log, self.log.core_at(self.log.position))
        count = self.log.erase_core_history(quarantined)
        if count or quarantined:
            self._log_erasure()
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
        vectors = self.vectors.rows(position)
        while batch := list(islice(vectors, _CHECKED_TOGETHER)):
            digests, blobs = zip(*batch, strict=True)
            decode_vectors([digest.hex() for digest in digests], blobs, dim)
            target.vectors.extend(batch)


def vector_blob(vector: np.ndarray) -> bytes:
    """Return an embedding as stored bytes: little-endian float32."""
    return np.asarray(vector, "<f4").tobytes()


def decode_vectors(names: Sequence[object], blobs: Sequence[Any], dim: int) -> np.ndarray:
    """Return stored embeddings, float32 (n, dim).

    Args:
        names: For each one, the id or content that a message names.
        blobs: Stored bytes.
        dim: Dimension of the store's embedder.

    Raises:
        DamagedStore: An embedding is no vector of the dimension with length 1 or 0.
    """
    for name, blob in zip(names, blobs, strict=True):
        if not isinstance(blob, bytes) or len(blob) != 4 * dim:
            raise _damaged_vector(name, f"{dim} numbers are needed")
    vectors = np.frombuffer(b"".join(blobs), "<f4").reshape(len(blobs), dim)
    faulty = first_faulty_row(vectors)
    if faulty is not None:
        raise _damaged_vector(names[faulty], "it is not finite, or its length is not 1")
    return vectors


def _damaged_vector(name: object, fault: str) -> DamagedStore:
    return DamagedStore(f"the stored vector of {str(name)[:80]!r} is damaged ({fault}): run `memalpha doctor --repair`")
