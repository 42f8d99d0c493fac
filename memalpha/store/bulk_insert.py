"""Inserting many facts in one write, under the same rules as single inserts."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from memalpha.arguments import check_items
from memalpha.errors import InvalidContent, StoreError
from memalpha.store.backends.namespace import LogEnd, Namespace
from memalpha.store.fields import (
    ARGUMENTS,
    BLANKS,
    FIELD_CHECKS,
    NAMES,
    check_content_size,
    check_timestamp,
    clean_content,
    content_digest,
    make_entry,
    make_ids,
    new_defaults,
    validate_fields,
)
from memalpha.store.quarantine import WRITER
from memalpha.store.schema import MemorySchema
from memalpha.store.state import fact_identity
from memalpha.types import MemoryEntry, Operation

Fact = Mapping[str, Any]
_REQUIRED_KEYS = {"category", "content"}
_KEYS = ("category", "content", *ARGUMENTS)
_ALLOWED_KEYS = set(_KEYS)
_FIELDS = attrgetter(*FIELD_CHECKS)
_BLOCK = 500  # vectors that are checked at once, so that they stay in the processor's cache


class CheckedFact(NamedTuple):
    """Fact that can be stored: its category, cleaned content and optional fields, in stored form."""

    category: str
    content: str
    fields: dict[str, Any]


def check_fact(fact: Fact, schema: MemorySchema, max_content: int) -> CheckedFact:
    """Return a fact as it is stored, its content of `max_content` bytes at most.

    Raises what a single insert raises, whatever the memory holds: `InvalidContent` or `UnknownCategory`.
    """
    check_timestamp(fact.get("timestamp"))
    try:
        content = clean_content(fact["content"])
    except InvalidContent:
        schema.check_category(fact["category"])  # of two faults, a single insert names this one
        raise
    check_content_size(content, max_content)
    category = schema.check_category(fact["category"])
    return CheckedFact(category, content, validate_fields(fact) if len(fact) > len(_REQUIRED_KEYS) else {})


def validate_facts(facts: Iterable[Fact], schema: MemorySchema, max_content: int) -> list[CheckedFact]:
    """Return the facts as they are stored, their contents of `max_content` bytes at most.

    Raises `StoreError` naming the index of an invalid fact.
    """
    checked = []
    for index, fact in enumerate(check_items("facts", facts, of="mappings")):
        try:
            if not isinstance(fact, Mapping) or not _REQUIRED_KEYS <= fact.keys() <= _ALLOWED_KEYS:
                raise StoreError(f"a mapping with category, content and none but {', '.join(_KEYS)} is needed")
            checked.append(check_fact(fact, schema, max_content))
        except StoreError as error:
            raise type(error)(f"fact {index}: {error}") from error
    return checked


def as_fact(operation: Operation) -> Fact:
    """Return the fact that an insert without id and reason stores."""
    fields = zip(FIELD_CHECKS, _FIELDS(operation), strict=True)
    fact = {name: value for name, value in fields if value is not None}
    return {"category": operation.category, "content": operation.content, **fact}


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
    unit = np.empty(array.shape, np.float32)
    for start in range(0, count, _BLOCK):
        block = array[start : start + _BLOCK]
        with np.errstate(all="ignore"):
            scaled = block / np.abs(block).max(axis=1, initial=0.0, keepdims=True)  # no square overflows or vanishes
            scaled /= np.sqrt(np.einsum("ij,ij->i", scaled, scaled, dtype=np.float64))[:, None]
        has_direction = np.isfinite(scaled).all(axis=1)
        if not has_direction.all():
            index = start + int(np.argmin(has_direction))
            raise StoreError(f"vectors: ({count}, {dim}) finite numbers are needed: row {index} is not finite, or zero")
        unit[start : start + _BLOCK] = scaled
    return unit


def vector_rows(contents: Sequence[str], vectors: np.ndarray) -> dict[str, tuple[bytes, bytes]]:
    """Return the rows of `vectors` (n, dim) as stored, digest and vector, by content."""
    stored = np.ascontiguousarray(vectors, "<f4")
    return {content: (content_digest(content), row.tobytes()) for content, row in zip(contents, stored, strict=True)}


def insert_facts(
    namespace: Namespace, log_end: LogEnd, facts: Sequence[CheckedFact], vectors: Mapping[str, tuple[bytes, bytes]]
) -> list[MemoryEntry]:
    """Append all facts in one write. Call inside a transaction.

    Args:
        namespace: Namespace to write to.
        log_end: End of its log.
        facts: Facts of `check_fact`.
        vectors: Stored rows of the embeddings by content, from `vector_rows`.

    Returns:
        The entry of each fact; for a duplicate, the existing one.
    """
    start = log_end.position
    entries = (
        namespace.entries.with_contents(list(dict.fromkeys(vectors[fact.content][0] for fact in facts)))
        if start
        else {}
    )  # live entries by identity
    new_facts: dict[Hashable, CheckedFact] = {}
    keys = []
    writer = WRITER.get()
    for fact in facts:
        category, content, fields = fact
        key = fact_identity(namespace.schema, Operation("insert", None, category, content, **fields))
        if key not in entries:
            new_facts.setdefault(key, CheckedFact(category, content, {**writer, **fields}))
        keys.append(key)
    table = namespace.entries
    contents = [content for _, content, _ in new_facts.values()]
    ids = make_ids(contents, start, table.used_ids if start else lambda _: (), has_erasure=table.has_erasure())
    new_entries = []
    for position, (id, (key, (category, content, fields))) in enumerate(
        zip(ids, new_facts.items(), strict=True), start + 1
    ):
        given = new_defaults() | fields
        values = [given.get(name) or None if name in BLANKS else given.get(name) for name in NAMES]
        entry = make_entry(id, category, content, *values, 1, position)
        entries[key] = entry
        new_entries.append(entry)
    namespace.append(log_end, new_entries, [fields for *_, fields in new_facts.values()], vectors)
    return [entries[key] for key in keys]
