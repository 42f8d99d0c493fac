"""The rows of one namespace in PostgreSQL, where its statements are others than SQLite's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from memalpha.errors import StoreError
from memalpha.store.backends.base import Statements
from memalpha.store.backends.namespace import END, NEW_VECTOR, Namespace
from memalpha.store.backends.namespace_reads import VERSION
from memalpha.store.backends.postgres.database import PostgresDatabase
from memalpha.store.backends.postgres.terms import ALL, fill_words, hashed, index_contents, postings_of
from memalpha.store.backends.postgres.vector_codec import Vector
from memalpha.store.backends.row_codec import ENTRY, column_of, digest, version_row
from memalpha.store.schema import MemorySchema
from memalpha.store.state import Change
from memalpha.types import MemoryEntry

_MANY = 2000  # rows of one statement
_LARGE = 5000  # entries after which the statistics of their partitions are taken anew
_LONGEST_NAME = 2000  # bytes; what an index can hold
_TYPES = {"importance": "float8", "chunk": "int8"}  # of columns that are no text
_LOGGED, _MADE = (", ".join(f"?{number}" for number in range(*ends)) for ends in ((1, 16), (16, 31)))
# All rows of a new version in one statement: those of its operation, its own (?20 is its digest), and its content's.
_NEW_ENTRY = (
    f"WITH logged AS (INSERT INTO operations (ns, seq, time, head, kind, {ENTRY}) VALUES ({_LOGGED})), "
    f"made AS (INSERT INTO versions (ns, {VERSION}) VALUES (?1, {_MADE})), "
    "kept AS (INSERT INTO vectors (ns, digest, vector) VALUES (?1, ?20, ?31) ON CONFLICT DO NOTHING) "
    "INSERT INTO postings (ns, term, digest, count, length) "
    "SELECT ?1, term, ?20, count, ?34 FROM unnest(?32::bigint[], ?33::integer[]) AS t (term, count) "
    "ON CONFLICT DO NOTHING"
)


class PostgresRows(Namespace):
    """See `Namespace`."""

    database: PostgresDatabase

    _OF_SOURCE = "source_key = hashtextextended(?2, 0) AND source = ?2"  # after the namespace
    _VECTORS_OF = (
        "SELECT v.id, x.vector FROM versions v JOIN vectors x ON x.ns = v.ns AND x.digest = v.digest "
        "WHERE v.id = ANY (?) AND v.ns = ? AND v.valid_to IS NULL"
    )
    _UNHELD = "NOT EXISTS (SELECT 1 FROM versions v WHERE v.ns = ? AND v.digest = vectors.digest)"
    _list = staticmethod(list)

    def __init__(self, database: PostgresDatabase, name: str, schema: MemorySchema) -> None:
        try:
            size = len(name.encode())
        except UnicodeEncodeError as error:
            raise StoreError(f"namespace {name!r}: holds half of a surrogate pair, which is not text") from error
        if "\0" in name or size > _LONGEST_NAME:
            raise StoreError(f"namespace {name[:50]!r}: a text without NUL of {_LONGEST_NAME} bytes at most is needed")
        super().__init__(database, name, schema)

    @property
    def _rows(self) -> Statements:
        return self.database.statements(self.name)

    def append(
        self, entries: Sequence[MemoryEntry], given: Sequence[Mapping[str, Any]], vectors: Mapping[str, bytes]
    ) -> None:
        tip, ns = self.tip(), self._make()
        time, first = max(self.database.now(), tip.time), tip.seq + 1
        names = ENTRY.split(", ")
        arrays = ", ".join(f"?{place}::{_TYPES.get(name, 'text')}[]" for place, name in enumerate(names, 4))
        log = (
            f"INSERT INTO operations (ns, seq, time, head, kind, {ENTRY}) SELECT ?1, seq, ?2, seq, 'insert', {ENTRY} "
            f"FROM unnest(?3::int8[], {arrays}) AS t (seq, {ENTRY})"
        )
        made = ENTRY.replace("timestamp", "nullif(timestamp, '')").replace("expires", "nullif(expires, '')")
        new = (
            f"INSERT INTO versions (ns, version, valid_from, created, digest, {ENTRY}) "
            f"SELECT o.ns, 1, o.seq, o.seq, d.digest, {made} FROM operations o "
            "JOIN unnest(?2::int8[], ?3::bytea[]) AS d (seq, digest) ON d.seq = o.seq WHERE o.ns = ?1"
        )
        for start in range(0, len(entries), _MANY):
            some = list(zip(entries[start : start + _MANY], given[start : start + _MANY], strict=True))
            places = list(range(first + start, first + start + len(some)))
            columns = [[column_of(entry, name, fields) for entry, fields in some] for name in names]
            self._rows.execute(log, (ns, time, places, *columns))
            keys = [digest(entry.content) for entry, _ in some]
            self._rows.execute(new, (ns, places, keys))
            contents = list(dict.fromkeys(entry.content for entry, _ in some))
            self._rows.executemany(NEW_VECTOR, [(ns, digest(text), Vector(vectors[text])) for text in contents])
            index_contents(self._rows, ns, contents)
        if len(entries) >= _LARGE:
            self.database.analyze(ns)

    def _keep(self, operation: tuple[Any, ...], change: Change, created: int, vector: bytes | None) -> None:
        if change.entry is None or vector is None:
            super()._keep(operation, change, created, vector)
            return
        ns, seq = operation[:2]
        if change.ended is not None:  # before its follower comes: of an entry one version lives
            self._rows.execute(END, (seq, ns, change.ended.id, change.ended.version))
        terms, counts, length = postings_of(change.entry.content)
        version = version_row(change.entry, created)
        self._rows.execute(_NEW_ENTRY, (*operation, *version, Vector(vector), terms, counts, length))

    def _keep_vectors(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self._rows.executemany(NEW_VECTOR, ((self.ns, key, Vector(vector)) for key, vector in rows))
        fill_words(self._rows, self)

    def wordless(self, *, mend: bool = False) -> int:
        query = (
            "SELECT count(DISTINCT digest) FROM versions v WHERE ns = ? AND NOT EXISTS "
            f"(SELECT 1 FROM postings p WHERE p.ns = ? AND p.term = {ALL} AND p.digest = v.digest)"
        )
        with hashed(self._rows):
            count = self._rows.execute(query, (self.ns, self.ns)).fetchone()[0]
        if count and mend:
            fill_words(self._rows, self)
        return count

    def erase(self, ids: Collection[str] | None) -> int:
        with hashed(self._rows):
            count = super().erase(ids)
            held = self._UNHELD.replace("vectors", "postings")
            self._rows.execute(f"DELETE FROM postings WHERE ns = ? AND {held}", (self.ns, self.ns))
        return count

    def _make(self) -> int:
        if self.ns < 0:
            row = self._rows.execute("INSERT INTO namespaces (name) VALUES (?) RETURNING ns", (self.name,)).fetchone()
            self.database.see(self.name, row[0])
        return self.ns
