"""How entries, operations and vectors stand in the columns of a store file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from memalpha.types import MemoryEntry, Operation

ENTRY = "id, category, content, timestamp, importance, metadata, source, chunk, turn, expires"


def storable(value: object) -> bool:
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


def digest(content: str) -> bytes:
    """The key under which a content is found: 16 bytes of BLAKE2b."""
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def vector_blob(vector: np.ndarray) -> bytes:
    """An embedding as it is stored: little-endian float32."""
    return np.asarray(vector, "<f4").tobytes()


def version_row(entry: MemoryEntry, created: int) -> tuple[Any, ...]:
    """The row of `versions` for a version of an entry whose id the position `created` made."""
    key = digest(entry.content)
    return (entry.version, entry.valid_from, entry.valid_to, created, key, *values_of(entry))


def values_of(thing: Operation | MemoryEntry) -> tuple[Any, ...]:
    """What the columns `ENTRY` hold of it."""
    metadata = json.dumps(thing.metadata) if thing.metadata else None if thing.metadata is None else "{}"
    return (
        thing.id,
        thing.category,
        thing.content,
        thing.timestamp,
        thing.importance,
        metadata,
        thing.source,
        thing.chunk,
        thing.turn,
        thing.expires,
    )


def entry_of(row: tuple[Any, ...]) -> MemoryEntry:
    """The version of a row with the columns `ENTRY`, version, valid_from and valid_to."""
    id, category, content, timestamp, importance, metadata, *rest = row
    return MemoryEntry(id, category, content, timestamp, importance, _metadata(metadata), *rest)


def operation_of(kind: Any, row: Sequence[Any]) -> Operation:
    """The operation of a log row: its kind, and its columns `ENTRY`."""
    id, category, content, timestamp, importance, metadata, *rest = row
    metadata = None if metadata is None else _metadata(metadata)
    return Operation(kind, id, category, content, timestamp, importance, metadata, *rest)


def column_of(entry: MemoryEntry, name: str, given: Mapping[str, Any]) -> Any:
    """What the log has of a field that an insert, which named `given`, may leave out."""
    if name == "metadata":
        return json.dumps(entry.metadata) if entry.metadata else "{}"
    return given.get(name) if name in ("timestamp", "expires") else getattr(entry, name)


def _metadata(text: str) -> dict[str, Any]:
    return {} if text == "{}" else json.loads(text)  # mostly empty, and then not worth parsing
