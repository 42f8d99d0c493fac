"""How entries, operations and vectors stand in the columns of a store file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from memalpha.types import MemoryEntry, Operation

ENTRY_COLUMNS = "id, category, content, timestamp, importance, metadata, source, chunk, turn, expires"


def is_storable(value: object) -> bool:
    """Whether a store can hold the value at all; what it cannot hold, it has not stored."""
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
    """The key under which a content is found: 16 bytes of BLAKE2b."""
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def vector_blob(vector: np.ndarray) -> bytes:
    """An embedding as it is stored: little-endian float32."""
    return np.asarray(vector, "<f4").tobytes()


def version_row(entry: MemoryEntry, created: int) -> tuple[Any, ...]:
    """The row of `versions` for a version of an entry whose id the position `created` made."""
    key = content_digest(entry.content)
    return (entry.version, entry.valid_from, entry.valid_to, created, key, *row_values(entry))


def row_values(record: Operation | MemoryEntry) -> tuple[Any, ...]:
    """What the columns `ENTRY` hold of it."""
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
    """The version of a row with the columns `ENTRY`, version, valid_from and valid_to."""
    id, category, content, timestamp, importance, metadata, *rest = row
    return MemoryEntry(id, category, content, timestamp, importance, _decode_metadata(metadata), *rest)


def decode_operation(kind: Any, row: Sequence[Any]) -> Operation:
    """The operation of a log row: its kind, and its columns `ENTRY`."""
    id, category, content, timestamp, importance, metadata, *rest = row
    metadata = None if metadata is None else _decode_metadata(metadata)
    return Operation(kind, id, category, content, timestamp, importance, metadata, *rest)


def logged_value(entry: MemoryEntry, name: str, fields: Mapping[str, Any]) -> Any:
    """What the log has of a field that an insert, which named `given`, may leave out."""
    if name == "metadata":
        return json.dumps(entry.metadata) if entry.metadata else "{}"
    return fields.get(name) if name in ("timestamp", "expires") else getattr(entry, name)


def _decode_metadata(text: str) -> dict[str, Any]:
    return {} if text == "{}" else json.loads(text)  # mostly empty, and then not worth parsing
