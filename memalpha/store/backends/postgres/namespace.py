"""Statements of one namespace that differ in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from memalpha.errors import StoreError
from memalpha.store.backends.base import Statements
from memalpha.store.backends.namespace import Namespace
from memalpha.store.backends.postgres.database import PostgresDatabase
from memalpha.store.backends.row_codec import ENTRY_COLUMNS, logged_values
from memalpha.store.backends.rows import INSERTED_COLUMNS, EntryTable, NamespaceScope, OperationLog, VectorTable
from memalpha.store.fields import ENTRY_NAMES, FIELDS
from memalpha.store.schema import MemorySchema
from memalpha.store.state import Change
from memalpha.types import MemoryEntry

_MAX_NAME_BYTES = 2000  # bytes that an index can hold
_TYPES = {"number": "float8", "whole": "int8"}  # of fields that are not text
_COLUMN_TYPES = {field.name: _TYPES[field.kind] for field in FIELDS if field.kind in _TYPES}


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
        types = [_COLUMN_TYPES.get(name, "text") for name in ENTRY_NAMES]
        arrays = ", ".join(f"?{number}::{type}[]" for number, type in enumerate(types, 4))
        columns = [logged_values(entries, name, optional_fields) for name in ENTRY_NAMES]
        self._scope.select(
            f"INSERT INTO operations (ns, seq, time, head, kind, {ENTRY_COLUMNS}) "
            f"SELECT ?1, seq, ?2, seq, 'insert', {ENTRY_COLUMNS} "
            f"FROM unnest(?3::int8[], {arrays}) AS t (seq, {ENTRY_COLUMNS})",
            time,
            list(range(start, start + len(entries))),
            *columns,
        )


class _PostgresEntries(EntryTable):
    _scope: _PostgresScope
    _HAS_TEXT = "strpos(metadata, ?2::text) > 0"
    _HAS_SOURCE = "source_key = hashtextextended(?2, 0) AND source = ?2"  # ?1 is the namespace

    def insert_logged(self, start: int, digests: Sequence[bytes]) -> None:
        self._scope.select(
            f"INSERT INTO versions (ns, version, valid_from, created, digest, {ENTRY_COLUMNS}) "
            f"SELECT o.ns, 1, o.seq, o.seq, d.digest, {INSERTED_COLUMNS} FROM operations o "
            "JOIN unnest(?2::int8[], ?3::bytea[]) AS d (seq, digest) ON d.seq = o.seq WHERE o.ns = ?1",
            list(range(start, start + len(digests))),
            digests,
        )

    def replace(self, rows: Iterable[tuple[Any, ...]]) -> None:
        with self._scope.database.unlock_log("repair its versions"):
            super().replace(rows)


class _PostgresVectors(VectorTable):
    def search_rows(self, page_size: int) -> Iterator[list[tuple[Any, ...]]]:
        query = (  # a statement for each page: a cursor holds all of its rows, and a statement has a deadline
            "SELECT v.id, v.content, v.category, v.valid_from, v.source, v.chunk, v.turn, v.created, x.vector "
            "FROM versions v LEFT JOIN vectors x ON x.ns = v.ns AND x.digest = v.digest "
            "WHERE v.ns = ?1 AND v.valid_to IS NULL AND v.created > ?2 ORDER BY v.created LIMIT ?3"
        )
        created = 0
        while page := self._scope.select(query, created, page_size).fetchall():
            yield page
            created = page[-1][7]


class PostgresNamespace(Namespace):
    """Namespace in PostgreSQL; see `Namespace` for the methods."""

    database: PostgresDatabase

    _SCOPE, _LOG, _ENTRIES, _VECTORS = _PostgresScope, _PostgresLog, _PostgresEntries, _PostgresVectors
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

    def insert_rows(self, operation: tuple[Any, ...], change: Change, created: int, vector: bytes | None) -> None:
        with self.database.statements(self.name).pipeline():  # one round trip
            super().insert_rows(operation, change, created, vector)
