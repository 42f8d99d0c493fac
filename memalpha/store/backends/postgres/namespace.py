"""Statements of one namespace that differ in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memalpha.errors import StoreError
from memalpha.store.backends.base import Statements
from memalpha.store.backends.entry_table import INSERTED_COLUMNS, VERSION_COLUMNS, EntryTable
from memalpha.store.backends.namespace import Namespace
from memalpha.store.backends.operation_log import OPERATION_COLUMNS, OperationLog
from memalpha.store.backends.postgres.database import PostgresDatabase
from memalpha.store.backends.postgres.fetched import live_scope
from memalpha.store.backends.postgres.maintenance import unlocked
from memalpha.store.backends.postgres.terms import (
    ALL_WORDS,
    content_postings,
    fill_missing_postings,
    hash_joins_only,
    index_contents,
)
from memalpha.store.backends.postgres.vector_codec import Vector
from memalpha.store.backends.row_codec import ENTRY_COLUMNS, logged_values, version_row
from memalpha.store.backends.scope import NamespaceScope
from memalpha.store.backends.vector_table import INSERT_VECTOR, VectorTable
from memalpha.store.filters import Filter
from memalpha.store.schema import MemorySchema
from memalpha.store.state import Change
from memalpha.types import MemoryEntry

_ANALYZE_FROM = 5000  # inserted entries from which partition statistics are updated
_MAX_NAME_BYTES = 2000  # bytes that an index can hold
_COLUMN_TYPES = {"importance": "float8", "chunk": "int8"}  # columns that are not text
_OPERATION_PARAMETERS = ", ".join(f"?{number}" for number in range(1, 19))
_LOG = f"logged AS (INSERT INTO operations (ns, {OPERATION_COLUMNS}) VALUES ({_OPERATION_PARAMETERS}))"
_END_ENTRY = f"WITH {_LOG} UPDATE versions SET valid_to = ?2 WHERE ns = ?1 AND id = ?19 AND version = ?20"


def _insert_version(first: int) -> str:
    """Return the rows of a new version as CTEs and a statement: version, vector and postings.

    Args:
        first: Number of the first parameter; the namespace is `?1`.
    """
    version = ", ".join(f"?{number}" for number in range(first, first + 17))
    digest, vector, terms, counts, length = first + 4, *range(first + 17, first + 21)
    return (
        f"made AS (INSERT INTO versions (ns, {VERSION_COLUMNS}) VALUES (?1, {version})), "
        f"kept AS (INSERT INTO vectors (ns, digest, vector) VALUES (?1, ?{digest}, ?{vector}) ON CONFLICT DO NOTHING) "
        "INSERT INTO postings (ns, term, digest, count, length) "
        f"SELECT ?1, term, ?{digest}, count, ?{length} "
        f"FROM unnest(?{terms}::bigint[], ?{counts}::integer[]) AS t (term, count) ON CONFLICT DO NOTHING"
    )


_INSERT_VERSION = f"WITH {_insert_version(2)}"
_INSERT_ENTRY = f"WITH {_LOG}, {_insert_version(19)}"


class _PostgresScope(NamespaceScope):
    database: PostgresDatabase

    @property
    def statements(self) -> Statements:
        return self.database.statements(self.name)

    def create(self) -> int:
        if self.namespace_id < 0:
            query = "INSERT INTO namespaces (name) VALUES (?) RETURNING ns"
            self.database.add_namespace(self.name, self.statements.execute(query, (self.name,)).fetchone()[0])
        return self.namespace_id

    def drop(self) -> None:
        self.statements.execute("DELETE FROM members WHERE namespace = ?", (self.name,))
        self.select("DELETE FROM namespaces WHERE ns = ?")
        self.database.forget_namespace(self.name)


class _PostgresLog(OperationLog):
    def append_inserts(
        self, start: int, time: str, entries: Sequence[MemoryEntry], optional_fields: Sequence[Mapping[str, Any]]
    ) -> None:
        names = ENTRY_COLUMNS.split(", ")
        arrays = ", ".join(f"?{number}::{_COLUMN_TYPES.get(name, 'text')}[]" for number, name in enumerate(names, 4))
        columns = [logged_values(entries, name, optional_fields) for name in names]
        self._scope.select(
            f"INSERT INTO operations (ns, seq, time, head, kind, {ENTRY_COLUMNS}) "
            f"SELECT ?1, seq, ?2, seq, 'insert', {ENTRY_COLUMNS} "
            f"FROM unnest(?3::int8[], {arrays}) AS t (seq, {ENTRY_COLUMNS})",
            time,
            list(range(start, start + len(entries))),
            *columns,
        )


class _PostgresEntries(EntryTable):
    _HAS_TEXT = "strpos(metadata, ?2::text) > 0"
    _HAS_SOURCE = "source_key = hashtextextended(?2, 0) AND source = ?2"  # ?1 is the namespace

    def matching(
        self, where: Filter, category: str | None, *, after: str | None, limit: int | None, position: int | None
    ) -> list[MemoryEntry]:
        # The server decides almost every entry; `matches` has the last word.
        narrow = live_scope(self._scope.namespace_id, position).matching(where)
        condition = f"AND created IN (SELECT v.created FROM {narrow.rows} WHERE {narrow.sql})"
        values = (*narrow.row_values, *narrow.values)
        matches: list[MemoryEntry] = []
        with hash_joins_only(self._scope.statements):
            while limit is None or len(matches) < limit:
                page = self._live(condition, values, category, after, limit, position)
                matches += [entry for entry in page if where.matches(entry)]
                if limit is None or len(page) < limit:
                    break
                after = page[-1].id
        return matches[:limit]

    def insert_logged(self, start: int, digests: Sequence[bytes]) -> None:
        self._scope.select(
            f"INSERT INTO versions (ns, version, valid_from, created, digest, {ENTRY_COLUMNS}) "
            f"SELECT o.ns, 1, o.seq, o.seq, d.digest, {INSERTED_COLUMNS} FROM operations o "
            "JOIN unnest(?2::int8[], ?3::bytea[]) AS d (seq, digest) ON d.seq = o.seq WHERE o.ns = ?1",
            list(range(start, start + len(digests))),
            digests,
        )

    def replace(self, rows: Iterable[tuple[Any, ...]]) -> None:
        database = self._scope.database
        with unlocked(self._scope.statements, database.path, "repair its versions"):
            super().replace(rows)


class _PostgresVectors(VectorTable):
    _SELECT_OF_ENTRIES = (
        "SELECT v.id, x.vector FROM versions v JOIN vectors x ON x.ns = v.ns AND x.digest = v.digest "
        "WHERE v.ns = ?1 AND v.id = ANY (?2) AND v.valid_to IS NULL"
    )
    _UNUSED_DIGEST = "NOT EXISTS (SELECT 1 FROM versions v WHERE v.ns = ?1 AND v.digest = x.digest)"
    _list_parameter = staticmethod(list)

    def extend(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self._scope.insert(INSERT_VECTOR, ((digest, Vector(vector)) for digest, vector in rows))
        fill_missing_postings(self._scope)

    def insert_new(self, rows: Mapping[str, tuple[bytes, bytes]]) -> None:
        self._scope.insert(INSERT_VECTOR, ((digest, Vector(vector)) for digest, vector in rows.values()))
        index_contents(self._scope.statements, self._scope.namespace_id, rows)

    def delete(self, digests: Iterable[bytes]) -> None:
        digests = list(digests)
        for table in ("vectors", "postings"):
            rows = ((digest,) for digest in digests)
            self._scope.insert(f"DELETE FROM {table} WHERE ns = ? AND digest = ?", rows)

    def delete_unused(self) -> None:
        with hash_joins_only(self._scope.statements):
            for table in ("vectors", "postings"):
                self._scope.select(f"DELETE FROM {table} x WHERE x.ns = ?1 AND {self._UNUSED_DIGEST}")

    def count_unindexed(self, *, repair: bool = False) -> int:
        query = (
            "SELECT count(DISTINCT digest) FROM versions v WHERE ns = ?1 AND NOT EXISTS "
            f"(SELECT 1 FROM postings p WHERE p.ns = ?1 AND p.term = {ALL_WORDS} AND p.digest = v.digest)"
        )
        with hash_joins_only(self._scope.statements):
            count = self._scope.first(query)[0]
        if count and repair:
            fill_missing_postings(self._scope)
        return count


class PostgresNamespace(Namespace):
    """Namespace in PostgreSQL; see `Namespace` for the methods."""

    database: PostgresDatabase

    _SCOPE, _LOG, _ENTRIES, _VECTORS = _PostgresScope, _PostgresLog, _PostgresEntries, _PostgresVectors
    _TABLES = ("versions", "vectors", "postings")
    _BATCH = 2000

    def __init__(self, database: PostgresDatabase, name: str, schema: MemorySchema) -> None:
        try:
            size = len(name.encode())
        except UnicodeEncodeError as error:
            raise StoreError(f"namespace {name!r}: holds half of a surrogate pair, which is not text") from error
        if "\0" in name or size > _MAX_NAME_BYTES:
            raise StoreError(
                f"namespace {name[:50]!r}: a text without NUL of {_MAX_NAME_BYTES} bytes at most is needed"
            )
        super().__init__(database, name, schema)

    def append(
        self,
        entries: Sequence[MemoryEntry],
        optional_fields: Sequence[Mapping[str, Any]],
        vectors: Mapping[str, tuple[bytes, bytes]],
    ) -> None:
        super().append(entries, optional_fields, vectors)
        if len(entries) >= _ANALYZE_FROM:
            self.database.analyze(self.scope.namespace_id)

    def _insert_rows(self, operation: tuple[Any, ...], change: Change, created: int, vector: bytes | None) -> None:
        statements, ended = self.scope.statements, change.ended
        if ended is not None:  # log and end the old version first: an entry has one live version
            statements.execute(_END_ENTRY, (*operation, ended.id, ended.version))
        elif change.entry is None or vector is None:
            self.log.append(operation)
        if change.entry is None:
            return
        version = version_row(change.entry, created)
        if vector is None:
            self.entries.insert(version)
            return
        row = (*version, Vector(vector), *content_postings(change.entry.content))
        if ended is None:
            statements.execute(_INSERT_ENTRY, (*operation, *row))
        else:
            statements.execute(_INSERT_VERSION, (operation[0], *row))
