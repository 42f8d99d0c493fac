"""Writing to one namespace of a store: operations, versions and vectors. `postgres.namespace` has the differences."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memalpha.store.backends.namespace_reads import VERSION, NamespaceReader, Tip
from memalpha.store.backends.row_codec import ENTRY, column_of, digest, values_of, vector_blob, version_row
from memalpha.store.state import Change, plan
from memalpha.types import MemoryEntry, Operation

_NEW_VERSION = f"INSERT INTO versions (ns, {VERSION}) VALUES ({','.join('?' * 16)})"
_NEW_OPERATION = f"INSERT INTO operations (ns, seq, time, head, kind, {ENTRY}) VALUES ({','.join('?' * 15)})"
END = "UPDATE versions SET valid_to = ? WHERE ns = ? AND id = ? AND version = ?"
NEW_VECTOR = "INSERT INTO vectors (ns, digest, vector) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_OPTIONAL = {"timestamp": "NULL", "importance": "1.0", "metadata": "'{}'"} | dict.fromkeys(
    ("source", "chunk", "turn", "expires"), "NULL"
)  # what an insert may leave out, and what its row then has
_MADE = ENTRY.replace("timestamp", "nullif(timestamp, '')").replace("expires", "nullif(expires, '')")  # by an insert


class Namespace(NamespaceReader):
    """Reads and writes of one namespace; every method belongs inside a `transaction`. A `StateView` for `plan`."""

    _UNHELD = "digest NOT IN (SELECT digest FROM versions WHERE ns = ?)"  # a content that no version has

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


def _in(ns: int, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    return ((ns, *row) for row in rows)
