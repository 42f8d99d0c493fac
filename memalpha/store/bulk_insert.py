"""Inserting many facts in one write, under the same rules as single inserts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from memalpha.errors import StoreError
from memalpha.store.backends.namespace import Namespace
from memalpha.store.backends.row_codec import vector_blob
from memalpha.store.state import make_id
from memalpha.store.trust.provenance import WRITER
from memalpha.store.validation import check_content_size, check_timestamp, clean_content, validate_fields
from memalpha.types import MemoryEntry

Fact = Mapping[str, Any]
_REQUIRED_KEYS = {"category", "content"}
_KEYS = ("category", "content", "timestamp", "importance", "metadata", "source", "chunk", "turn", "expires")
_ALLOWED_KEYS = set(_KEYS)


def validate_facts(facts: Iterable[Fact], max_content: int) -> list[tuple[Fact, str]]:
    """Return each fact with its cleaned content, of `max_content` bytes at most.

    Raises `StoreError` naming the index of an invalid fact.
    """
    validated = []
    for index, fact in enumerate(facts):
        try:
            if not isinstance(fact, Mapping) or not _REQUIRED_KEYS <= fact.keys() <= _ALLOWED_KEYS:
                raise StoreError(f"a mapping with category, content and none but {', '.join(_KEYS)} is needed")
            check_timestamp(fact.get("timestamp"))
            content = clean_content(fact["content"])
            check_content_size(content, max_content)
            validated.append((fact, content))
        except StoreError as error:
            raise type(error)(f"fact {index}: {error}") from error
    return validated


def normalize_vectors(count: int, vectors: np.ndarray, dim: int) -> np.ndarray:
    """Return given embeddings as unit vectors.

    Args:
        count: Number of contents.
        vectors: Embeddings, shape (count, dim).
        dim: Dimension of the store's embedder.

    Raises:
        StoreError: The shape differs, a number is not finite, or a vector is zero.
    """
    try:
        array = np.asarray(vectors)
        if array.dtype.kind not in "fiu":
            raise TypeError(f"their type is {array.dtype}")
        if array.dtype != np.float32:
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise StoreError(f"vectors: ({count}, {dim}) finite numbers are needed ({error})") from error
    if array.shape != (count, dim):
        raise StoreError(f"vectors: ({count}, {dim}) finite numbers are needed, not {array.shape}")
    with np.errstate(all="ignore"):
        peaks = np.abs(array).max(axis=1, initial=0.0, keepdims=True)
        unit = array / peaks  # whose squares neither overflow nor vanish
        unit /= np.sqrt(np.einsum("ij,ij->i", unit, unit, dtype=np.float64))[:, None]
    has_direction = np.isfinite(unit).all(axis=1)
    if not has_direction.all():
        index = int(np.argmin(has_direction))
        raise StoreError(f"vectors: ({count}, {dim}) finite numbers are needed: row {index} is not finite, or zero")
    return unit.astype(np.float32, copy=False)


def vector_blobs(contents: Sequence[str], vectors: np.ndarray) -> dict[str, bytes]:
    """Return the rows of `vectors` (n, dim) as stored bytes, by content."""
    data, width = vector_blob(vectors), 4 * vectors.shape[1]
    return {content: data[row * width : (row + 1) * width] for row, content in enumerate(contents)}


def insert_facts(
    namespace: Namespace, facts: Sequence[tuple[Fact, str]], vectors: Mapping[str, bytes]
) -> list[MemoryEntry]:
    """Append all facts in one write. Call inside a transaction.

    Args:
        namespace: Namespace to write to.
        facts: Facts with their contents, from `validate_facts`.
        vectors: Stored bytes of the embeddings by content, from `vector_blobs`.

    Returns:
        The entry of each fact; for a duplicate, the existing one.

    Raises:
        StoreError: A fact is invalid; the message names its index.
    """
    start = position = namespace.log.position
    existing = (
        namespace.entries.with_contents([content for _, content in facts]) if start else {}
    )  # live entries by category and content
    new_entries: dict[str, MemoryEntry] = {}
    optional_fields: list[dict[str, Any]] = []  # optional fields of each new entry
    entries: list[MemoryEntry] = []
    writer = WRITER.get()
    has_erasure = namespace.entries.has_erasure()
    check_category = namespace.schema.check_category

    def is_used(id: str) -> bool:
        return id in new_entries or (start > 0 and namespace.entries.is_used(id))

    for index, (fact, content) in enumerate(facts):
        try:
            category = check_category(fact["category"])
            entry = existing.get((category, content))
            if entry is None:
                fields = validate_fields(fact) if len(fact) > len(_REQUIRED_KEYS) else {}
                fields |= writer
                id = make_id(content, position, is_used, has_erasure=has_erasure)
                position += 1
                entry = MemoryEntry(
                    id,
                    category,
                    content,
                    fields.get("timestamp") or None,
                    fields.get("importance", 1.0),
                    fields.get("metadata", {}),
                    fields.get("source"),
                    fields.get("chunk"),
                    fields.get("turn"),
                    fields.get("expires") or None,
                    fields.get("speaker"),
                    fields.get("key"),
                    1,
                    position,
                )
                new_entries[id] = existing[category, content] = entry
                optional_fields.append(fields)
        except StoreError as error:
            raise type(error)(f"fact {index}: {error}") from error
        entries.append(entry)
    namespace.append(list(new_entries.values()), optional_fields, vectors)
    return entries
