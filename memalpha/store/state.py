"""The memory as an immutable value: `MemoryState`, and the rules of every operation.

`plan` holds all rules, over a `MemoryState` or the `EntryTable` of a database, so the two cannot differ. An entry keeps
its id for life and has versions. Each version has the log positions between which it was current: `valid_from`
inclusive, `valid_to` exclusive.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from immutables import Map

from memalpha.arguments import brief_repr
from memalpha.errors import DuplicateContent, InvalidContent, StoreError, UnknownEntry
from memalpha.store.fields import (
    FIELD_CHECKS,
    FIELDS,
    NAMES,
    TIMES,
    check_text,
    clean_content,
    clean_core_text,
    entry_values,
    field_values,
    is_id,
    make_entry,
    make_ids,
    make_operation,
    new_defaults,
)
from memalpha.store.schema import MemorySchema
from memalpha.types import MemoryEntry, Operation

if TYPE_CHECKING:
    from memalpha.store.backends.namespace import EntryTable

_CHECKED_FIELDS = attrgetter(*FIELD_CHECKS)
_KEPT = [number for number, field in enumerate(FIELDS) if field.keeps]
_BLANK = [NAMES.index(name) for name in TIMES]
_PLAIN_FIELDS = attrgetter("id", "category", "content", *(f.name for f in FIELDS if f.keeps and f.kind != "json"))
NOT_UNDOABLE = frozenset({"expired", "erased", "quarantined", "reviewed"})
"""Kinds of operations that an undo skips: time, erasure and reviews."""


@dataclass(frozen=True, slots=True)
class Change:
    """Effect of one operation: the completed operation, the version it ended and the version it made."""

    operation: Operation
    ended: MemoryEntry | None = None
    entry: MemoryEntry | None = None

    @property
    def made(self) -> MemoryEntry:
        """Version that an insert or an update made."""
        assert self.entry is not None
        return self.entry


def plan(view: MemoryState | EntryTable, operation: Operation, position: int) -> Change:
    """Return the change that `operation` makes to the memory behind `view`. Nothing is modified.

    The returned operation is complete (id, category, stripped content, defaults). Planning it again gives the same
    change.

    Args:
        view: Memory to read.
        operation: Operation as requested.
        position: Log position that the operation will have.

    Raises:
        UnknownEntry: An update or delete names no live entry.
        UnknownCategory: The schema has no such category.
        InvalidContent: A field cannot be stored.
        DuplicateContent: An insert without an id states what a live entry states, or an update changes no more than
            the origin. With `view.unique_contents`: a live entry of the category has the content.
        StoreError: The kind is unknown, or the id is in use.
    """
    kind = operation.kind
    if kind == "erased":
        return Change(Operation("erased", id=operation.id))
    if kind in ("quarantined", "reviewed"):
        id = operation.id or f"{kind}#{position}"
        texts = operation.category, operation.content
        return Change(
            _complete_operation(operation, id, *(None if text is None else check_text(kind, text) for text in texts))
        )
    if kind == "core_update":
        content = clean_core_text(view.schema, operation.content)
        return Change(_complete_operation(operation, None, None, content))
    if kind == "insert":
        category = view.schema.check_category(operation.category)
        content = clean_content(operation.content)
        ended_before = _entry_to_revive(view, operation.id, category)
        id = operation.id
        if id is None:
            (id,) = make_ids([content], position - 1, view.used_ids, has_erasure=view.has_erasure())
        completed = _complete_operation(operation, id, category, content, **new_defaults())
        if operation.id is None or view.unique_contents:
            refuse_duplicate(view.find_same(completed))
        return Change(completed, None, _make_version(completed, ended_before, position))
    if kind not in ("update", "delete", "expired"):
        raise StoreError(f"no operation {brief_repr(kind)}: use insert, update, delete or core_update")
    current = view.latest_version(operation.id) if isinstance(operation.id, str) else None
    if current is None or current.valid_to is not None:
        raise UnknownEntry(f"no live entry has the id {brief_repr(operation.id)}")
    # `replace` takes twice the time.
    ended = make_entry(*entry_values(current), current.version, current.valid_from, position)
    if kind != "update":
        return Change(_complete_operation(operation, operation.id, current.category, None), ended)
    content = clean_content(operation.content)
    completed = _complete_operation(operation, operation.id, current.category, content)
    if view.unique_contents and content != current.content:
        refuse_duplicate(view.find_same(completed))
    entry = _make_version(completed, current, position)
    if is_same_fact(entry, current):
        refuse_duplicate(current)
    return Change(completed, ended, entry)


def inverse(change: Change, core_before: str) -> Operation:
    """Return the operation that reverts `change`.

    A deleted entry returns under its id and keeps its rank in listings.
    """
    operation, ended = change.operation, change.ended
    if operation.kind == "core_update":
        return Operation("core_update", content=core_before)
    if ended is None:
        return Operation("delete", id=operation.id)
    return as_operation("insert" if operation.kind == "delete" else "update", ended)


def as_operation(kind: Any, entry: MemoryEntry) -> Operation:
    """Return an insert or update that gives an entry exactly the fields of the version `entry`."""
    fields = dict(zip(NAMES, field_values(entry), strict=True))
    if kind == "update":
        fields |= {name: "" for name in TIMES if fields[name] is None}
    return Operation(kind, entry.id, entry.category, entry.content, **fields)


@dataclass(frozen=True, slots=True, eq=False)
class MemoryState:
    """Immutable memory.

    `apply` returns the next state and shares structure, so a state is its own snapshot.

    Two states are equal if they have the same core text and the same live entries (id, category, content, timestamp,
    importance, metadata, expires), however they came about.
    """

    schema: MemorySchema
    core: str = ""
    position: int = 0
    _live: Map[str, MemoryEntry] = field(default_factory=Map)
    _ended: Map[str, MemoryEntry] = field(default_factory=Map)
    _created: Map[str, int] = field(default_factory=Map)
    _contents: Map[tuple[str, str], tuple[str, ...]] = field(default_factory=Map)
    _has_erasure: bool = False
    unique_contents: bool = False

    @classmethod
    def empty(cls, schema: MemorySchema, *, unique_contents: bool = False) -> MemoryState:
        """Return an empty memory; with `unique_contents`, a category holds a content once: the rule of training."""
        return cls(schema, unique_contents=unique_contents)

    @classmethod
    def replay(cls, schema: MemorySchema, operations: Iterable[Operation]) -> MemoryState:
        """Return the state after all operations of a log, in order."""
        state = cls(schema)
        for operation in operations:
            state = state.apply(operation)
        return state

    @classmethod
    def from_entries(
        cls,
        schema: MemorySchema,
        core: str,
        position: int,
        entries: Iterable[tuple[MemoryEntry, int]],
        *,
        has_erasure: bool = False,
    ) -> MemoryState:
        """Build a state from stored versions.

        Args:
            schema: Schema of the memory.
            core: Core memory text.
            position: Log position of the state.
            entries: Newest version of every entry ever made, each with the position that created its id.
            has_erasure: Operations of the log were erased.
        """
        versions = list(entries)
        live = [entry for entry, _ in versions if entry.valid_to is None]
        contents: dict[tuple[str, str], tuple[str, ...]] = {}
        for entry in live:
            contents[entry.category, entry.content] = *contents.get((entry.category, entry.content), ()), entry.id
        return cls(
            schema,
            core,
            position,
            Map({entry.id: entry for entry in live}),
            Map({entry.id: entry for entry, _ in versions if entry.valid_to is not None}),
            Map({entry.id: created for entry, created in versions}),
            Map(contents),
            has_erasure,
        )

    @property
    def entries(self) -> Mapping[str, MemoryEntry]:
        """Live entries by id, unordered (`list` orders them)."""
        return self._live

    def list(self, category: str | None = None) -> list[MemoryEntry]:
        """Return the live entries, oldest id first.

        An update or an undone delete keeps an entry's rank.
        """
        if category is not None:
            self.schema.check_category(category)
        created = self._created
        live = (entry for entry in self._live.values() if category is None or entry.category == category)
        return sorted(live, key=lambda entry: created[entry.id])

    def get(self, id: str) -> MemoryEntry:
        """Return a live entry. Raises `UnknownEntry`."""
        entry = self._live.get(id) if isinstance(id, str) else None
        if entry is None:
            raise UnknownEntry(f"no live entry has the id {brief_repr(id)}")
        return entry

    def creation_position(self, id: str) -> int:
        """Return the position that created an id."""
        return self._created[id]

    def find(self, category: str, content: str) -> MemoryEntry | None:
        """Return the oldest live entry of the category with exactly this content, or None.

        Outer whitespace is ignored.
        """
        return next(self._holders(category, content.strip()), None)

    def find_same(self, fact: Operation) -> MemoryEntry | None:
        """Return the oldest live entry that states what an insert states, or None."""
        assert fact.category is not None and fact.content is not None
        holders = self._holders(fact.category, fact.content)
        if self.unique_contents:
            return next(holders, None)
        identity = fact_identity(self.schema, fact)
        return next((entry for entry in holders if fact_identity(self.schema, entry) == identity), None)

    def _holders(self, category: str, content: str) -> Iterator[MemoryEntry]:
        """Iterate over the live entries of a category with a content, oldest id first."""
        ids = self._contents.get((category, content), ())
        return (self._live[id] for id in sorted(ids, key=self._created.__getitem__))

    def latest_version(self, id: str) -> MemoryEntry | None:
        """Return the newest version of an entry, live or ended; None for an unused id."""
        return self._live.get(id) or self._ended.get(id)

    def used_ids(self, ids: Sequence[str]) -> Collection[str]:
        """Return those of the ids that an entry ever had."""
        return [id for id in ids if id in self._created]

    def has_erasure(self) -> bool:
        """Return True if operations of the log were erased."""
        return self._has_erasure

    def apply(self, operation: Operation) -> MemoryState:
        """Return the state after the operation. Raises `StoreError` (see `plan`) if the rules refuse it."""
        return self.advance(plan(self, operation, self.position + 1))

    def advance(self, change: Change) -> MemoryState:
        """Return the state after a change that was planned on this state."""
        live, ended, created, contents = self._live, self._ended, self._created, self._contents
        core, position = self.core, self.position + 1
        if change.operation.kind == "core_update":
            core = change.operation.content or ""
        if change.ended is not None:
            ended_entry = change.ended
            key = ended_entry.category, ended_entry.content
            ids = tuple(id for id in contents[key] if id != ended_entry.id)
            contents = contents.set(key, ids) if ids else contents.delete(key)
            if change.entry is None:
                live, ended = live.delete(ended_entry.id), ended.set(ended_entry.id, ended_entry)
        if change.entry is not None:
            new_entry = change.entry
            key = new_entry.category, new_entry.content
            live = live.set(new_entry.id, new_entry)
            contents = contents.set(key, (*contents.get(key, ()), new_entry.id))
            if new_entry.id not in created:
                created = created.set(new_entry.id, position)
            elif new_entry.id in ended:
                ended = ended.delete(new_entry.id)
        has_erasure = self._has_erasure or change.operation.kind == "erased"
        return MemoryState(
            self.schema, core, position, live, ended, created, contents, has_erasure, self.unique_contents
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MemoryState):
            return NotImplemented
        if self.core != other.core or len(self._live) != len(other._live):
            return False
        other_live = other._live
        return all(id in other_live and is_same_fact(entry, other_live[id]) for id, entry in self._live.items())

    def __hash__(self) -> int:
        return hash((self.core, frozenset(self._contents)))

    def __repr__(self) -> str:
        return f"MemoryState(schema={self.schema.name!r}, position={self.position}, entries={len(self._live)})"


def is_same_fact(left: MemoryEntry, right: MemoryEntry) -> bool:
    """Return True if two versions are equal in all but origin, version number and validity."""
    return _PLAIN_FIELDS(left) == _PLAIN_FIELDS(right) and canonical_json(left.metadata) == canonical_json(
        right.metadata
    )


def fact_identity(schema: MemorySchema, fact: Operation | MemoryEntry) -> tuple[Any, ...]:
    """Return what two facts must have in common to be one: whatever a filter could tell them apart by.

    Category, content, metadata (`canonical_json`) and expiry. Of an event or a raw span, timestamp, source, chunk and
    turn, too; "" and -1 stand for none. A lasting fact that is told again, later or elsewhere, stays one.
    """
    identity = fact.category, fact.content, canonical_json(fact.metadata or {}), fact.expires or "", fact.turn or ""
    if not fact.turn and fact.category not in schema.events:
        return identity
    return *identity, fact.timestamp or "", fact.source or "", -1 if fact.chunk is None else fact.chunk


def canonical_json(metadata: Mapping[str, Any]) -> str:
    """Return metadata as JSON that does not depend on the order of keys."""
    return json.dumps(metadata, sort_keys=True) if metadata else "{}"


def _entry_to_revive(view: MemoryState | EntryTable, id: str | None, category: str) -> MemoryEntry | None:
    """Return the ended entry that an insert with an explicit id revives, or None."""
    if id is None:
        return None
    check_text("id", id)
    if not is_id(id):
        raise InvalidContent(f"id {brief_repr(id)}: 1 to 128 characters without whitespace are needed")
    latest = view.latest_version(id)
    if latest is not None and latest.valid_to is None:
        raise StoreError(f"the id {id!r} is in use: update its entry, or import into another namespace")
    if latest is not None and latest.category != category:
        raise StoreError(f"the id {id!r} belongs to an entry of category {latest.category!r}, not {category!r}")
    return latest


def _make_version(operation: Operation, previous: MemoryEntry | None, position: int) -> MemoryEntry:
    """Return the version that a completed insert or update makes; fields left out come from `previous`."""
    assert operation.id and operation.category and operation.content
    values = list(field_values(operation))
    if operation.kind == "update" and previous is not None:
        before = field_values(previous)
        for number in _KEPT:
            values[number] = before[number] if values[number] is None else values[number]
    for number in _BLANK:
        values[number] = values[number] or None
    version = previous.version + 1 if previous else 1
    return make_entry(operation.id, operation.category, operation.content, *values, version, position)


def _complete_operation(
    operation: Operation, id: str | None, category: str | None, content: str | None, **defaults: Any
) -> Operation:
    """Return `operation` with these fields set and all others checked, or defaulted where missing."""
    fields = [
        defaults.get(name) if value is None else check(name, value)
        for (name, check), value in zip(FIELD_CHECKS.items(), _CHECKED_FIELDS(operation), strict=True)
    ]
    return make_operation(operation.kind, id, category, content, *fields)


def refuse_duplicate(existing: MemoryEntry | None) -> None:
    """Raise `DuplicateContent` if a live entry states the same."""
    if existing is not None:
        raise duplicate_error(existing)


def duplicate_error(existing: MemoryEntry) -> DuplicateContent:
    """Return the error of an operation that states what a live entry states."""
    message = f"entry {existing.id!r} of {existing.category!r} already holds exactly this content"
    return DuplicateContent(message, existing.id)
