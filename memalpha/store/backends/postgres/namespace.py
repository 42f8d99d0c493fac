"""Statements of one namespace that differ in PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from memalpha.errors import StoreError
from memalpha.store.backends.base import Statements
from memalpha.store.backends.namespace import END_VERSION, INSERT_VECTOR, Namespace
from memalpha.store.backends.namespace_reads import VERSION_COLUMNS
from memalpha.store.backends.postgres.database import PostgresDatabase
from memalpha.store.backends.postgres.terms import (
    ALL_WORDS,
    content_postings,
    fill_missing_postings,
    hash_joins_only,
    index_contents,
)
from memalpha.store.backends.postgres.vector_codec import Vector
from memalpha.store.backends.row_codec import ENTRY_COLUMNS, content_digest, logged_value, version_row
from memalpha.store.schema import MemorySchema
from memalpha.store.state import Change
from memalpha.types import MemoryEntry

_BATCH = 2000  # rows per statement
_ANALYZE_FROM = 5000  # inserted entries from which partition statistics are updated
_MAX_NAME_BYTES = 2000  # bytes that an index can hold
_COLUMN_TYPES = {"importance": "float8", "chunk": "int8"}  # columns that are not text
_OPERATION_PARAMETERS, _VERSION_PARAMETERS = (
    ", ".join(f"?{number}" for number in range(*ends)) for ends in ((1, 16), (16, 31))
)
# All rows of a new version in one statement: operation, version (?20 is its digest), vector and postings.
_INSERT_ENTRY = (
    f"WITH logged AS (INSERT INTO operations (ns, seq, time, head, kind, {ENTRY_COLUMNS}) "
    f"VALUES ({_OPERATION_PARAMETERS})), "
    f"made AS (INSERT INTO versions (ns, {VERSION_COLUMNS}) VALUES (?1, {_VERSION_PARAMETERS})), "
    "kept AS (INSERT INTO vectors (ns, digest, vector) VALUES (?1, ?20, ?31) ON CONFLICT DO NOTHING) "
    "INSERT INTO postings (ns, term, digest, count, length) "
    "SELECT ?1, term, ?20, count, ?34 FROM unnest(?32::bigint[], ?33::integer[]) AS t (term, count) "
    "ON CONFLICT DO NOTHING"
)


class PostgresNamespace(Namespace):
    """Namespace in PostgreSQL; see `Namespace` for the methods."""

    database: PostgresDatabase

    _HAS_SOURCE = "source_key = hashtextextended(?2, 0) AND source = ?2"  # ?1 is the namespace
    _SELECT_ENTRY_VECTORS = (
        "SELECT v.id, x.vector FROM versions v JOIN vectors x ON x.ns = v.ns AND x.digest = v.digest "
        "WHERE v.id = ANY (?) AND v.ns = ? AND v.valid_to IS NULL"
    )
    _UNUSED_DIGEST = "NOT EXISTS (SELECT 1 FROM versions v WHERE v.ns = ? AND v.digest = vectors.digest)"
    _list_parameter = staticmethod(list)

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

    @property
    def _statements(self) -> Statements:
        return self.database.statements(self.name)

    def append(
        self, entries: Sequence[MemoryEntry], optional_fields: Sequence[Mapping[str, Any]], vectors: Mapping[str, bytes]
    ) -> None:
        """Append inserts of new ids in bulk; see `Namespace.append`.

        Args:
            entries: First versions of the new entries.
            optional_fields: For each entry, the optional fields that its insert gave.
            vectors: Stored bytes of the embeddings, by content.
        """
        log_end, ns = self.log_end(), self._create()
        time, first_position = max(self.database.now(), log_end.time), log_end.position + 1
        names = ENTRY_COLUMNS.split(", ")
        arrays = ", ".join(f"?{number}::{_COLUMN_TYPES.get(name, 'text')}[]" for number, name in enumerate(names, 4))
        insert_operations = (
            f"INSERT INTO operations (ns, seq, time, head, kind, {ENTRY_COLUMNS}) "
            f"SELECT ?1, seq, ?2, seq, 'insert', {ENTRY_COLUMNS} "
            f"FROM unnest(?3::int8[], {arrays}) AS t (seq, {ENTRY_COLUMNS})"
        )
        inserted_columns = ENTRY_COLUMNS.replace("timestamp", "nullif(timestamp, '')").replace(
            "expires", "nullif(expires, '')"
        )
        insert_versions = (
            f"INSERT INTO versions (ns, version, valid_from, created, digest, {ENTRY_COLUMNS}) "
            f"SELECT o.ns, 1, o.seq, o.seq, d.digest, {inserted_columns} FROM operations o "
            "JOIN unnest(?2::int8[], ?3::bytea[]) AS d (seq, digest) ON d.seq = o.seq WHERE o.ns = ?1"
        )
        for start in range(0, len(entries), _BATCH):
            batch = list(zip(entries[start : start + _BATCH], optional_fields[start : start + _BATCH], strict=True))
            positions = list(range(first_position + start, first_position + start + len(batch)))
            columns = [[logged_value(entry, name, fields) for entry, fields in batch] for name in names]
            self._statements.execute(insert_operations, (ns, time, positions, *columns))
            digests = [content_digest(entry.content) for entry, _ in batch]
            self._statements.execute(insert_versions, (ns, positions, digests))
            contents = list(dict.fromkeys(entry.content for entry, _ in batch))
            self._statements.executemany(
                INSERT_VECTOR, [(ns, content_digest(text), Vector(vectors[text])) for text in contents]
            )
            index_contents(self._statements, ns, contents)
        if len(entries) >= _ANALYZE_FROM:
            self.database.analyze(ns)

    def _insert_rows(self, operation: tuple[Any, ...], change: Change, created: int, vector: bytes | None) -> None:
        if change.entry is None or vector is None:
            super()._insert_rows(operation, change, created, vector)
            return
        ns, position = operation[:2]
        if change.ended is not None:  # first end the old version: an entry has one live version
            self._statements.execute(END_VERSION, (position, ns, change.ended.id, change.ended.version))
        terms, counts, length = content_postings(change.entry.content)
        version = version_row(change.entry, created)
        self._statements.execute(_INSERT_ENTRY, (*operation, *version, Vector(vector), terms, counts, length))

    def _insert_vectors(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self._statements.executemany(INSERT_VECTOR, ((self.namespace_id, key, Vector(vector)) for key, vector in rows))
        fill_missing_postings(self._statements, self)

    def count_unindexed(self, *, repair: bool = False) -> int:
        """Count the contents without postings; add these with `repair`."""
        query = (
            "SELECT count(DISTINCT digest) FROM versions v WHERE ns = ? AND NOT EXISTS "
            f"(SELECT 1 FROM postings p WHERE p.ns = ? AND p.term = {ALL_WORDS} AND p.digest = v.digest)"
        )
        with hash_joins_only(self._statements):
            count = self._statements.execute(query, (self.namespace_id, self.namespace_id)).fetchone()[0]
        if count and repair:
            fill_missing_postings(self._statements, self)
        return count

    def erase(self, ids: Collection[str] | None) -> int:
        with hash_joins_only(self._statements):
            count = super().erase(ids)
            unused = self._UNUSED_DIGEST.replace("vectors", "postings")
            self._statements.execute(
                f"DELETE FROM postings WHERE ns = ? AND {unused}", (self.namespace_id, self.namespace_id)
            )
        return count

    def _create(self) -> int:
        if self.namespace_id < 0:
            row = self._statements.execute(
                "INSERT INTO namespaces (name) VALUES (?) RETURNING ns", (self.name,)
            ).fetchone()
            self.database.add_namespace(self.name, row[0])
        return self.namespace_id
