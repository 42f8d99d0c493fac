"""Validation of stored fields: contents, timestamps, metadata, core memory, ids; and new ids. Errors name the field."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from memalpha.arguments import brief_repr, is_finite_number
from memalpha.errors import InvalidContent, StoreError
from memalpha.store.fields import FIELDS, Kind
from memalpha.store.filters import format_utc, parse_time
from memalpha.store.schema import MemorySchema, count_core_tokens
from memalpha.types import MemoryEntry, Operation, is_iso_time

MAX_CONTENT = 1_000_000  # bytes of a content in UTF-8, unless the store is opened with another limit
MAX_DEPTH = 50  # levels of metadata; filters allow as many
UPDATE_FIELDS = (
    "content",
    "timestamp",
    "importance",
    "metadata",
    "source",
    "chunk",
    "turn",
    "expires",
    "merge_metadata",
)  # arguments of `Memory.update` beside the id
# 32 characters of five bits each; l, 1, o and 0 are left out because they are easily confused.
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_CHARACTERS = bytes(ord(_ALPHABET[byte & 31]) for byte in range(256))  # of a suffix, by byte of a hash
_TRIED = 3  # ids that are asked for at once; mostly the third is free
_WORD = re.compile(r"\w+")
_TWO_WORDS = re.compile(r"\W*(\w+)(?:\W+(\w+))?")
_ID = re.compile(r"[^\s\x00]{1,128}")


def is_id(text: str) -> bool:
    """Return True if a text can be an entry's id: 1 to 128 characters without whitespace."""
    return _ID.fullmatch(text) is not None


def make_id(
    content: str, position: int, used_ids: Callable[[Sequence[str]], Collection[str]], *, has_erasure: bool = False
) -> str:
    """Return a readable id that was never used: `city: Oslo` gives `city#e`, after an erasure `city#c.e2`.

    The id is a topic, "#" and a suffix. The topic is the text before the first colon if that has at most 4 words, else
    the first 2 words; at most 24 characters. The suffix comes from a hash of (content, position); it has one character
    unless that id is used. A log with erasures no longer knows all of its ids. The suffix then begins with the position
    and a dot, so that no earlier id of the log can be equal.

    Args:
        content: Content of the new entry.
        position: Log position before the insert.
        used_ids: Returns those of some ids that are not free.
        has_erasure: Operations of the log were erased.

    Raises:
        StoreError: No free id was found.
    """
    stem, suffix, shortest = id_parts(content, position, has_erasure=has_erasure)
    for start in range(shortest, len(suffix) + 1, _TRIED):
        ids = [stem + suffix[:length] for length in range(start, min(start + _TRIED, len(suffix) + 1))]
        used = used_ids(ids)
        for id in ids:
            if id not in used:
                return id
    raise StoreError(f"no free id for {content!r} at position {position}")


def id_parts(content: str, position: int, *, has_erasure: bool = False) -> tuple[str, str, int]:
    """Return the stem and the suffix of an id of `make_id`, and the shortest length of the suffix.

    Args:
        content: Content of the new entry.
        position: Log position before the insert.
        has_erasure: Operations of the log were erased.
    """
    text = content.lower()
    subject, colon, _ = text.partition(":")
    words = _WORD.findall(subject) if colon else []
    if not 1 <= len(words) <= 4:
        match = _TWO_WORDS.match(text)
        words = [word for word in match.groups() if word] if match else []
    topic = "-".join(words)[:24].strip("-") or "m"
    suffix = hashlib.blake2b(f"{position}\0{content}".encode()).digest().translate(_CHARACTERS).decode()
    code = _ALPHABET[position & 31]
    while position := position >> 5:
        code = _ALPHABET[position & 31] + code
    return (f"{topic}#{code}.", suffix, 2) if has_erasure else (topic + "#", suffix, 1)


def clean_content(value: object) -> str:
    """Return the content without outer whitespace. Raises `InvalidContent` if it is empty or no text."""
    content = check_text("content", value).strip()
    if not content:
        raise InvalidContent("content is empty")
    return content


def check_content_size(content: str, limit: int) -> None:
    """Raise `InvalidContent` for a content of more UTF-8 bytes than the limit."""
    if 4 * len(content) > limit and (size := len(content.encode())) > limit:
        raise InvalidContent(
            f"content of {size:,} bytes is over the limit of {limit:,}: split it, or open the store with a larger "
            "max_content"
        )


def check_timestamp(timestamp: str | None) -> None:
    """Raise `InvalidContent` unless a new timestamp is ISO 8601, None or "".

    Older logs may hold any text.
    """
    if timestamp is None or not check_text("timestamp", timestamp):
        return
    if not is_iso_time(timestamp):
        raise InvalidContent(f"timestamp {brief_repr(timestamp)} is no ISO 8601 date or time (2024-05-01)")


def update_operation(
    current: MemoryEntry,
    *,
    id: str,
    content: str | None = None,
    timestamp: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    merge_metadata: bool = False,
    **fields: Any,
) -> Operation:
    """Return the operation of an update, by the arguments of `Memory.update`.

    Args:
        current: Live version of the entry.
        id: Id of the entry.
        content: New text; None keeps it.
        timestamp: New timestamp; None keeps it, unless the content changes.
        metadata: New metadata; None keeps it.
        merge_metadata: Set the keys of `metadata` in the old one, and remove those that are None.
        **fields: Further fields of the operation.

    Raises:
        InvalidContent: The content or the metadata cannot be stored.
    """
    if timestamp is None and content is not None and current.content != clean_content(content):
        timestamp = ""
    if merge_metadata and metadata is not None:
        if not isinstance(metadata, Mapping):
            raise InvalidContent("metadata: a mapping with text keys is needed")
        merged = {**current.metadata, **metadata}
        metadata = {key: value for key, value in merged.items() if value is not None or key not in metadata}
    content = current.content if content is None else content
    return Operation("update", id=id, content=content, timestamp=timestamp, metadata=metadata, **fields)


def clean_core_text(schema: MemorySchema, value: object) -> str:
    """Return the core memory text without outer whitespace.

    Raises `InvalidContent` over the token limit, and `StoreError` if the schema has no core memory.
    """
    is_cleared = (
        isinstance(value, str) and not value
    )  # valid in any schema: `restore` may need an operation without effect
    if not schema.core and not is_cleared:
        raise StoreError(f"schema {schema.name!r} has no core memory")
    core = check_text("core memory", value).strip()
    tokens = count_core_tokens(core)
    if tokens > schema.core_limit:
        raise InvalidContent(
            f"core memory of {tokens} tokens is over the limit of {schema.core_limit}: nothing was stored; shorten it"
        )
    return core


def validate_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the optional operation fields that are not None, in stored form. Raises `InvalidContent`."""
    names = FIELD_CHECKS.keys() & fields.keys()
    if len(names) > 1:  # the order of the checks is that of the messages
        names = [name for name in FIELD_CHECKS if name in names]
    return {name: FIELD_CHECKS[name](name, fields[name]) for name in names if fields[name] is not None}


def is_text(value: object) -> bool:
    """Return True for a text that can be encoded: no half of a surrogate pair."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def check_text(name: str, value: object) -> str:
    """Return the text. Raises `InvalidContent` for another type, a NUL or half a surrogate pair."""
    if not isinstance(value, str):
        is_chat = name == "content" and isinstance(value, list | dict)
        hint = "; MemoryAgent(policy, store).read() takes chat messages" if is_chat else ""
        raise InvalidContent(f"{name}: text is needed, not {type(value).__name__}{hint}")
    if "\x00" in value:
        raise InvalidContent(f"{name}: holds a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidContent(f"{name}: holds half of a surrogate pair, which is not text") from error
    return value


def _check_integer(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise InvalidContent(f"{name} {brief_repr(value)}: a whole number from 0 is needed")
    return value


def _check_number(name: str, value: Any) -> float:
    if not is_finite_number(value):
        raise InvalidContent(f"{name} {brief_repr(value)}: a finite number is needed")
    return float(value)


def _check_time(name: str, value: Any) -> str:
    """Return a time in the form of the log; "" means none."""
    if not check_text(name, value):
        return ""
    try:
        return format_utc(parse_time(value))
    except (ValueError, OverflowError) as error:
        raise InvalidContent(f"{name} {brief_repr(value)} is no ISO 8601 date or time (2024-05-01)") from error


def _check_metadata(name: str, value: Any) -> dict[str, Any]:
    """Return a private copy in JSON types, so that memory and disk hold the same."""
    if type(value) is dict and not value:
        return {}
    is_plain = type(value) is dict and set(map(type, value)) == {str}
    if not is_plain and not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        raise InvalidContent(f"{name}: a mapping with text keys is needed")
    kinds = set(map(type, value.values()))
    if kinds <= _SCALARS and (int not in kinds or all(map(_is_json_scalar, value.values()))):
        return dict(value)
    try:
        stored = json.loads(json.dumps(dict(value), allow_nan=False))
        if _is_deeper(stored, MAX_DEPTH):
            raise InvalidContent(f"{name}: nested deeper than {MAX_DEPTH} levels: keep it as text")
        return stored
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidContent(f"{name} cannot be written as JSON: {error}") from error


def _is_deeper(value: Any, depth: int) -> bool:
    """Return True if mappings and lists are nested deeper than `depth` levels."""
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_is_deeper(item, depth - 1) for item in items)


_SCALARS = {str, int, bool, type(None)}  # types whose values JSON returns unchanged, but for huge integers


def _is_json_scalar(value: Any) -> bool:
    """Return True if JSON surely returns the value unchanged."""
    value_type = type(value)
    return value_type is str or value_type is bool or value is None or (value_type is int and -(2**63) <= value < 2**63)


_CHECKS: dict[Kind, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("text", "date"), check_text),  # older logs hold any text as a timestamp
    "time": _check_time,
    "number": _check_number,
    "whole": _check_integer,
    "json": _check_metadata,
}
FIELD_CHECKS = {field.name: _CHECKS[field.kind] for field in FIELDS} | {"reason": check_text}
"""Check of each optional field, in the order of `Operation`."""


_OVERRIDES = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROL = {
    code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0), *_OVERRIDES) if chr(code) not in "\n\t"
}


def visible(text: str) -> str:
    r"""Return `text` with control characters and changes of direction as JSON's escapes (`\u001b`).

    A memory holds what strangers wrote: an escape sequence in it could rewrite what the terminal shows.
    """
    return text.translate(_CONTROL)
