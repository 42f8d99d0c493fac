"""Encoding of entries, operations and vectors as database rows."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from memalpha.errors import DamagedStore
from memalpha.store.embedding import first_faulty_row
from memalpha.store.fields import (
    BLANKS,
    ENTRY_NAMES,
    FIELDS,
    METADATA,
    OPERATION_NAMES,
    entry_values,
    make_entry,
    make_operation,
    stored_types,
)
from memalpha.types import MemoryEntry, Operation

ENTRY_COLUMNS = ", ".join(ENTRY_NAMES)
OPERATION_VALUES = ", ".join(OPERATION_NAMES)

_TEXT, _NUMBER = (str, type(None)), (int, type(None))
_VERSION_COLUMN_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("id", "category", "content"), (str,)),
    **{field.name: stored_types(field, in_log=False) for field in FIELDS},
    **dict.fromkeys(("version", "valid_from"), (int,)),
    "valid_to": _NUMBER,
}
_VERSION_COLUMN_KINDS = [frozenset(types) for types in _VERSION_COLUMN_TYPES.values()]
_OPERATION_COLUMN_TYPES: dict[str, tuple[type, ...]] = {
    "position": (int,),
    "time": (str,),
    "head": (int,),
    "kind": (str,),
    **dict.fromkeys(("id", "category", "content"), _TEXT),
    **{field.name: stored_types(field, in_log=True) for field in FIELDS},
    "reason": _TEXT,
}
_NUMBERS = [number for number, name in enumerate(_VERSION_COLUMN_TYPES) if float in _VERSION_COLUMN_TYPES[name]]
_BEFORE = 4  # columns of a log row before those of its operation
_SCAN = json.JSONDecoder().scan_once  # pyright: ignore[reportAttributeAccessIssue]
_sound_types: set[tuple[type, ...]] = set()  # types of rows that were checked, so that a check is one look-up


def _make_json_encoder() -> Callable[[Any], str]:
    """Return `json.dumps`, or what it calls: it makes a new encoder each time, which costs more than a few keys."""
    make = json.encoder.c_make_encoder  # pyright: ignore[reportAttributeAccessIssue]
    if make is None:  # a Python without the module in C
        return json.dumps
    refuse = json.JSONEncoder().default
    encode = make(None, refuse, json.encoder.encode_basestring_ascii, None, ": ", ", ", False, False, True)
    return lambda value: "".join(encode(value, 0))


encode_json = _make_json_encoder()
"""Return checked metadata (`validate_fields`) as JSON."""


def is_storable(value: object) -> bool:
    """Return True if a store can hold the value, so that a lookup of it can succeed."""
    if not isinstance(value, str):
        return isinstance(value, float | bytes) or (isinstance(value, int) and -(2**63) <= value < 2**63)
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


def check_texts(ids: Sequence[Any], texts: Sequence[Any]) -> None:
    """Raise `DamagedStore` unless all stored contents are texts."""
    for id, text in zip(ids, texts, strict=True):
        if type(text) is not str:
            raise _damaged(id, f"its content is {type(text).__name__}")


def decode_vectors(names: Sequence[object], blobs: Sequence[Any], dim: int) -> np.ndarray:
    """Return stored embeddings, float32 (n, dim).

    Args:
        names: For each one, the id or content that a message names.
        blobs: Stored bytes.
        dim: Dimension of the store's embedder.

    Raises:
        DamagedStore: An embedding is no vector of the dimension with length 1 or 0.
    """
    for name, blob in zip(names, blobs, strict=True):
        if not isinstance(blob, bytes) or len(blob) != 4 * dim:
            raise _damaged_vector(name, f"{dim} numbers are needed")
    vectors = np.frombuffer(b"".join(blobs), "<f4").reshape(len(blobs), dim)
    faulty = first_faulty_row(vectors)
    if faulty is not None:
        raise _damaged_vector(names[faulty], "it is not finite, or its length is not 1")
    return vectors


def _damaged_vector(name: object, fault: str) -> DamagedStore:
    return DamagedStore(f"the stored vector of {str(name)[:80]!r} is damaged ({fault}): run `memalpha doctor --repair`")


def version_row(entry: MemoryEntry, created: int) -> tuple[Any, ...]:
    """Return the row of `versions` for an entry version; `created` is the position that made its id."""
    key = content_digest(entry.content)
    return (entry.version, entry.valid_from, entry.valid_to, created, key, *row_values(entry))


def row_values(record: Operation | MemoryEntry) -> tuple[Any, ...]:
    """Return the values of the columns `ENTRY_COLUMNS`."""
    values = entry_values(record)
    metadata = values[METADATA]
    encoded = encode_json(metadata) if metadata else None if metadata is None else "{}"
    return (*values[:METADATA], encoded, *values[METADATA + 1 :])


def decode_entry(row: tuple[Any, ...]) -> MemoryEntry:
    """Build an entry from a row with `ENTRY_COLUMNS`, version, valid_from and valid_to.

    Raises:
        DamagedStore: A column holds what no store writes; the message names the entry and the column.
    """
    if tuple(map(type, row)) not in _sound_types or not _is_finite(row, 0):
        for name, value in zip(_VERSION_COLUMN_TYPES, row, strict=True):
            if not isinstance(value, _VERSION_COLUMN_TYPES[name]):
                raise _damaged(row[0], f"its {name} is {type(value).__name__}")
        _check_numbers(row[0], row)
        _sound_types.add(tuple(map(type, row)))
    id, category, content = row[:3]
    if not (id and category and content):
        raise _damaged(id, "its id, category or content is empty")
    return make_entry(*row[:METADATA], _decode_metadata(id, row[METADATA]), *row[METADATA + 1 :])


def _is_finite(row: Sequence[Any], start: int) -> bool:
    """Return True if the numbers of a row, whose entry begins at `start`, are finite or not there."""
    return all(math.isfinite(row[start + number] or 0.0) for number in _NUMBERS)


def decode_entries(rows: Sequence[tuple[Any, ...]]) -> list[MemoryEntry]:
    """Return `decode_entry` of many rows; checked by column, they take half the time."""
    if not rows:
        return []
    columns = list(zip(*rows, strict=True))
    kinds = zip(columns, _VERSION_COLUMN_KINDS, strict=True)
    is_sound = all(set(map(type, column)) <= types for column, types in kinds)
    is_finite = is_sound and all(math.isfinite(value) for number in _NUMBERS for value in filter(None, columns[number]))
    if not (is_finite and all(map(all, columns[:3]))):
        return list(map(decode_entry, rows))  # names the first that is damaged
    columns[METADATA] = tuple(map(_decode_metadata, columns[0], columns[METADATA]))
    return list(map(make_entry, *columns))


def operation_values(operation: Operation) -> tuple[Any, ...]:
    """Return the values of the columns `OPERATION_VALUES`."""
    return (*row_values(operation), operation.reason)


def decode_log_row(row: tuple[Any, ...]) -> tuple[int, str, int, Operation]:
    """Return position, time, effective position and operation of a log row.

    Args:
        row: Position, time, effective position, kind and the columns `OPERATION_VALUES`.

    Raises:
        DamagedStore: A column holds what no store writes; the message names the position and the column.
    """
    if tuple(map(type, row)) not in _sound_types or not _is_finite(row, _BEFORE):
        check_log_row(row)
    position, time, head, kind, *values = row
    if values[METADATA] is not None:
        values[METADATA] = _decode_metadata(values[0], values[METADATA])
    return position, time, head, make_operation(kind, *values)


def check_log_row(row: tuple[Any, ...]) -> None:
    """Raise `DamagedStore` for a log row with a value of a wrong type, else remember its types as sound."""
    for name, value in zip(_OPERATION_COLUMN_TYPES, row, strict=True):
        if not isinstance(value, _OPERATION_COLUMN_TYPES[name]):
            raise _damaged(f"position {row[0]!r:.40} of the log", f"its {name} is {type(value).__name__}")
    _check_numbers(f"position {row[0]!r:.40} of the log", row[_BEFORE:])
    _sound_types.add(tuple(map(type, row)))


def logged_values(entries: Sequence[MemoryEntry], name: str, optional_fields: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the logged values of a field of inserts.

    Args:
        entries: Entries that the inserts made.
        name: Name of the field.
        optional_fields: For each entry, the optional fields that its insert gave.
    """
    if name == "metadata":
        return [encode_json(entry.metadata) if entry.metadata else "{}" for entry in entries]
    if name in BLANKS:
        return [fields.get(name) for fields in optional_fields]
    return [getattr(entry, name) for entry in entries]


def _decode_metadata(id: object, text: str) -> dict[str, Any]:
    if text == "{}":  # mostly empty: skip the parser
        return {}
    try:
        try:
            metadata, end = _SCAN(text, 0)  # all that `json.loads` does, in a third of its time
        except StopIteration:
            end = -1
        if end != len(text):
            metadata = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged(id, f"its metadata is no JSON ({error})") from error
    if not isinstance(metadata, dict):
        raise _damaged(id, f"its metadata is no mapping but {type(metadata).__name__}")
    return metadata


def _check_numbers(name: object, values: Sequence[Any]) -> None:
    for number in _NUMBERS:
        if not math.isfinite(values[number] or 0.0):
            raise _damaged(name, f"its {ENTRY_NAMES[number]} is {values[number]}")


def check_position(id: object, position: Any) -> int:
    """Return a stored log position of an entry. Raises `DamagedStore` if it is none."""
    if type(position) is not int:
        raise _damaged(id, f"a position is {type(position).__name__}")
    return position


def check_digest(id: object, digest: Any) -> bytes:
    """Return the stored digest of an entry's content. Raises `DamagedStore` if it is none."""
    if not isinstance(digest, bytes | memoryview):
        raise _damaged(id, f"a digest is {type(digest).__name__}")
    return bytes(digest)


def check_namespace_name(name: Any) -> None:
    """Raise `DamagedStore` for a stored namespace name that is not text in UTF-8."""
    try:
        name.encode()
    except (AttributeError, UnicodeEncodeError):
        raise _damaged(name, "a namespace's name is not text in UTF-8") from None


def _damaged(id: object, fault: str) -> DamagedStore:
    name = str(id)[:80]
    return DamagedStore(f"the stored row of {name!r} is damaged: {fault}: run `memalpha doctor`, or go back to a copy")
