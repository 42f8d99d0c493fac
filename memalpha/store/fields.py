"""The fields of an entry, in one table; their checks; their form in database rows.

From the table come the columns and triggers of both databases, the codec of rows, the checks of a write, the lines of
JSONL and Markdown, filters, and the bodies of the server's requests. `types.MemoryEntry` and `types.Operation` have the
same fields in the same order. docs/extend/field.md adds one. Errors name the field.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeVar, cast

from memalpha.arguments import brief_repr, check_flag, check_items, is_finite_number, locate_json_fault
from memalpha.errors import DamagedStore, InvalidContent, StoreError
from memalpha.store.schema import MemorySchema, count_core_tokens
from memalpha.types import MemoryEntry, Operation, is_iso_time, parse_iso_time

T = TypeVar("T")
Kind = Literal["text", "date", "time", "number", "whole", "json"]
"""What a field holds: a text, an ISO date or time as it was given, an ISO time in UTC with microseconds, a finite
number, a whole number from 0, a mapping of JSON values."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field beside id, category and content.

    Attributes:
        name: Name everywhere.
        kind: What it holds.
        default: Value of an insert that leaves it out.
        keeps: An update that leaves it out keeps the entry's; else it is that of the update.
        is_argument: Callers of `insert` and `update` give it; else it says who writes (`MemoryStore.writing_as`).
        is_filtered: Filters read it by its bare name.
        in_request: Bodies of the server's inserts and updates have it.
    """

    name: str
    kind: Kind = "text"
    default: Any = None
    keeps: bool = False
    is_argument: bool = True
    is_filtered: bool = True
    in_request: bool = False


FIELDS = (
    Field("timestamp", "date", keeps=True, in_request=True),
    Field("importance", "number", default=1.0, keeps=True, in_request=True),
    Field("metadata", "json", default={}, keeps=True, is_filtered=False, in_request=True),
    Field("source"),
    Field("chunk", "whole"),
    Field("turn"),
    Field("expires", "time", keeps=True, in_request=True),
    Field("speaker", is_argument=False, is_filtered=False),
    Field("key", is_argument=False, is_filtered=False),
)
"""In the order of `MemoryEntry` and `Operation`; a new one comes last."""
INDEXES = """\
CREATE INDEX core_updates ON operations (ns, seq) WHERE kind = 'core_update';
CREATE INDEX erasures ON operations (ns, seq) WHERE kind = 'erased';
CREATE INDEX quarantine ON operations (ns, seq) WHERE kind IN ('quarantined', 'reviewed');
CREATE UNIQUE INDEX live_order ON versions (ns, created) WHERE valid_to IS NULL;
CREATE INDEX live_content ON versions (ns, digest) WHERE valid_to IS NULL;
CREATE INDEX expiring ON versions (ns, expires) WHERE valid_to IS NULL AND expires IS NOT NULL;"""
"""Indexes of both databases. They find what expired, was erased or awaits a review without reading log or versions."""
FORMAT = 1
"""Format of files and PostgreSQL schemas; a new column is a new one."""

NAMES = tuple(field.name for field in FIELDS)
ARGUMENTS = tuple(field.name for field in FIELDS if field.is_argument)
TIMES = tuple(field.name for field in FIELDS if field.kind in ("date", "time"))
"""Fields in which "" stands for no value: an update would keep one that is left out."""
NUMBERS = frozenset(field.name for field in FIELDS if field.kind in ("number", "whole"))
FILTERED = frozenset({"id", "category", "content"} | {field.name for field in FIELDS if field.is_filtered})

ENTRY_NAMES = ("id", "category", "content", *NAMES)
"""Names of the columns that a version and its operation share."""
OPERATION_NAMES = (*ENTRY_NAMES, "reason")
METADATA = ENTRY_NAMES.index("metadata")

entry_values: Callable[[Any], tuple[Any, ...]] = attrgetter(*ENTRY_NAMES)
"""Return the values of `ENTRY_NAMES` of an entry or an operation."""
field_values: Callable[[Any], tuple[Any, ...]] = attrgetter(*NAMES)
"""Return the values of `FIELDS` of an entry or an operation."""


def fast_maker(record: type[T]) -> Callable[..., T]:
    """Return a function that makes an instance of positional values, in a third of the constructor's time.

    The constructor of `dataclass` sets each frozen field by a call. This fills an instance of a class with the same
    slots that is not frozen, and changes its class.
    """
    specification = [
        (spec.name, spec.type, dataclasses.field(default=spec.default, default_factory=spec.default_factory))
        for spec in dataclasses.fields(cast("Any", record))
    ]
    draft: Any = dataclasses.make_dataclass(record.__name__, specification, slots=True)

    def make(*values: Any) -> T:
        instance = draft(*values)
        instance.__class__ = record
        return instance

    return make


make_entry = fast_maker(MemoryEntry)
"""Make an entry of the values of `ENTRY_NAMES`, then version, valid_from and valid_to."""
make_operation = fast_maker(Operation)
"""Make an operation of its kind, then the values of `OPERATION_NAMES`."""

_PYTHON_TYPES: dict[Kind, tuple[type, ...]] = {"number": (float, int), "whole": (int,)}


def stored_types(field: Field, *, in_log: bool) -> tuple[type, ...]:
    """Return the types of a field's stored values: in the log, or in a version, where defaults stand."""
    is_set = field.default is not None and not in_log
    return (*_PYTHON_TYPES.get(field.kind, (str,)), *(() if is_set else (type(None),)))


def columns(types: dict[str, str], *, in_log: bool, names: tuple[str, ...] = NAMES) -> str:
    """Return the definitions of the columns of fields.

    Args:
        types: The database's type by kind; "text" is that of the kinds that are not named.
        in_log: True for the log, whose columns may be null.
        names: Fields to define.
    """
    definitions = []
    for field in FIELDS:
        if field.name in names:
            is_set = field.default is not None and not in_log
            definitions.append(f"{field.name} {types.get(field.kind, types['text'])}{' NOT NULL' * is_set}")
    return ", ".join(definitions)


def sql_default(field: Field) -> str:
    """Return the default of a field as an SQL constant."""
    return "NULL" if field.default is None else "'{}'" if field.kind == "json" else repr(field.default)


def new_defaults() -> dict[str, Any]:
    """Return the values of an insert's fields that have a default; mappings are new."""
    return {
        field.name: dict(field.default) if field.kind == "json" else field.default
        for field in FIELDS
        if field.default is not None
    }


def listed(record: str, names: tuple[str, ...] = NAMES) -> str:
    """Return columns of a record in SQL: `NEW.timestamp, NEW.importance, ...`."""
    return ", ".join(f"{record}.{name}" for name in names)


def parse_time(text: str) -> datetime:
    """Parse an ISO time; without an offset it is UTC."""
    time = parse_iso_time(text)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def time_order(timestamp: str | None) -> tuple[datetime, str]:
    """Return what timestamps are sorted by: their moments; none, and texts of other systems, come first."""
    text = timestamp or ""
    return parse_time(text) if is_iso_time(text) else datetime.min.replace(tzinfo=UTC), text


def format_utc(time: datetime) -> str:
    """Format a time as the log stores it: UTC with microseconds, so that text order is time order."""
    if time.tzinfo is not UTC:
        time = time.astimezone(UTC)
    return time.isoformat(timespec="microseconds")


MAX_CONTENT = 1_000_000  # bytes of a content in UTF-8, unless the store is opened with another limit
MAX_DEPTH = 50  # levels of metadata; filters allow as many
UPDATE_FIELDS = ("content", *ARGUMENTS, "merge_metadata")  # arguments of `Memory.update` beside the id
# 32 characters of five bits each; l, 1, o and 0 are left out because they are easily confused.
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_CHARACTERS = bytes(ord(_ALPHABET[byte & 31]) for byte in range(256))  # of a suffix, by byte of a hash
_WORD = re.compile(r"\w+")
_TWO_WORDS = re.compile(r"\W*(\w+)(?:\W+(\w+))?")
_ID = re.compile(r"[^\s\x00]{1,128}")
_MADE_ID = re.compile(rf".{{1,24}}#[{_ALPHABET}]+(\.[{_ALPHABET}]+)?")


def is_id(text: str) -> bool:
    """Return True if a text can be an entry's id: 1 to 128 characters without whitespace."""
    return _ID.fullmatch(text) is not None


def is_made_id(id: str) -> bool:
    """Return True for an id as the store makes it (`make_ids`), False for a caller's own key."""
    return _MADE_ID.fullmatch(id) is not None


def make_ids(
    contents: Sequence[str],
    position: int,
    used_ids: Callable[[Sequence[str]], Collection[str]],
    *,
    has_erasure: bool = False,
) -> list[str]:
    """Return a readable, unused id for each new content: `city: Oslo` gives `city#e`, after an erasure `city#c.e2`.

    The id is a topic, "#" and a suffix. The topic is the text before the first colon if that has at most 4 words, else
    the first 2 words; at most 24 characters. The suffix comes from a hash of (content, position); it has one character
    unless that id is used. A log with erasures no longer knows all of its ids. The suffix then begins with the position
    and a dot, so that no earlier id of the log can be equal.

    Args:
        contents: Contents of the new entries, which are inserted one after the other.
        position: Log position before the first insert.
        used_ids: Returns those of some ids that are not free; asked until no answer changes an id.
        has_erasure: Operations of the log were erased.

    Raises:
        StoreError: No free id was found.
    """
    candidates = []
    for number, content in enumerate(contents, position):
        suffix = hashlib.blake2b(f"{number}\0{content}".encode()).digest().translate(_CHARACTERS).decode()
        stem, shortest = id_topic(content) + "#", 1
        if has_erasure:
            code = _ALPHABET[number & 31]
            while number := number >> 5:
                code = _ALPHABET[number & 31] + code
            stem, shortest = f"{stem}{code}.", 2
        candidates.append((content, stem, suffix, shortest))
    free: set[str] = set()
    used: set[str] = set()
    while True:
        ids: dict[str, None] = {}
        for content, stem, suffix, shortest in candidates:
            for length in range(shortest, len(suffix) + 1):
                if (id := stem + suffix[:length]) not in used and id not in ids:
                    ids[id] = None
                    break
            else:
                raise StoreError(f"no free id for {content!r:.80} after position {position}")
        unknown = [id for id in ids if id not in free]
        newly_used = used_ids(unknown)
        if not newly_used:
            return list(ids)
        used.update(newly_used)
        free.update(unknown)  # an id of `newly_used`, too, which is skipped


def id_topic(content: str) -> str:
    """Return the part of an id before its "#" (`make_ids`)."""
    text = content.lower()
    subject, colon, _ = text.partition(":")
    words = _WORD.findall(subject) if colon else []
    if not 1 <= len(words) <= 4:
        match = _TWO_WORDS.match(text)
        words = [word for word in match.groups() if word] if match else []
    return "-".join(words)[:24].strip("-") or "m"


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


def complete_update(update: Operation, current: MemoryEntry, *, merge_metadata: bool) -> Operation:
    """Return an update with what depends on the entry's live version, as `Memory.update` explains.

    Args:
        update: Operation with the arguments of `Memory.update`; None keeps a field.
        current: Live version of the entry.
        merge_metadata: Set the keys of its metadata in the old one, and remove those that are None.

    Raises:
        InvalidContent: The content or the metadata cannot be stored.
    """
    content, timestamp = update.content, update.timestamp
    if timestamp is None and content is not None and current.content != clean_content(content):
        timestamp = ""
    content = current.content if content is None else content
    metadata = merge_into(current.metadata, update.metadata, merge_metadata)
    return replace(update, content=content, timestamp=timestamp, metadata=metadata)


def merge_into(current: Mapping[str, Any], metadata: Any, merge_metadata: Any) -> Any:
    """Return the metadata of a write with these arguments over `current` ones; None keeps them. Raises `StoreError`."""
    check_flag("merge_metadata", merge_metadata)
    if not merge_metadata or metadata is None:
        return metadata
    merged = {**current, **_check_metadata("metadata", metadata)}
    return {key: value for key, value in merged.items() if value is not None or key not in metadata}


def clean_core_text(schema: MemorySchema, value: object) -> str:
    """Return the core memory text without outer whitespace.

    Raises `InvalidContent` over the token limit, and `StoreError` if the schema has no core memory.
    """
    if not schema.core and value != "":  # "" is valid in any schema: `restore` may need it
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
    return {name: check(name, value) for name, check in FIELD_CHECKS.items() if (value := fields.get(name)) is not None}


def is_text(value: object) -> bool:
    """Return True for a text that can be encoded: no half of a surrogate pair."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def iso_hint(value: object) -> str:
    """Return what to do with a `date` or `datetime` where a text is needed; "" for other values."""
    return "; give its isoformat()" if isinstance(value, date) else ""


def check_text(name: str, value: object) -> str:
    """Return the text. Raises `InvalidContent` for another type, a NUL or half a surrogate pair."""
    if not isinstance(value, str):
        is_chat = name == "content" and isinstance(value, list | dict)
        hint = "; MemoryAgent(policy, store).read() takes chat messages" if is_chat else iso_hint(value)
        raise InvalidContent(f"{name}: text is needed, not {type(value).__name__}{hint}")
    if "\x00" in value:
        raise InvalidContent(f"{name}: holds a NUL character")
    if not is_text(value):
        raise InvalidContent(f"{name}: holds half of a surrogate pair, which is not text")
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
    # JSON returns these types unchanged, but for huge integers.
    if kinds <= _SCALARS and not any(type(item) is int and not -(2**63) <= item < 2**63 for item in value.values()):
        return dict(value)
    try:
        stored = json.loads(json.dumps(dict(value), allow_nan=False))
        if _is_deeper(stored, MAX_DEPTH):
            raise InvalidContent(f"{name}: nested deeper than {MAX_DEPTH} levels: keep it as text")
        _check_keys(name, value)
        return stored
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidContent(f"{locate_json_fault(name, value)} cannot be written as JSON: {error}") from error


def _check_keys(name: str, value: Any) -> None:
    """Raise `InvalidContent` for a nested key that is no text: JSON keeps one value of the keys 1 and "1"."""
    for key, item in value.items() if isinstance(value, Mapping) else ():
        if not isinstance(key, str):
            raise InvalidContent(f"{name}: the key {brief_repr(key)} is no text: write it as one")
        _check_keys(name, item)
    for item in value if isinstance(value, list | tuple) else ():
        _check_keys(name, item)


def _is_deeper(value: Any, depth: int) -> bool:
    """Return True if mappings and lists are nested deeper than `depth` levels."""
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_is_deeper(item, depth - 1) for item in items)


_SCALARS = {str, int, bool, type(None)}
_CHECKS: dict[Kind, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("text", "date"), check_text),  # older logs hold any text as a timestamp
    "time": _check_time,
    "number": _check_number,
    "whole": _check_integer,
    "json": _check_metadata,
}
FIELD_CHECKS = {field.name: _CHECKS[field.kind] for field in FIELDS} | {"reason": check_text}
"""Check of each optional field, in the order of `Operation`."""


Fact = Mapping[str, Any]
"""Arguments of `Memory.insert` by name."""
FACT_KEYS = ("category", "content", *ARGUMENTS)
_FACT_REQUIRED, _FACT_ALLOWED = {"category", "content"}, frozenset(FACT_KEYS)
_checked_fields = attrgetter(*FIELD_CHECKS)


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
    return CheckedFact(category, content, validate_fields(fact) if len(fact) > len(_FACT_REQUIRED) else {})


def validate_facts(facts: Iterable[Fact], schema: MemorySchema, max_content: int) -> list[CheckedFact]:
    """Return the facts as they are stored, their contents of `max_content` bytes at most.

    Raises `StoreError` naming the index of an invalid fact.
    """
    checked = []
    for index, fact in enumerate(check_items("facts", facts, of="mappings")):
        try:
            if not isinstance(fact, Mapping) or not _FACT_REQUIRED <= fact.keys() <= _FACT_ALLOWED:
                raise StoreError(f"a mapping with category, content and none but {', '.join(FACT_KEYS)} is needed")
            checked.append(check_fact(fact, schema, max_content))
        except StoreError as error:
            raise type(error)(f"fact {index}: {error}") from error
    return checked


@contextmanager
def prefix_errors(prefix: str) -> Iterator[None]:
    """Put a prefix, such as the index of an operation, before the message of a `StoreError`."""
    try:
        yield
    except StoreError as error:
        error.args = (f"{prefix}: {error}", *error.args[1:])
        raise


def as_fact(operation: Operation) -> Fact:
    """Return the fact that an insert without id and reason stores."""
    fields = zip(FIELD_CHECKS, _checked_fields(operation), strict=True)
    fact = {name: value for name, value in fields if value is not None}
    return {"category": operation.category, "content": operation.content, **fact}


_OVERRIDES = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROL = {
    code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0), *_OVERRIDES) if chr(code) not in "\n\t"
}


def visible(text: str) -> str:
    r"""Return `text` with control characters and changes of direction as JSON's escapes (`\u001b`).

    A memory holds what strangers wrote: an escape sequence in it could rewrite what the terminal shows.
    """
    return text.translate(_CONTROL)


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
_ENCODE = json.JSONEncoder(check_circular=False).encode  # `_check_metadata` returned no circle
_sound_types: set[tuple[type, ...]] = set()  # types of rows that were checked, so that a check is one look-up


def is_storable(value: object) -> bool:
    """Return True if a store can hold the value, so that a lookup of it can succeed."""
    if not isinstance(value, str):
        return isinstance(value, float | bytes) or (isinstance(value, int) and -(2**63) <= value < 2**63)
    return "\0" not in value and is_text(value)


def content_digest(content: str) -> bytes:
    """Return the key of a content: 16 bytes of BLAKE2b."""
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def check_stored(name: object, what: str, value: Any, kind: type[T]) -> T:
    """Return a stored value. Raises `DamagedStore` if it has another type than a store writes.

    Args:
        name: Id of the entry, or what else the row is of.
        what: What the value is, for the message.
        value: Value of a row.
        kind: Its type.
    """
    if type(value) is not kind:
        raise damaged_row(name, f"{what} is {type(value).__name__}")
    return value


def damaged_row(name: object, fault: str) -> DamagedStore:
    """Return the error of a row that no store writes."""
    advice = "run `memalpha doctor`, or go back to a copy"
    return DamagedStore(f"the stored row of {str(name)[:80]!r} is damaged: {fault}: {advice}")


def version_row(entry: MemoryEntry, created: int) -> tuple[Any, ...]:
    """Return the row of `versions` for an entry version; `created` is the position that made its id."""
    key = content_digest(entry.content)
    return (entry.version, entry.valid_from, entry.valid_to, created, key, *row_values(entry_values(entry)))


def row_values(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values of `ENTRY_NAMES` as those of the columns `ENTRY_COLUMNS`."""
    metadata = values[METADATA]
    encoded = _ENCODE(metadata) if metadata else None if metadata is None else "{}"
    return (*values[:METADATA], encoded, *values[METADATA + 1 :])


def decode_entry(row: tuple[Any, ...]) -> MemoryEntry:
    """Build an entry from a row with `ENTRY_COLUMNS`, version, valid_from and valid_to.

    Raises:
        DamagedStore: A column holds what no store writes; the message names the entry and the column.
    """
    _check_row(row, _VERSION_COLUMN_TYPES, 0)
    id, category, content = row[:3]
    if not (id and category and content):
        raise damaged_row(id, "its id, category or content is empty")
    return make_entry(*row[:METADATA], _decode_metadata(id, row[METADATA]), *row[METADATA + 1 :])


def _check_row(row: tuple[Any, ...], types: Mapping[str, tuple[type, ...]], start: int) -> None:
    """Raise `DamagedStore` for a value of a wrong type, or a number that is not finite.

    Args:
        row: Stored row.
        types: Types of its columns, by name.
        start: Index of the first column of its entry; 0 unless it is a row of the log.
    """
    name = row[0] if start == 0 else f"position {row[0]!r:.40} of the log"
    row_types = tuple(map(type, row))
    if row_types not in _sound_types:
        for (column, kinds), value in zip(types.items(), row, strict=True):
            if not isinstance(value, kinds):
                raise damaged_row(name, f"its {column} is {type(value).__name__}")
        _sound_types.add(row_types)
    for number in _NUMBERS:
        if not math.isfinite(row[start + number] or 0.0):
            raise damaged_row(name, f"its {ENTRY_NAMES[number]} is {row[start + number]}")


def decode_entries(rows: Sequence[tuple[Any, ...]]) -> list[MemoryEntry]:
    """Return `decode_entry` of many rows; checked by column, they take half the time."""
    if not rows:
        return []
    columns = list(zip(*rows, strict=True))
    kinds = zip(columns, _VERSION_COLUMN_KINDS, strict=True)
    is_sound = all(types.issuperset(map(type, column)) for column, types in kinds)
    is_finite = is_sound and all(math.isfinite(value) for number in _NUMBERS for value in filter(None, columns[number]))
    if not (is_finite and all(map(all, columns[:3]))):
        return list(map(decode_entry, rows))  # names the first that is damaged
    columns[METADATA] = tuple(map(_decode_metadata, columns[0], columns[METADATA]))
    return list(map(make_entry, *columns))


def operation_values(operation: Operation) -> tuple[Any, ...]:
    """Return the values of the columns `OPERATION_VALUES`."""
    return (*row_values(entry_values(operation)), operation.reason)


def decode_log_row(row: tuple[Any, ...]) -> tuple[int, str, int, Operation]:
    """Return position, time, effective position and operation of a log row.

    Args:
        row: Position, time, effective position, kind and the columns `OPERATION_VALUES`.

    Raises:
        DamagedStore: A column holds what no store writes; the message names the position and the column.
    """
    _check_row(row, _OPERATION_COLUMN_TYPES, _BEFORE)
    position, time, head, kind, *values = row
    if values[METADATA] is not None:
        values[METADATA] = _decode_metadata(values[0], values[METADATA])
    return position, time, head, make_operation(kind, *values)


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
        raise damaged_row(id, f"its metadata is no JSON ({error})") from error
    if not isinstance(metadata, dict):
        raise damaged_row(id, f"its metadata is no mapping but {type(metadata).__name__}")
    return metadata
