"""Encoding of entries, operations and vectors as database rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from memalpha.types import MemoryEntry, Operation

ENTRY_COLUMNS = "id, category, content, timestamp, importance, metadata, source, chunk, turn, expires"


def is_storable(value: object) -> bool:
    """Return True if a store can hold the value, so that a lookup of it can succeed."""
    if not isinstance(value, str):
        return isinstance(value, int | float | bytes)
    if "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def content_digest(content: str) -> bytes:
    """Return the key of a content: 16 bytes of BLAKE2b."""
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def vector_blob(vector: np.ndarray) -> bytes:
    """Return an embedding as stored bytes: little-endian float32."""
    return np.asarray(vector, "<f4").tobytes()


def version_row(entry: MemoryEntry, created: int) -> tuple[Any, ...]:
    """Return the row of `versions` for an entry version; `created` is the position that made its id."""
    key = content_digest(entry.content)
    return (entry.version, entry.valid_from, entry.valid_to, created, key, *row_values(entry))


def row_values(record: Operation | MemoryEntry) -> tuple[Any, ...]:
    """Return the values of the columns `ENTRY_COLUMNS`."""
    metadata = json.dumps(record.metadata) if record.metadata else None if record.metadata is None else "{}"
    return (
        record.id,
        record.category,
        record.content,
        record.timestamp,
        record.importance,
        metadata,
        record.source,
        record.chunk,
        record.turn,
        record.expires,
    )


def decode_entry(row: tuple[Any, ...]) -> MemoryEntry:
    """Build an entry from a row with `ENTRY_COLUMNS`, version, valid_from and valid_to."""
    id, category, content, timestamp, importance, metadata, *rest = row
    return MemoryEntry(id, category, content, timestamp, importance, _decode_metadata(metadata), *rest)


def decode_operation(kind: Any, row: Sequence[Any]) -> Operation:
    """Build an operation from its kind and its columns `ENTRY_COLUMNS`."""
    id, category, content, timestamp, importance, metadata, *rest = row
    metadata = None if metadata is None else _decode_metadata(metadata)
    return Operation(kind, id, category, content, timestamp, importance, metadata, *rest)


def logged_value(entry: MemoryEntry, name: str, fields: Mapping[str, Any]) -> Any:
    """Return the logged value of an optional field of an insert.

    Args:
        entry: Entry that the insert made.
        name: Name of the field.
        fields: Fields that the insert gave.
    """
    if name == "metadata":
        return json.dumps(entry.metadata) if entry.metadata else "{}"
    return fields.get(name) if name in ("timestamp", "expires") else getattr(entry, name)


def _decode_metadata(text: str) -> dict[str, Any]:
    return {} if text == "{}" else json.loads(text)  # mostly empty: skip the parser
