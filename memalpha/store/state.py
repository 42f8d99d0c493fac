"""The memory as a value: entries, operations and the pure `MemoryState.apply(operation)`.

`plan` holds every rule of what an operation may do and does, over any `StateView`; the in-memory state and the SQLite
store both ask it, so they cannot differ. Entries keep their id for life and have versions, each with the log positions
between which it was current (`valid_from` inclusive, `valid_to` exclusive).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from immutables import Map

from memalpha.errors import DuplicateContent, InvalidContent, StoreError, UnknownEntry
from memalpha.store.schema import MemorySchema
from memalpha.store.validation import FIELD_CHECKS, check_text, clean_content, clean_core_text, is_id
from memalpha.types import MemoryEntry, Operation

# 32 characters, five bits each; l, 1, o and 0 are left out because they are mistaken for one another.
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_WORD = re.compile(r"\w+")
_TWO_WORDS = re.compile(r"\W*(\w+)(?:\W+(\w+))?")


class StateView(Protocol):
    """What `plan` needs to see of a memory."""

    @property
    def schema(self) -> MemorySchema: ...

    def last(self, id: str) -> MemoryEntry | None:
        """The newest version of an entry, live (`valid_to` None) or ended; None if the id was never used."""
        ...

    def is_used(self, id: str) -> bool:
        """Whether there ever was an entry with this id."""
        ...

    def find(self, category: str, content: str) -> MemoryEntry | None:
        """The live entry of the category with exactly this content."""
        ...


@dataclass(frozen=True, slots=True)
class Change:
    """What one operation does: the complete operation, the version it ended and the version it made."""

    operation: Operation
    ended: MemoryEntry | None = None
    entry: MemoryEntry | None = None


def make_id(content: str, position: int, taken: Callable[[str], bool]) -> str:
    """A readable id that was never used: `city: Oslo` gives `city#e`.

    Topic (the words before the first colon if they are at most 4, else the first 2 words; 24 characters at most), "#",
    and a suffix from a stable hash of (content, position), one character long unless that is `taken`.
    """
    text = content.lower()
    head, colon, _ = text.partition(":")
    words = _WORD.findall(head) if colon else []
    if not 1 <= len(words) <= 4:
        found = _TWO_WORDS.match(text)
        words = [word for word in found.groups() if word] if found else []
    topic = "-".join(words)[:24].strip("-") or "m"
    digest = hashlib.blake2b(f"{position}\0{content}".encode()).digest()
    id = topic + "#"
    for byte in digest:
        id += _ALPHABET[byte & 31]
        if not taken(id):
            return id
    raise StoreError(f"no free id for {content!r} at position {position}")


def plan(view: StateView, operation: Operation, position: int) -> Change:
    """What `operation` does, as the log's row `position`, to the memory seen through `view`; nothing is changed.

    The returned operation is complete (id, category, stripped content, defaults), and planning it again gives the same
    change. Raises `UnknownEntry`, `UnknownCategory`, `InvalidContent`, `DuplicateContent` or `StoreError`.
    """
    kind = operation.kind
    if kind == "erased":
        return Change(Operation("erased", id=operation.id))
    if kind == "core_update":
        content = clean_core_text(view.schema, operation.content)
        return Change(_complete(operation, None, None, content))
    if kind == "insert":
        category = view.schema.check_category(operation.category)
        content = clean_content(operation.content)
        earlier = _earlier(view, operation.id, category)
        _refuse_duplicate(view, category, content)
        id = operation.id or make_id(content, position - 1, view.is_used)
        done = _complete(operation, id, category, content, importance=1.0, metadata={})
        return Change(done, None, _version(done, earlier, position))
    if kind not in ("update", "delete", "expired"):
        raise StoreError(f"no operation {kind!r}: use insert, update, delete or core_update")
    current = view.last(operation.id) if isinstance(operation.id, str) else None
    if current is None or current.valid_to is not None:
        raise UnknownEntry(f"no live entry has the id {operation.id!r}")
    ended = _ended(current, position)
    if kind != "update":
        return Change(_complete(operation, operation.id, current.category, None), ended)
    content = clean_content(operation.content)
    if content != current.content:
        _refuse_duplicate(view, current.category, content)
    done = _complete(operation, operation.id, current.category, content)
    entry = _version(done, current, position)
    if same_fact(entry, current):
        raise duplicate_of(current)
    return Change(done, ended, entry)


def inverse(change: Change, core_before: str) -> Operation:
    """The operation that takes `change` back. A deleted entry comes back under its id, in its old place."""
    done, ended = change.operation, change.ended
    if done.kind == "core_update":
        return Operation("core_update", content=core_before)
    if ended is None:
        return Operation("delete", id=done.id)
    return as_operation("insert" if done.kind == "delete" else "update", ended)


def as_operation(kind: Any, entry: MemoryEntry) -> Operation:
    """An insert or update that gives an entry exactly the fields of the version `entry`."""
    return Operation(
        kind,
        id=entry.id,
        category=entry.category,
        content=entry.content,
        timestamp="" if kind == "update" and entry.timestamp is None else entry.timestamp,
        importance=entry.importance,
        metadata=entry.metadata,
        source=entry.source,
        chunk=entry.chunk,
        turn=entry.turn,
        expires="" if kind == "update" and entry.expires is None else entry.expires,
    )


@dataclass(frozen=True, slots=True, eq=False)
class MemoryState:
    """An immutable memory. `apply` gives the next one and shares its structure, so a snapshot is the value itself.

    Equal: same core text and the same live entries (id, category, content, timestamp, importance, metadata, expires),
    however they came about.
    """

    schema: MemorySchema
    core: str = ""
    position: int = 0
    _live: Map[str, MemoryEntry] = field(default_factory=Map)
    _ended: Map[str, MemoryEntry] = field(default_factory=Map)
    _created: Map[str, int] = field(default_factory=Map)
    _contents: Map[tuple[str, str], str] = field(default_factory=Map)

    @classmethod
    def empty(cls, schema: MemorySchema) -> MemoryState:
        """A memory that holds nothing."""
        return cls(schema)

    @classmethod
    def replay(cls, schema: MemorySchema, operations: Iterable[Operation]) -> MemoryState:
        """The state after all operations of a log, in order."""
        state = cls(schema)
        for operation in operations:
            state = state.apply(operation)
        return state

    @classmethod
    def of(
        cls, schema: MemorySchema, core: str, position: int, entries: Iterable[tuple[MemoryEntry, int]]
    ) -> MemoryState:
        """A state from the newest version of every entry ever made, each with the position that created its id."""
        newest = list(entries)
        live = [entry for entry, _ in newest if entry.valid_to is None]
        return cls(
            schema,
            core,
            position,
            Map({entry.id: entry for entry in live}),
            Map({entry.id: entry for entry, _ in newest if entry.valid_to is not None}),
            Map({entry.id: created for entry, created in newest}),
            Map({(entry.category, entry.content): entry.id for entry in live}),
        )

    @property
    def entries(self) -> Mapping[str, MemoryEntry]:
        """The live entries by id, in no order (`list` has one)."""
        return self._live

    def list(self, category: str | None = None) -> list[MemoryEntry]:
        """The live entries, oldest id first (an update or an undone delete keeps an entry's place)."""
        if category is not None:
            self.schema.check_category(category)
        created = self._created
        live = (entry for entry in self._live.values() if category is None or entry.category == category)
        return sorted(live, key=lambda entry: created[entry.id])

    def get(self, id: str) -> MemoryEntry:
        """A live entry; raises `UnknownEntry`."""
        entry = self._live.get(id)
        if entry is None:
            raise UnknownEntry(f"no live entry has the id {id!r}")
        return entry

    def created(self, id: str) -> int:
        """The position that made an id."""
        return self._created[id]

    def find(self, category: str, content: str) -> MemoryEntry | None:
        """The live entry of the category with exactly this content (outer whitespace aside), or None."""
        id = self._contents.get((category, content.strip()))
        return None if id is None else self._live[id]

    def last(self, id: str) -> MemoryEntry | None:
        """The newest version of an entry, live or ended; None if the id was never used."""
        return self._live.get(id) or self._ended.get(id)

    def is_used(self, id: str) -> bool:
        """Whether there ever was an entry with this id."""
        return id in self._created

    def apply(self, operation: Operation) -> MemoryState:
        """The state after the operation; raises `StoreError` (see `plan`) if the rules refuse it."""
        return self.advance(plan(self, operation, self.position + 1))

    def advance(self, change: Change) -> MemoryState:
        """The state after a change that was planned on this very state."""
        live, ended, created, contents = self._live, self._ended, self._created, self._contents
        core, position = self.core, self.position + 1
        if change.operation.kind == "core_update":
            core = change.operation.content or ""
        if change.ended is not None:
            old = change.ended
            contents = contents.delete((old.category, old.content))
            if change.entry is None:
                live, ended = live.delete(old.id), ended.set(old.id, old)
        if change.entry is not None:
            new = change.entry
            live, contents = live.set(new.id, new), contents.set((new.category, new.content), new.id)
            if new.id not in created:
                created = created.set(new.id, position)
            elif new.id in ended:
                ended = ended.delete(new.id)
        return MemoryState(self.schema, core, position, live, ended, created, contents)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MemoryState):
            return NotImplemented
        if self.core != other.core or len(self._live) != len(other._live):
            return False
        theirs = other._live
        return all(id in theirs and same_fact(entry, theirs[id]) for id, entry in self._live.items())

    def __hash__(self) -> int:
        return hash((self.core, frozenset(self._contents)))

    def __repr__(self) -> str:
        return f"MemoryState(schema={self.schema.name!r}, position={self.position}, entries={len(self._live)})"


def same_fact(one: MemoryEntry, two: MemoryEntry) -> bool:
    """Whether two versions state the same: all fields but origin, version number and validity."""
    return (one.id, one.category, one.content, one.timestamp, one.importance, one.expires) == (
        two.id,
        two.category,
        two.content,
        two.timestamp,
        two.importance,
        two.expires,
    ) and one.metadata == two.metadata


def _earlier(view: StateView, id: str | None, category: str) -> MemoryEntry | None:
    """The ended entry that an insert with an explicit id brings back, if there is one."""
    if id is None:
        return None
    check_text("id", id)
    if not is_id(id):
        raise InvalidContent(f"id {id!r}: 1 to 128 characters without whitespace are needed")
    earlier = view.last(id)
    if earlier is not None and earlier.valid_to is None:
        raise StoreError(f"the id {id!r} is in use")
    if earlier is not None and earlier.category != category:
        raise StoreError(f"the id {id!r} belongs to an entry of category {earlier.category!r}, not {category!r}")
    return earlier


def _version(done: Operation, before: MemoryEntry | None, position: int) -> MemoryEntry:
    """The version that a complete insert or update makes; what an update leaves out is kept from `before`."""
    assert done.id and done.category and done.content
    timestamp, importance, metadata, expires = done.timestamp, done.importance, done.metadata, done.expires
    if done.kind == "update" and before is not None:
        timestamp = before.timestamp if timestamp is None else timestamp
        importance = before.importance if importance is None else importance
        metadata = before.metadata if metadata is None else metadata
        expires = before.expires if expires is None else expires
    assert importance is not None and metadata is not None
    return MemoryEntry(
        id=done.id,
        category=done.category,
        content=done.content,
        timestamp=timestamp or None,
        importance=importance,
        metadata=metadata,
        source=done.source,
        chunk=done.chunk,
        turn=done.turn,
        expires=expires or None,
        version=before.version + 1 if before else 1,
        valid_from=position,
    )


def _ended(entry: MemoryEntry, position: int) -> MemoryEntry:
    """A version as it is after the operation that ended it. (`replace` takes twice the time.)"""
    return MemoryEntry(
        entry.id,
        entry.category,
        entry.content,
        entry.timestamp,
        entry.importance,
        entry.metadata,
        entry.source,
        entry.chunk,
        entry.turn,
        entry.expires,
        entry.version,
        entry.valid_from,
        position,
    )


def _complete(
    operation: Operation, id: str | None, category: str | None, content: str | None, **defaults: Any
) -> Operation:
    """`operation` with these fields set and every other one validate_fields, or its default where it is not given."""
    rest = [
        defaults.get(name) if (value := getattr(operation, name)) is None else check(name, value)
        for name, check in FIELD_CHECKS.items()
    ]
    return Operation(operation.kind, id, category, content, *rest)


def _refuse_duplicate(view: StateView, category: str, content: str) -> None:
    known = view.find(category, content)
    if known is not None:
        raise duplicate_of(known)


def duplicate_of(known: MemoryEntry) -> DuplicateContent:
    """The refusal of a content that the live entry `known` holds."""
    message = f"entry {known.id!r} of {known.category!r} already holds exactly this content"
    return DuplicateContent(message, known.id)
