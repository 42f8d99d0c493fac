"""Many facts at once: planned one after the other under the store's rules, written together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from memalpha.errors import DuplicateContent, StoreError
from memalpha.store.embedding import normalize
from memalpha.store.rows import Namespace
from memalpha.store.sqlite import utc
from memalpha.store.state import Change, check_timestamp, clean_content, plan
from memalpha.types import MemoryEntry, Operation

Fact = Mapping[str, Any]
_KEYS = ("category", "content", "timestamp", "importance", "metadata", "source", "chunk", "turn")


def operations_of(facts: Iterable[Fact]) -> list[Operation]:
    """The inserts that facts stand for, their contents clean; raises `StoreError` naming the fact's number."""
    operations = []
    for number, fact in enumerate(facts):
        try:
            if not isinstance(fact, Mapping) or not {"category", "content"} <= fact.keys() <= set(_KEYS):
                raise StoreError(f"a mapping with category, content and none but {', '.join(_KEYS)} is needed")
            check_timestamp(fact.get("timestamp"))
            operations.append(Operation("insert", **{**fact, "content": clean_content(fact["content"])}))
        except StoreError as error:
            raise type(error)(f"fact {number}: {error}") from error
    return operations


def vectors_of(operations: Sequence[Operation], vectors: np.ndarray, dim: int) -> dict[str, np.ndarray]:
    """Given embeddings `(n, dim)` of the operations' contents, normalised, by content."""
    given = np.asarray(vectors, np.float32)
    if given.shape != (len(operations), dim) or not np.isfinite(given).all():
        raise StoreError(f"vectors: ({len(operations)}, {dim}) finite numbers are needed, not {given.shape}")
    return {operation.content or "": row for operation, row in zip(operations, normalize(given), strict=True)}


def insert_all(
    rows: Namespace, operations: Sequence[Operation], vectors: Mapping[str, np.ndarray]
) -> list[MemoryEntry]:
    """Append all operations and return the entry of each, which for a duplicate is the one that is there. Inside a
    transaction."""
    ahead = _Ahead(rows, [operation.content or "" for operation in operations])
    entries: list[MemoryEntry] = []
    changes: list[Change] = []
    for number, operation in enumerate(operations):
        try:
            change = plan(ahead, operation)
        except DuplicateContent as known:
            entries.append(ahead.held[operation.category or "", operation.content or ""])
            assert entries[-1].id == known.entry_id
            continue
        except StoreError as error:
            raise type(error)(f"fact {number}: {error}") from error
        assert change.entry is not None
        ahead.take(change.entry)
        entries.append(change.entry)
        changes.append(change)
    rows.append(changes, vectors, utc(datetime.now(UTC)))
    return entries


class _Ahead:
    """A namespace with facts that are planned but not yet written; a `StateView` for `plan`."""

    def __init__(self, rows: Namespace, contents: Sequence[str]) -> None:
        self.schema, self.position = rows.schema, rows.position
        self.held = rows.holding(contents)  # live entries by category and content
        self._rows = rows
        self._new: dict[str, MemoryEntry] = {}

    def take(self, entry: MemoryEntry) -> None:
        """An entry is planned."""
        self._new[entry.id] = self.held[entry.category, entry.content] = entry
        self.position += 1

    def last(self, id: str) -> MemoryEntry | None:
        """The newest version of an entry; None if the id was never used."""
        return self._new.get(id) or (self._rows.last(id) if self._rows.is_used(id) else None)

    def find(self, category: str, content: str) -> MemoryEntry | None:
        """The live entry of the category with exactly this content."""
        return self.held.get((category, content))
