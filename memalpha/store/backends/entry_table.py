"""`EntryTable`: every version of every entry of a namespace, live or ended."""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from memalpha.arguments import brief_repr
from memalpha.errors import UnknownEntry
from memalpha.store.backends.row_codec import (
    ENTRY_COLUMNS,
    check_digest,
    check_position,
    content_digest,
    decode_entries,
    decode_entry,
    is_storable,
)
from memalpha.store.backends.scope import NamespaceScope
from memalpha.store.fields import BLANKS, ENTRY_NAMES
from memalpha.store.filters import Filter
from memalpha.store.schema import MemorySchema
from memalpha.store.state import StateView, canonical_json, fact_identity
from memalpha.types import MemoryEntry, Operation

VERSION_COLUMNS = f"version, valid_from, valid_to, created, digest, {ENTRY_COLUMNS}"
INSERTED_COLUMNS = ", ".join(f"nullif({name}, '')" if name in BLANKS else name for name in ENTRY_NAMES)
"""Columns of a version that a logged insert makes."""
_BATCH = 500  # values per statement
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


class EntryTable(StateView):
    """Versions of a namespace's entries, as `plan` needs them. Call every method inside a transaction."""

    _HAS_SOURCE = "source = ?"
    _HAS_TEXT = "instr(metadata, ?2) > 0"

    def __init__(self, scope: NamespaceScope, schema: MemorySchema) -> None:
        self._scope, self._schema = scope, schema

    @property
    def schema(self) -> MemorySchema:
        return self._schema

    @property
    def unique_contents(self) -> bool:
        return False

    def used_ids(self, ids: Sequence[str]) -> set[str]:
        used = set()
        for start in range(0, len(ids), _BATCH):
            batch = ids[start : start + _BATCH]
            query = f"SELECT DISTINCT id FROM versions WHERE ns = ? AND id IN ({','.join('?' * len(batch))})"
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
        _, _, metadata, *rest = fact_identity(self._schema, fact)
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
        for start in range(0, len(ids), _BATCH):
            batch = ids[start : start + _BATCH]
            for entry in self._select_all(f"id IN ({','.join('?' * len(batch))}) AND {where}", *batch, *values):
                entries[entry.id] = _as_live(entry)
        return entries

    def with_contents(self, digests: Sequence[bytes]) -> dict[Hashable, MemoryEntry]:
        """Return the live entries whose content has one of these digests, by `fact_identity`; of equals the oldest."""
        entries: dict[Hashable, MemoryEntry] = {}
        for start in range(0, len(digests), _BATCH):
            batch = digests[start : start + _BATCH]
            where = f"{_IS_LIVE} AND digest IN ({','.join('?' * len(batch))}) ORDER BY created"
            for entry in self._select_all(where, *batch, index="live_content"):
                entries.setdefault(fact_identity(self._schema, entry), entry)
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
        storable = [id for id in ids if isinstance(id, str) and is_storable(id)]
        for start in range(0, len(storable), _BATCH):
            batch = storable[start : start + _BATCH]
            for entry in self._select(f"id IN ({','.join('?' * len(batch))}) ORDER BY id, version", *batch):
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
        return self._live("", (), category, after, limit, position)

    def _live(
        self,
        condition: str,
        condition_values: Sequence[Any],
        category: str | None,
        after: str | None,
        limit: int | None,
        position: int | None,
    ) -> list[MemoryEntry]:
        """Return the entries of `live` that also fulfil a condition of SQL.

        Args:
            condition: Condition on the columns of `versions`, begun by "AND"; "" for none.
            condition_values: Its values.
            category: Entries of this category only.
            after: Only entries created after this id.
            limit: Number of entries at most.
            position: Entries live at this position; None means now.
        """
        where, values = _live_condition(position)
        where, values = f"{where} {condition}".rstrip(), [*values, *condition_values]
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
            positions[id] = check_position(id, row[0])
        return positions

    def holders(self, ids: Collection[str]) -> dict[bytes, set[str]]:
        """Return every content that one of these ids holds, or held: its digest, with all ids that do."""
        holders: dict[bytes, set[str]] = {}
        all_ids = list(dict.fromkeys(ids))
        for start in range(0, len(all_ids), _BATCH):
            batch = all_ids[start : start + _BATCH]
            query = (
                "SELECT DISTINCT digest, id FROM versions WHERE ns = ?1 AND digest IN (SELECT digest FROM versions "
                f"WHERE ns = ?1 AND id IN ({','.join(f'?{number}' for number in range(2, 2 + len(batch)))}))"
            )
            for digest, id in self._scope.select(query, *batch):
                holders.setdefault(check_digest(id, digest), set()).add(id)
        return holders

    def ids_with(self, digest: bytes) -> set[str]:
        """Return the ids that hold, or held, the content of a digest."""
        return {
            id for (id,) in self._scope.select("SELECT DISTINCT id FROM versions WHERE ns = ? AND digest = ?", digest)
        }

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
            return None if row[2] is None or check_position(row[5], row[2]) > position else row[2]

        return ((*row[:2], valid_to(row), *row[3:]) for row in rows)

    def insert(self, row: tuple[Any, ...]) -> None:
        """Insert a row of `version_row`."""
        self._scope.select(_INSERT_VERSION, *row)

    def extend(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert rows of `version_row`."""
        self._scope.insert(_INSERT_VERSION, rows)

    def insert_logged(self, start: int, digests: Sequence[bytes]) -> None:
        """Insert the first versions that logged inserts make.

        Args:
            start: Position of the first insert; all later ones are read, too.
            digests: Digest of each one's content.
        """
        self._scope.statements.create_function("digest_at", 1, lambda position: digests[position - start])
        self._scope.select(
            f"INSERT INTO versions (ns, version, valid_from, created, digest, {ENTRY_COLUMNS}) "
            f"SELECT ns, 1, seq, seq, digest_at(seq), {INSERTED_COLUMNS} FROM operations WHERE ns = ? AND seq >= ?",
            start,
        )

    def end_version(self, entry: MemoryEntry, position: int) -> None:
        """End a live version at a position."""
        query = "UPDATE versions SET valid_to = ?2 WHERE ns = ?1 AND id = ?3 AND version = ?4"
        self._scope.select(query, position, entry.id, entry.version)

    def delete(self, ids: Iterable[str | None]) -> None:
        """Delete all versions of some ids."""
        self._scope.insert("DELETE FROM versions WHERE ns = ? AND id = ?", ((id,) for id in ids))

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
