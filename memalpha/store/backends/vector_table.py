"""`VectorTable`: the embeddings of a namespace's contents, each stored once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memalpha.store.backends.row_codec import content_digest, decode_vectors
from memalpha.store.backends.scope import NamespaceScope

INSERT_VECTOR = "INSERT INTO vectors (ns, digest, vector) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_BATCH = 500  # digests per statement


class VectorTable:
    """Embeddings by content digest. Call every method inside a transaction."""

    def __init__(self, scope: NamespaceScope) -> None:
        self._scope = scope

    def of_texts(self, texts: Sequence[str], dim: int) -> dict[str, np.ndarray]:
        """Return the stored embeddings of the texts that have one, float32 (dim,) each. Raises `DamagedStore`."""
        texts_by_digest, vectors = {content_digest(text): text for text in texts}, {}
        digests = list(texts_by_digest)
        for start in range(0, len(digests), _BATCH):
            batch = digests[start : start + _BATCH]
            query = f"SELECT digest, vector FROM vectors WHERE ns = ? AND digest IN ({','.join('?' * len(batch))})"
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

    def insert(self, digest: bytes, vector: bytes) -> None:
        """Insert the vector of a content, unless it has one."""
        self._scope.select(INSERT_VECTOR, digest, vector)

    def extend(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Insert vectors by content digest; the versions with these contents must exist."""
        self._scope.insert(INSERT_VECTOR, rows)

    def insert_new(self, rows: Mapping[str, tuple[bytes, bytes]]) -> None:
        """Insert the vectors of contents that were just stored, given as digest and vector by content."""
        statement = INSERT_VECTOR.replace("?", str(self._scope.namespace_id), 1)  # a bound value costs time
        self._scope.statements.executemany(statement, rows.values())

    def delete_unused(self) -> None:
        """Delete the vectors of contents that no version holds."""
        used = "SELECT digest FROM versions WHERE ns = ?1"
        self._scope.select(f"DELETE FROM vectors WHERE ns = ?1 AND digest NOT IN ({used})")

    def delete(self, digests: Iterable[bytes]) -> None:
        """Delete the vectors of contents that no version holds any more."""
        self._scope.insert("DELETE FROM vectors WHERE ns = ? AND digest = ?", ((digest,) for digest in digests))

    def replace(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace all rows."""
        self._scope.select("DELETE FROM vectors WHERE ns = ?")
        self.extend(rows)

    def search_rows(self, page_size: int) -> Iterator[list[tuple[Any, ...]]]:
        """Iterate over the live entries in batches, oldest id first, with all that a search index needs.

        A row is id, content, category, position, source, chunk, turn, creation position, and vector or None.
        """
        rows = self._scope.select(
            "SELECT v.id, v.content, v.category, v.valid_from, v.source, v.chunk, v.turn, v.created, x.vector "
            "FROM versions v INDEXED BY live_order "
            "LEFT JOIN vectors x ON x.ns = v.ns AND x.digest = v.digest "
            "WHERE v.ns = ? AND v.valid_to IS NULL ORDER BY v.created"
        )
        while batch := rows.fetchmany(page_size):
            yield batch
