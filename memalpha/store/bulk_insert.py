"""Many facts at once, under the rules of `plan` one after the other, written together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from memalpha.errors import StoreError
from memalpha.store.backends.namespace import Namespace
from memalpha.store.backends.row_codec import vector_blob
from memalpha.store.embedding import normalize
from memalpha.store.state import make_id
from memalpha.store.validation import check_timestamp, clean_content, validate_fields
from memalpha.types import MemoryEntry

Fact = Mapping[str, Any]
_NEEDED = {"category", "content"}
_KEYS = ("category", "content", "timestamp", "importance", "metadata", "source", "chunk", "turn", "expires")
_ALL = set(_KEYS)


def cleaned(facts: Iterable[Fact]) -> list[tuple[Fact, str]]:
    """Each fact with its content as it is stored; raises `StoreError` naming the fact's number."""
    found = []
    for number, fact in enumerate(facts):
        try:
            if not isinstance(fact, Mapping) or not _NEEDED <= fact.keys() <= _ALL:
                raise StoreError(f"a mapping with category, content and none but {', '.join(_KEYS)} is needed")
            check_timestamp(fact.get("timestamp"))
            found.append((fact, clean_content(fact["content"])))
        except StoreError as error:
            raise type(error)(f"fact {number}: {error}") from error
    return found


def unit_vectors(number: int, vectors: np.ndarray, dim: int) -> np.ndarray:
    """Given embeddings of so many contents, normalised; raises `StoreError` unless they are `(number, dim)`."""
    given = np.asarray(vectors, np.float32)
    if given.shape != (number, dim) or not np.isfinite(given).all():
        raise StoreError(f"vectors: ({number}, {dim}) finite numbers are needed, not {given.shape}")
    return normalize(given)


def blobs_of(contents: Sequence[str], vectors: np.ndarray) -> dict[str, bytes]:
    """The rows of `vectors` `(n, dim)` as they are stored, by content."""
    data, width = vector_blob(vectors), 4 * vectors.shape[1]
    return {content: data[place * width : (place + 1) * width] for place, content in enumerate(contents)}


def insert_all(rows: Namespace, facts: Sequence[tuple[Fact, str]], vectors: Mapping[str, bytes]) -> list[MemoryEntry]:
    """Append all facts and return the entry of each, which for a duplicate is the one that is there; `vectors` holds
    the embeddings by content (see `blobs_of`). Inside a transaction."""
    first = position = rows.position
    held = rows.holding([content for _, content in facts]) if first else {}  # live entries by category and content
    new: dict[str, MemoryEntry] = {}
    more: list[dict[str, Any]] = []  # what else is known of each new one
    entries: list[MemoryEntry] = []
    check = rows.schema.check_category

    def taken(id: str) -> bool:
        return id in new or (first > 0 and rows.is_used(id))

    for number, (fact, content) in enumerate(facts):
        try:
            category = check(fact["category"])
            entry = held.get((category, content))
            if entry is None:
                given = validate_fields(fact) if len(fact) > len(_NEEDED) else {}
                id = make_id(content, position, taken)
                position += 1
                entry = MemoryEntry(
                    id,
                    category,
                    content,
                    given.get("timestamp") or None,
                    given.get("importance", 1.0),
                    given.get("metadata", {}),
                    given.get("source"),
                    given.get("chunk"),
                    given.get("turn"),
                    given.get("expires") or None,
                    1,
                    position,
                )
                new[id] = held[category, content] = entry
                more.append(given)
        except StoreError as error:
            raise type(error)(f"fact {number}: {error}") from error
        entries.append(entry)
    rows.append(list(new.values()), more, vectors)
    return entries
