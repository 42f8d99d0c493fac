"""Writes to one namespace of a store: operations, versions and vectors.

`postgres.namespace` overrides the statements that differ in PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memalpha.store.backends.namespace_reads import VERSION_COLUMNS, LogEnd, NamespaceReader
from memalpha.store.backends.row_codec import (
    ENTRY_COLUMNS,
    content_digest,
    logged_value,
    row_values,
    vector_blob,
    version_row,
)
from memalpha.store.state import Change, plan
from memalpha.types import MemoryEntry, Operation

_INSERT_VERSION = f"INSERT INTO versions (ns, {VERSION_COLUMNS}) VALUES ({','.join('?' * 16)})"
_INSERT_OPERATION = f"INSERT INTO operations (ns, seq, time, head, kind, {ENTRY_COLUMNS}) VALUES ({','.join('?' * 15)})"
END_VERSION = "UPDATE versions SET valid_to = ? WHERE ns = ? AND id = ? AND version = ?"
INSERT_VECTOR = "INSERT INTO vectors (ns, digest, vector) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_OPTIONAL_DEFAULTS = {"timestamp": "NULL", "importance": "1.0", "metadata": "'{}'"} | dict.fromkeys(
    ("source", "chunk", "turn", "expires"), "NULL"
)  # optional fields of an insert, and the SQL constants that replace missing ones
_INSERTED_COLUMNS = ENTRY_COLUMNS.replace("timestamp", "nullif(timestamp, '')").replace(
    "expires", "nullif(expires, '')"
)  # columns of a version that an insert makes


class Namespace(NamespaceReader):
    """Reads and writes of one namespace.

    It is a `StateView` for `plan`. Call every method inside a transaction.
    """

    _UNUSED_DIGEST = "digest NOT IN (SELECT digest FROM versions WHERE ns = ?)"  # a content that no version holds

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
        log_end = log_end or self.log_end()
        position = log_end.position + 1
        change = plan(self, operation, position)
        completed, entry = change.operation, change.entry
        ns = self._create()
        time = max(time or self.database.now(), log_end.time)  # keep the log ordered if the clock is set back
        if effective_position is None:  # expiry and erasure are not undone
            effective_position = (
                self.effective_position(log_end.position) if completed.kind in ("expired", "erased") else position
            )
        vector = None if entry is None or vectors is None else vector_blob(vectors[entry.content])
        created = position if entry is None or entry.version == 1 else self.creation_positions([entry.id])[entry.id]
        self._insert_rows(
            (ns, position, time, effective_position, completed.kind, *row_values(completed)), change, created, vector
        )
        return change

    def _insert_rows(self, operation: tuple[Any, ...], change: Change, created: int, vector: bytes | None) -> None:
        """Insert the rows of a change: its operation, the version it ended and the version it made."""
        ns, position = operation[:2]
        self._statements.execute(_INSERT_OPERATION, operation)
        if change.ended is not None:
            self._statements.execute(END_VERSION, (position, ns, change.ended.id, change.ended.version))
        if change.entry is not None:
            self._statements.execute(_INSERT_VERSION, (ns, *version_row(change.entry, created)))
            if vector is not None:
                self._statements.execute(INSERT_VECTOR, (ns, content_digest(change.entry.content), vector))

    def append(
        self, entries: Sequence[MemoryEntry], optional_fields: Sequence[Mapping[str, Any]], vectors: Mapping[str, bytes]
    ) -> None:
        """Append inserts of new ids at the end of the log, in bulk.

        Args:
            entries: First versions of the new entries.
            optional_fields: For each entry, the optional fields that its insert gave.
            vectors: Stored bytes of the embeddings, by content.
        """
        log_end, ns = self.log_end(), self._create()
        time, start = max(self.database.now(), log_end.time), log_end.position + 1
        # Binding a value costs a good part of inserting its row, so constants are not bound.
        bound_names = [name for name in _OPTIONAL_DEFAULTS if any(name in fields for fields in optional_fields)]
        constants_by_name = {name: text for name, text in _OPTIONAL_DEFAULTS.items() if name not in bound_names}
        placeholders = ", ".join(f"?{number}" for number in range(1, 6 + len(bound_names)))
        columns = ", ".join(["seq, time, id, category, content", *bound_names, "ns, head, kind", *constants_by_name])
        constants = ", ".join([f"{ns}, ?1, 'insert'", *constants_by_name.values()])
        self._statements.executemany(
            f"INSERT INTO operations ({columns}) VALUES ({placeholders}, {constants})",
            (
                (
                    seq,
                    time,
                    entry.id,
                    entry.category,
                    entry.content,
                    *[logged_value(entry, name, fields) for name in bound_names],
                )
                for seq, (entry, fields) in enumerate(zip(entries, optional_fields, strict=True), start)
            ),
        )
        digests = [content_digest(entry.content) for entry in entries]
        self._statements.create_function("digest_at", 1, lambda seq: digests[seq - start])
        self._statements.execute(
            f"INSERT INTO versions (ns, version, valid_from, created, digest, {ENTRY_COLUMNS}) "
            f"SELECT ns, 1, seq, seq, digest_at(seq), {_INSERTED_COLUMNS} FROM operations WHERE ns = ? AND seq >= ?",
            (ns, start),
        )
        self._statements.executemany(
            f"INSERT INTO vectors (ns, digest, vector) VALUES ({ns}, ?, ?) ON CONFLICT DO NOTHING",
            ((digest, vectors[entry.content]) for digest, entry in zip(digests, entries, strict=True)),
        )

    def _create(self) -> int:
        """Return the namespace's id, creating the namespace if needed."""
        if self.namespace_id < 0:
            self._statements.execute("INSERT INTO namespaces (name) VALUES (?)", (self.name,))
        return self.namespace_id

    def replace_versions(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Replace all rows of `versions`."""
        self._statements.execute("DELETE FROM versions WHERE ns = ?", (self.namespace_id,))
        self._statements.executemany(_INSERT_VERSION, _with_namespace(self.namespace_id, rows))

    def count_unindexed(self, *, repair: bool = False) -> int:
        """Count the contents without postings, and add them with `repair`; an SQLite file has no postings, so 0."""
        return 0

    def replace_vectors(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace all rows of `vectors`."""
        self._statements.execute("DELETE FROM vectors WHERE ns = ?", (self.namespace_id,))
        self._insert_vectors(rows)

    def _insert_vectors(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Insert vectors by content digest; the versions with these contents must exist."""
        self._statements.executemany(INSERT_VECTOR, _with_namespace(self.namespace_id, rows))

    def erase(self, ids: Collection[str] | None) -> int:
        """Turn all operations on `ids` (None: all operations) into stubs; return their number.

        Their versions and vectors are deleted and the erasure is logged. The database must be scrubbed afterwards.
        """
        query, erased_ids = (
            "SELECT seq, id FROM operations WHERE ns = ? AND kind <> 'erased' ORDER BY seq",
            set(ids or ()),
        )
        touched = [
            (position, id)
            for position, id in self._statements.execute(query, (self.namespace_id,))
            if ids is None or id in erased_ids
        ]
        if not touched:
            return 0
        first_positions: dict[str | None, int] = {}
        for seq, id in touched:
            first_positions.setdefault(id, seq)
        cleared = ", ".join(f"{name} = NULL" for name in ENTRY_COLUMNS.split(", ")[1:])
        self._statements.executemany(
            f"UPDATE operations SET kind = 'erased', id = ?, {cleared} WHERE ns = ? AND seq = ?",
            [(id and f"erased#{first_positions[id]}", self.namespace_id, seq) for seq, id in touched],
        )
        self._statements.executemany(
            "DELETE FROM versions WHERE ns = ? AND id = ?", [(self.namespace_id, id) for id in first_positions]
        )
        self._statements.execute(
            f"DELETE FROM vectors WHERE ns = ? AND {self._UNUSED_DIGEST}", (self.namespace_id, self.namespace_id)
        )
        self.write(Operation("erased"))
        self.database.mark_for_scrub()
        return len(touched)

    def copy_to(self, target: Namespace, position: int) -> None:
        """Copy the log up to a position, with its versions and vectors, into an empty namespace of any database."""
        ns, bounds = target._create(), (self.namespace_id, position)
        operations = f"seq, time, head, kind, {ENTRY_COLUMNS}"
        rows = self._statements.execute(f"SELECT {operations} FROM operations WHERE ns = ? AND seq <= ?", bounds)
        target._statements.executemany(_INSERT_OPERATION, _with_namespace(ns, rows))
        rows = self._statements.execute(
            f"SELECT {VERSION_COLUMNS} FROM versions WHERE ns = ? AND valid_from <= ?", bounds
        )
        versions = ((*row[:2], None if row[2] and row[2] > position else row[2], *row[3:]) for row in rows)
        target._statements.executemany(_INSERT_VERSION, _with_namespace(ns, versions))
        rows = self._statements.execute(
            "SELECT digest, vector FROM vectors WHERE ns = ? AND digest IN "
            "(SELECT digest FROM versions WHERE ns = ? AND valid_from <= ?)",
            (self.namespace_id, *bounds),
        )
        target._insert_vectors(rows)


def _with_namespace(ns: int, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    return ((ns, *row) for row in rows)
