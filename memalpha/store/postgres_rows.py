"""The rows of one namespace in PostgreSQL, where its statements are others than SQLite's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from memalpha.errors import StoreError
from memalpha.store.backend import Statements
from memalpha.store.fields import ENTRY, column_of, digest
from memalpha.store.postgres import PostgresDatabase, Vector
from memalpha.store.postgres_words import ALL, fill_words, index_contents
from memalpha.store.rows import NEW_VECTOR, Namespace
from memalpha.store.schema import MemorySchema
from memalpha.types import MemoryEntry

_MANY = 2000  # rows of one statement
_LONGEST_NAME = 2000  # bytes; what an index can hold
_TYPES = {"importance": "float8", "chunk": "int8"}  # of columns that are no text


class PostgresRows(Namespace):
    """See `Namespace`."""

    database: PostgresDatabase

    _OF_SOURCE = "source_key = hashtextextended(?2, 0) AND source = ?2"  # after the namespace
    _VECTORS_OF = (
        "SELECT v.id, x.vector FROM versions v JOIN vectors x ON x.ns = v.ns AND x.digest = v.digest "
        "WHERE v.id = ANY (?) AND v.ns = ? AND v.valid_to IS NULL"
    )
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

    def _keep_vector(self, ns: int, content: str, vector: bytes) -> None:
        self._rows.execute(NEW_VECTOR, (ns, digest(content), Vector(vector)))
        index_contents(self._rows, ns, [content])

    def _keep_vectors(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self._rows.executemany(NEW_VECTOR, ((self.ns, key, Vector(vector)) for key, vector in rows))
        fill_words(self._rows, self)

    def wordless(self, *, mend: bool = False) -> int:
        query = (
            "SELECT count(DISTINCT digest) FROM versions v WHERE ns = ? AND NOT EXISTS "
            f"(SELECT 1 FROM postings p WHERE p.ns = v.ns AND p.term = {ALL} AND p.digest = v.digest)"
        )
        count = self._rows.execute(query, (self.ns,)).fetchone()[0]
        if count and mend:
            fill_words(self._rows, self)
        return count

    def erase(self, ids: Collection[str] | None) -> int:
        count = super().erase(ids)
        self._rows.execute(
            "DELETE FROM postings WHERE ns = ? AND digest NOT IN (SELECT digest FROM versions WHERE ns = ?)",
            (self.ns, self.ns),
        )
        return count

    def _make(self) -> int:
        if self.ns < 0:
            row = self._rows.execute("INSERT INTO namespaces (name) VALUES (?) RETURNING ns", (self.name,)).fetchone()
            self.database.see(self.name, row[0])
        return self.ns
