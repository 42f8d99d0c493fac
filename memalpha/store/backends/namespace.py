"""The rows of one namespace of a store: its log, versions and vectors. (Where PostgreSQL differs: `postgres_rows`.)"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from memalpha.errors import StoreError
from memalpha.store.backends.base import Backend
from memalpha.store.backends.row_codec import (
    ENTRY,
    column_of,
    digest,
    entry_of,
    operation_of,
    storable,
    values_of,
    vector_blob,
    version_row,
)
from memalpha.store.filters import moment, utc
from memalpha.store.schema import MemorySchema
from memalpha.store.state import Change, plan
from memalpha.types import MemoryEntry, Operation

VERSION = f"version, valid_from, valid_to, created, digest, {ENTRY}"
_NEW_VERSION = f"INSERT INTO versions (ns, {VERSION}) VALUES ({','.join('?' * 16)})"
_NEW_OPERATION = f"INSERT INTO operations (ns, seq, time, head, kind, {ENTRY}) VALUES ({','.join('?' * 15)})"
END = "UPDATE versions SET valid_to = ? WHERE ns = ? AND id = ? AND version = ?"
NEW_VECTOR = "INSERT INTO vectors (ns, digest, vector) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_MANY = 500  # values of one statement
_TIP = 64  # rows at the log's end that a fingerprint is of
_OPTIONAL = {"timestamp": "NULL", "importance": "1.0", "metadata": "'{}'"} | dict.fromkeys(
    ("source", "chunk", "turn", "expires"), "NULL"
)  # what an insert may leave out, and what its row then has
_MADE = ENTRY.replace("timestamp", "nullif(timestamp, '')").replace("expires", "nullif(expires, '')")  # by an insert
_GET_TIP = (
    "SELECT seq, time, (SELECT min(expires) FROM versions INDEXED BY expiring "
    "WHERE ns = ?1 AND valid_to IS NULL AND expires IS NOT NULL) "
    "FROM operations WHERE ns = ?1 ORDER BY seq DESC LIMIT 1"
)
_HOLDER = (
    "SELECT id FROM versions INDEXED BY live_content "
    "WHERE ns = ? AND digest = ? AND valid_to IS NULL AND category = ? AND content = ?"
)  # one column: Python's sqlite3 describes each one anew at every execution, which costs as much as the search does
_IS_LIVE = "valid_to IS NULL"
_WAS_LIVE = "valid_from <= ? AND (valid_to IS NULL OR valid_to > ?)"


class Tip(NamedTuple):
    """The end of a namespace's log, its position and time; and when the next live entry expires."""

    seq: int = 0
    time: str = ""
    expires: str | None = None


class Namespace:
    """The rows of one namespace; every method belongs inside a `transaction`. A `StateView` for `plan`."""

    _OF_SOURCE = "source = ?"
    _VECTORS_OF = (
        "SELECT v.id, x.vector FROM json_each(?) wanted CROSS JOIN versions v ON v.ns = ? AND v.id = wanted.value "
        "AND v.valid_to IS NULL CROSS JOIN vectors x ON x.ns = v.ns AND x.digest = v.digest"  # in this order
    )
    _UNHELD = "digest NOT IN (SELECT digest FROM versions WHERE ns = ?)"  # a content that no version has
    _list = staticmethod(json.dumps)  # a list as one value of a statement

    def __init__(self, database: Backend, name: str, schema: MemorySchema) -> None:
        self.database = database
        self.name = name
        self.schema = schema

    def transaction(self, *, write: bool = True) -> AbstractContextManager[Any]:
        """A transaction of the database, on this namespace."""
        return self.database.transaction(self.name, write=write)

    @property
    def _rows(self) -> Any:
        return self.database._connection

    @property
    def ns(self) -> int:
        """The namespace's number; -1, which no row has, before its first operation."""
        number = self.database.numbers.get(self.name)
        if number is None:
            row = self._rows.execute("SELECT ns FROM namespaces WHERE name = ?", (self.name,)).fetchone()
            if row is None:
                return -1
            number = self.database.numbers[self.name] = int(row[0])
        return number

    @property
    def position(self) -> int:
        """Number of operations in the log."""
        query = "SELECT seq FROM operations WHERE ns = ? ORDER BY seq DESC LIMIT 1"
        return (self._rows.execute(query, (self.ns,)).fetchone() or (0,))[0]

    def tip(self) -> Tip:
        """The end of the log."""
        row = self._rows.execute(_GET_TIP, (self.ns,)).fetchone()
        return Tip(*row) if row else Tip()

    def head(self, seq: int) -> int:
        """The head of a log row (0 before the first)."""
        row = self._rows.execute("SELECT head FROM operations WHERE ns = ? AND seq = ?", (self.ns, seq)).fetchone()
        return row[0] if row else 0

    def kind(self, seq: int) -> str:
        """The kind of a log row ("" before the first)."""
        row = self._rows.execute("SELECT kind FROM operations WHERE ns = ? AND seq = ?", (self.ns, seq)).fetchone()
        return row[0] if row else ""

    def seq_at(self, time: str) -> int:
        """The last position whose time is at or before `time` (times never fall along the log)."""
        query = "SELECT time FROM operations WHERE ns = ? AND seq = ?"
        log = range(1, self.position + 1)
        return bisect_right(log, time, key=lambda seq: self._rows.execute(query, (self.ns, seq)).fetchone()[0])

    def position_of(self, as_of: int | str | None) -> int | None:
        """The log position that `as_of` means; None stays None: now. Raises `StoreError`."""
        if as_of is None:
            return None
        if isinstance(as_of, str):
            try:
                return self.seq_at(utc(moment(as_of)))
            except (ValueError, OverflowError) as error:
                raise StoreError(f"as_of {as_of!r} is neither a log position nor an ISO time") from error
        if isinstance(as_of, bool) or not isinstance(as_of, int) or as_of < 0:
            raise StoreError(f"as_of {as_of!r} is neither a log position (0 or more) nor an ISO time")
        return min(as_of, self.position)

    def place_of(self, as_of: int | str | None) -> int:
        """The log position that `as_of` means, now too."""
        position = self.position_of(as_of)
        return self.position if position is None else position

    def write(
        self,
        operation: Operation,
        vectors: Mapping[str, np.ndarray] | None = None,
        *,
        tip: Tip | None = None,
        head: int | None = None,
        time: str | None = None,
    ) -> Change:
        """Plan one operation and append all its rows. `vectors` holds the embedding of its content unless that is
        stored already; `tip` is the log's end if it has been read; `head` and `time` are set where they are not this
        very operation's and now."""
        tip = tip or self.tip()
        seq = tip.seq + 1
        change = plan(self, operation, seq)
        done, entry = change.operation, change.entry
        ns = self._make()
        time = max(time or self.database.now(), tip.time)  # a clock set back must not disorder the log
        if head is None:  # what time and erasure do is nothing that an undo goes back from
            head = self.head(tip.seq) if done.kind in ("expired", "erased") else seq
        vector = None if entry is None or vectors is None else vector_blob(vectors[entry.content])
        created = seq if entry is None or entry.version == 1 else self.created([entry.id])[entry.id]
        self._keep((ns, seq, time, head, done.kind, *values_of(done)), change, created, vector)
        return change

    def _keep(self, operation: tuple[Any, ...], change: Change, created: int, vector: bytes | None) -> None:
        """Put in the rows of a change: its operation's, and those of what it ended and of the version it made."""
        ns, seq = operation[:2]
        self._rows.execute(_NEW_OPERATION, operation)
        if change.ended is not None:
            self._rows.execute(END, (seq, ns, change.ended.id, change.ended.version))
        if change.entry is not None:
            self._rows.execute(_NEW_VERSION, (ns, *version_row(change.entry, created)))
            if vector is not None:
                self._rows.execute(NEW_VECTOR, (ns, digest(change.entry.content), vector))

    def append(
        self, entries: Sequence[MemoryEntry], given: Sequence[Mapping[str, Any]], vectors: Mapping[str, bytes]
    ) -> None:
        """Append the rows of inserts that make these entries, the first versions of new ids, from the log's end on.
        `given`: of each, the fields that may be left out and were not; `vectors`: embeddings as stored, by content."""
        tip, ns = self.tip(), self._make()
        time, first = max(self.database.now(), tip.time), tip.seq + 1
        # To bind a value costs a good part of what its row costs, so what is the same in all rows is not bound.
        named = [name for name in _OPTIONAL if any(name in fields for fields in given)]
        rest = {name: text for name, text in _OPTIONAL.items() if name not in named}
        marks = ", ".join(f"?{number}" for number in range(1, 6 + len(named)))
        columns = ", ".join(["seq, time, id, category, content", *named, "ns, head, kind", *rest])
        constants = ", ".join([f"{ns}, ?1, 'insert'", *rest.values()])
        self._rows.executemany(
            f"INSERT INTO operations ({columns}) VALUES ({marks}, {constants})",
            (
                (
                    seq,
                    time,
                    entry.id,
                    entry.category,
                    entry.content,
                    *[column_of(entry, name, fields) for name in named],
                )
                for seq, (entry, fields) in enumerate(zip(entries, given, strict=True), first)
            ),
        )
        keys = [digest(entry.content) for entry in entries]
        self._rows.create_function("digest_at", 1, lambda seq: keys[seq - first])
        self._rows.execute(
            f"INSERT INTO versions (ns, version, valid_from, created, digest, {ENTRY}) "
            f"SELECT ns, 1, seq, seq, digest_at(seq), {_MADE} FROM operations WHERE ns = ? AND seq >= ?",
            (ns, first),
        )
        self._rows.executemany(
            f"INSERT INTO vectors (ns, digest, vector) VALUES ({ns}, ?, ?) ON CONFLICT DO NOTHING",
            ((key, vectors[entry.content]) for key, entry in zip(keys, entries, strict=True)),
        )

    def _make(self) -> int:
        """The namespace's number, given now if it has none."""
        if self.ns < 0:
            self._rows.execute("INSERT INTO namespaces (name) VALUES (?)", (self.name,))
        return self.ns

    def is_used(self, id: str) -> bool:
        """Whether there ever was an entry with this id."""
        rows = self._rows.execute("SELECT 1 FROM versions WHERE ns = ? AND id = ? LIMIT 1", (self.ns, id))
        return rows.fetchone() is not None

    def last(self, id: str) -> MemoryEntry | None:
        """The newest version of an entry, live or ended; None if the id was never used."""
        return self._one("id = ? ORDER BY version DESC LIMIT 1", id)

    def find(self, category: str, content: str) -> MemoryEntry | None:
        """The live entry of the category with exactly this content."""
        known = storable(content) and storable(category)
        row = known and self._rows.execute(_HOLDER, (self.ns, digest(content), category, content)).fetchone()
        return self.last(row[0]) if row else None

    def at(self, id: str, position: int | None) -> MemoryEntry | None:
        """The version of an entry that is live, or was at a position, as it was then."""
        entry = self._one(f"id = ? AND {_IS_LIVE if position is None else _WAS_LIVE}", id, *_times(position))
        return replace(entry, valid_to=None) if entry else None

    def many(self, ids: Sequence[str], position: int | None) -> dict[str, MemoryEntry]:
        """`at` for several entries that are live, or were at a position, by id."""
        where = _IS_LIVE if position is None else _WAS_LIVE
        found = {}
        for start in range(0, len(ids), _MANY):
            some = ids[start : start + _MANY]
            for entry in self._select(f"id IN ({','.join('?' * len(some))}) AND {where}", *some, *_times(position)):
                found[entry.id] = entry if entry.valid_to is None else replace(entry, valid_to=None)
        return found

    def holding(self, contents: Sequence[str]) -> dict[tuple[str, str], MemoryEntry]:
        """The live entries that hold exactly one of these contents, by category and content."""
        keys, found = [digest(content) for content in contents], {}
        for start in range(0, len(keys), _MANY):
            some = keys[start : start + _MANY]
            where = f"valid_to IS NULL AND digest IN ({','.join('?' * len(some))})"
            for entry in self._select(where, *some, index="live_content"):
                found[entry.category, entry.content] = entry
        return found

    def ended_at(self, id: str, position: int) -> MemoryEntry | None:
        """The version of an entry that the operation at `position` ended, if it ended one."""
        return self._one("id = ? AND valid_to = ?", id, position)

    def history(self, id: str) -> list[MemoryEntry]:
        """All versions of an entry, oldest first; none if the id was never used."""
        return list(self._select("id = ? ORDER BY version", id)) if storable(id) else []

    def live(
        self,
        category: str | None = None,
        *,
        after: str | None = None,
        limit: int | None = None,
        position: int | None = None,
    ) -> list[MemoryEntry]:
        """The entries that are live, or were at a position (as they were then), oldest id first; with `after`, those
        made after that id; at most `limit`."""
        where, values = _IS_LIVE if position is None else _WAS_LIVE, _times(position)
        if category is not None:
            where, values = where + " AND category = ?", [*values, category]
        if after is not None:
            where += " AND created > (SELECT min(created) FROM versions WHERE ns = ? AND id = ?)"
            values = [*values, self.ns, after]
        index = "live_order" if position is None else None
        where += " ORDER BY created"
        if limit is not None:
            where, values = where + " LIMIT ?", [*values, limit]
        entries = self._select(where, *values, index=index)
        return [entry if entry.valid_to is None else replace(entry, valid_to=None) for entry in entries]

    def spans(self, entry: MemoryEntry, position: int | None, *, after: bool) -> Iterator[MemoryEntry]:
        """The spans of an entry's source that are live, or were at a position, before or `after` it, nearest first."""
        sign, way = (">", "ASC") if after else ("<", "DESC")
        place = -1 if entry.chunk is None else entry.chunk, self.created([entry.id])[entry.id]
        of = f"{self._OF_SOURCE} AND source IS NOT NULL AND turn IS NOT NULL"  # as the index has it
        of += f" AND {_IS_LIVE if position is None else _WAS_LIVE} AND coalesce(chunk, -1)"
        beside = f"{of} = ? AND created {sign} ? ORDER BY created {way}"
        beyond = f"{of} {sign} ? ORDER BY coalesce(chunk, -1) {way}, created {way}"
        index = "spans" if position is None else None
        for where, bounds in ((beside, place), (beyond, place[:1])):
            for span in self._select(where, entry.source, *_times(position), *bounds, index=index):
                yield span if span.valid_to is None else replace(span, valid_to=None)

    def searchable(self, page: int) -> Iterator[list[tuple[Any, ...]]]:
        """Id, content, category, position, source, chunk, turn, position that made the id, and vector (None: none is
        stored) of every live entry, oldest id first, so many at a time."""
        rows = self._rows.execute(
            "SELECT v.id, v.content, v.category, v.valid_from, v.source, v.chunk, v.turn, v.created, x.vector "
            "FROM versions v INDEXED BY live_order "
            "LEFT JOIN vectors x ON x.ns = v.ns AND x.digest = v.digest "
            "WHERE v.ns = ? AND v.valid_to IS NULL ORDER BY v.created",
            (self.ns,),
        )
        while some := rows.fetchmany(page):
            yield some

    def newest(self) -> Iterator[tuple[MemoryEntry, int]]:
        """The newest version of every entry ever made, with the position that created its id."""
        created = dict(self._rows.execute("SELECT id, min(created) FROM versions WHERE ns = ? GROUP BY id", (self.ns,)))
        for entry in {entry.id: entry for entry in self._select("true ORDER BY id, version")}.values():
            yield entry, created[entry.id]

    def changed(self, after: int) -> list[str]:
        """The ids that operations beyond a position touched."""
        query = "SELECT DISTINCT id FROM operations WHERE ns = ? AND seq > ? AND id IS NOT NULL"
        return [id for (id,) in self._rows.execute(query, (self.ns, after))]

    def created(self, ids: Sequence[str]) -> dict[str, int]:
        """The position that made each of some ids."""
        query = "SELECT created FROM versions WHERE ns = ? AND id = ? LIMIT 1"
        return {id: self._rows.execute(query, (self.ns, id)).fetchone()[0] for id in ids}

    def core(self, position: int) -> str:
        """The core memory at a position."""
        row = self._rows.execute(
            "SELECT content FROM operations INDEXED BY core_updates WHERE ns = ? AND kind = 'core_update' AND seq <= ? "
            "ORDER BY seq DESC LIMIT 1",
            (self.ns, position),
        ).fetchone()
        return row[0] if row else ""

    def erased_after(self, position: int) -> bool:
        """Whether something was erased beyond a position: then what was there before may be gone too."""
        query = "SELECT 1 FROM operations WHERE ns = ? AND seq > ? AND kind = 'erased' LIMIT 1"
        return self._rows.execute(query, (self.ns, position)).fetchone() is not None

    def due(self, time: str) -> list[tuple[str, str]]:
        """The live entries that expire at or before a time, first one first: id and when."""
        query = (
            "SELECT id, expires FROM versions INDEXED BY expiring WHERE ns = ? AND valid_to IS NULL "
            "AND expires IS NOT NULL AND expires <= ? ORDER BY expires, created"
        )
        return self._rows.execute(query, (self.ns, time)).fetchall()

    def lapsed(self, seq: int, position: int) -> bool:
        """Whether the entry of a log row is gone at a later position, what ended it last being that it expired."""
        query = (
            "SELECT v.valid_to, e.kind FROM versions v LEFT JOIN operations e ON e.ns = v.ns AND e.seq = v.valid_to "
            "WHERE v.ns = ?1 AND v.id = (SELECT id FROM operations WHERE ns = ?1 AND seq = ?2) AND v.valid_from <= ?3 "
            "ORDER BY v.version DESC LIMIT 1"
        )
        end, kind = self._rows.execute(query, (self.ns, seq, position)).fetchone() or (0, "")
        return kind == "expired" and seq < end <= position

    def fingerprint(self, position: int) -> str:
        """A digest of the log's last rows up to a position: what two logs that went apart do not share."""
        query = f"SELECT seq, time, head, kind, {ENTRY} FROM operations WHERE ns = ? AND seq > ? AND seq <= ?"
        rows = self._rows.execute(query + " ORDER BY seq", (self.ns, position - _TIP, position)).fetchall()
        return hashlib.sha256(repr(rows).encode("utf-8", "surrogatepass")).hexdigest()

    def log(self, after: int, limit: int) -> list[tuple[int, str, int, Operation]]:
        """At most `limit` rows beyond a position: position, time, head, operation."""
        rows = self._rows.execute(
            f"SELECT seq, time, head, kind, {ENTRY} FROM operations WHERE ns = ? AND seq > ? ORDER BY seq LIMIT ?",
            (self.ns, after, limit),
        )
        return [(seq, time, head, operation_of(kind, rest)) for seq, time, head, kind, *rest in rows]

    def vectors(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """The stored embeddings of those texts that have one, float32 `(dim,)` each."""
        query, found = "SELECT vector FROM vectors WHERE ns = ? AND digest = ?", {}
        for text in texts:
            row = self._rows.execute(query, (self.ns, digest(text))).fetchone()
            if row is not None:
                found[text] = np.frombuffer(row[0], "<f4")
        return found

    def vectors_of(self, ids: Sequence[str]) -> dict[str, np.ndarray]:
        """The stored embeddings of the contents of live entries, by id, of those that have one, in one statement."""
        rows = self._rows.execute(self._VECTORS_OF, (self._list(ids), self.ns))
        return {id: np.frombuffer(vector, "<f4") for id, vector in rows}

    def versions(self) -> Iterator[MemoryEntry]:
        """Every version of every entry, live or ended, oldest id first."""
        return self._select("true ORDER BY created, version")

    def version_rows(self) -> Iterator[tuple[Any, ...]]:
        """Every row of `versions` as it is stored; `version_row` says what it should be."""
        return self._rows.execute(f"SELECT {VERSION} FROM versions WHERE ns = ?", (self.ns,))

    def vector_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Every row of `vectors` as it is stored: digest and vector."""
        return self._rows.execute("SELECT digest, vector FROM vectors WHERE ns = ?", (self.ns,))

    def replace_versions(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Put rows in the place of all that `versions` holds."""
        self._rows.execute("DELETE FROM versions WHERE ns = ?", (self.ns,))
        self._rows.executemany(_NEW_VERSION, _in(self.ns, rows))

    def wordless(self, *, mend: bool = False) -> int:
        """The contents that have no words to be found by (given them, to `mend`): none, where a file keeps no words."""
        return 0

    def replace_vectors(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Put rows in the place of all that `vectors` holds."""
        self._rows.execute("DELETE FROM vectors WHERE ns = ?", (self.ns,))
        self._keep_vectors(rows)

    def _keep_vectors(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Keep vectors, by the digests of contents whose versions are there."""
        self._rows.executemany(NEW_VECTOR, _in(self.ns, rows))

    def erase(self, ids: Collection[str] | None) -> int:
        """Make stubs of all operations on some ids (None: of all there are), delete their versions and vectors, and
        note it in the log; the number of stubs. `Database.scrub` is due then."""
        query, wanted = "SELECT seq, id FROM operations WHERE ns = ? AND kind <> 'erased' ORDER BY seq", set(ids or ())
        touched = [(seq, id) for seq, id in self._rows.execute(query, (self.ns,)) if ids is None or id in wanted]
        if not touched:
            return 0
        first: dict[str | None, int] = {}
        for seq, id in touched:
            first.setdefault(id, seq)
        nothing = ", ".join(f"{name} = NULL" for name in ENTRY.split(", ")[1:])
        self._rows.executemany(
            f"UPDATE operations SET kind = 'erased', id = ?, {nothing} WHERE ns = ? AND seq = ?",
            [(id and f"erased#{first[id]}", self.ns, seq) for seq, id in touched],
        )
        self._rows.executemany("DELETE FROM versions WHERE ns = ? AND id = ?", [(self.ns, id) for id in first])
        self._rows.execute(f"DELETE FROM vectors WHERE ns = ? AND {self._UNHELD}", (self.ns, self.ns))
        self.write(Operation("erased"))
        self.database.must_scrub()
        return len(touched)

    def holders(self, ids: Collection[str]) -> list[str]:
        """The other ids that hold, or held, a content which one of these does or did."""
        query = (
            "SELECT DISTINCT id FROM versions WHERE ns = ? AND digest IN "
            "(SELECT digest FROM versions WHERE ns = ? AND id = ?) ORDER BY id"
        )
        found = [id for one in ids for (id,) in self._rows.execute(query, (self.ns, self.ns, one))]
        return [id for id in dict.fromkeys(found) if id not in ids]

    def copy(self, other: Namespace, position: int) -> None:
        """Give a namespace without a log, of this database or of another, this one's log up to a position, with the
        versions and vectors that follow from it."""
        ns, mine = other._make(), (self.ns, position)
        operations = f"seq, time, head, kind, {ENTRY}"
        rows = self._rows.execute(f"SELECT {operations} FROM operations WHERE ns = ? AND seq <= ?", mine)
        other._rows.executemany(_NEW_OPERATION, _in(ns, rows))
        rows = self._rows.execute(f"SELECT {VERSION} FROM versions WHERE ns = ? AND valid_from <= ?", mine)
        ended = ((*row[:2], None if row[2] and row[2] > position else row[2], *row[3:]) for row in rows)
        other._rows.executemany(_NEW_VERSION, _in(ns, ended))
        rows = self._rows.execute(
            "SELECT digest, vector FROM vectors WHERE ns = ? AND digest IN "
            "(SELECT digest FROM versions WHERE ns = ? AND valid_from <= ?)",
            (self.ns, *mine),
        )
        other._keep_vectors(rows)

    def _one(self, where: str, *values: Any, index: str | None = None) -> MemoryEntry | None:
        known = all(map(storable, values))
        row = known and self._rows.execute(_query(where, index), (self.ns, *values)).fetchone()
        return entry_of(row) if row else None

    def _select(self, where: str, *values: Any, index: str | None = None) -> Iterator[MemoryEntry]:
        return map(entry_of, self._rows.execute(_query(where, index), (self.ns, *values)))


@cache
def _query(where: str, index: str | None) -> str:
    # Partial indexes are named: SQLite's planner, without statistics, would rather scan the namespace.
    table = f"versions INDEXED BY {index}" if index else "versions"
    return f"SELECT {ENTRY}, version, valid_from, valid_to FROM {table} WHERE ns = ? AND {where}"


def _in(ns: int, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    return ((ns, *row) for row in rows)


def _times(position: int | None) -> list[Any]:
    """The parameters of `_IS_LIVE` or `_WAS_LIVE`."""
    return [] if position is None else [position, position]
