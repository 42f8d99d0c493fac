"""Moving along a namespace's log: undo, redo, restore, revert, and the difference between two positions.

Nothing is ever taken out of the log. Undo, redo and restore append operations. Each log row records its *effective
position*: the earlier position whose facts the memory holds after that row. Undo and redo are derived from these, so
they survive reopening and exporting. Erased operations are skipped. Operations on entries that have expired since are
skipped too, because time is not undone.

`revert` takes back the writes of a source, a speaker or a key, and restores what they overwrote or deleted. An entry
goes back to its last state that came from somebody else. If somebody else changed it after the reverted writes, it
stays as it is, and the report says so. The core memory is treated as one entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from memalpha.errors import DamagedStore
from memalpha.store.backends.namespace import Namespace
from memalpha.store.state import Change, as_operation, inverse, is_same_fact
from memalpha.types import MemoryEntry, Operation


@dataclass(frozen=True, slots=True)
class Diff:
    """Changes between two states of a memory. Origin and validity are not compared.

    Attributes:
        added: Entries of the second state only.
        changed: Entries in both, before and after.
        removed: Entries of the first state only.
        core: Core text before and after, or None if equal.
    """

    added: tuple[MemoryEntry, ...]
    changed: tuple[tuple[MemoryEntry, MemoryEntry], ...]
    removed: tuple[MemoryEntry, ...]
    core: tuple[str, str] | None


def diff_positions(namespace: Namespace, before: int, after: int) -> Diff:
    """Return the changes between two positions, in either order.

    Args:
        namespace: Namespace to read, inside a transaction.
        before: Position of the first state.
        after: Position of the second state.
    """
    ids = namespace.log.changed_ids(min(before, after), max(before, after))
    old_entries, new_entries = (namespace.entries.versions_at(ids, position) for position in (before, after))
    created = namespace.entries.creation_positions(list(old_entries.keys() | new_entries.keys()))
    old_entries, new_entries = (
        {id: entries[id] for id in sorted(entries, key=created.__getitem__)} for entries in (old_entries, new_entries)
    )
    cores = namespace.log.core_at(before), namespace.log.core_at(after)
    return Diff(
        added=tuple(entry for id, entry in new_entries.items() if id not in old_entries),
        changed=tuple(
            (old_entries[id], entry)
            for id, entry in new_entries.items()
            if id in old_entries and not is_same_fact(old_entries[id], entry)
        ),
        removed=tuple(entry for id, entry in old_entries.items() if id not in new_entries),
        core=cores if cores[0] != cores[1] else None,
    )


def undo(namespace: Namespace) -> Operation | None:
    """Undo the last effective operation by appending its inverse; return it, or None."""
    last = _last_effective(namespace, namespace.log.position)
    if last == 0:
        return None
    ((_, _, _, undone),) = namespace.log.page(last - 1, 1)
    ended = None if undone.id is None else namespace.entries.version_ended_at(undone.id, last)
    inverse_operation = inverse(Change(undone, ended), namespace.log.core_at(last - 1))
    namespace.write(inverse_operation, effective_position=namespace.log.effective_position(last - 1))
    return undone


def redo(namespace: Namespace) -> Operation | None:
    """Append the operation that the last undo took back; return it, or None."""
    redo_position = _redo_position(namespace)
    if redo_position == 0:
        return None
    ((_, _, _, operation),) = namespace.log.page(redo_position - 1, 1)
    namespace.write(operation, effective_position=redo_position)
    return operation


def restore(namespace: Namespace, position: int) -> int:
    """Append operations that restore the facts and core memory of a position; return their number."""
    effective_position = namespace.log.effective_position(position)
    diff = diff_positions(namespace, namespace.log.position, position)
    operations = [] if diff.core is None else [Operation("core_update", content=diff.core[1])]
    operations += [Operation("delete", id=entry.id) for entry in diff.removed]
    operations += [as_operation("update", entry) for _, entry in diff.changed]
    operations += [as_operation("insert", entry) for entry in diff.added]
    if not operations and _last_effective(namespace, position) != _last_effective(namespace, namespace.log.position):
        operations = [Operation("core_update", content=namespace.log.core_at(position))]
    for number, operation in enumerate(operations, 1):
        namespace.write(operation, effective_position=effective_position if number == len(operations) else None)
    return len(operations)


def _last_effective(
    namespace: Namespace, position: int, as_of: int | None = None, skips: dict[int, int] | None = None
) -> int:
    """Return the position of the last operation in effect at a position; 0 if none.

    Erased operations are skipped, and so are operations on entries that have expired by `as_of`.

    Args:
        namespace: Namespace to read.
        position: Log position.
        as_of: Position by which an entry has expired; the position itself by default.
        skips: Remembers for several calls where a run of erased operations leads, so that none is read twice.
    """
    last, as_of = namespace.log.effective_position(position), position if as_of is None else as_of
    skips = {} if skips is None else skips
    while last:
        erased_run = []
        while last in skips or (last and namespace.log.kind_at(last) == "erased"):
            erased_run.append(last)
            last = skips[last] if last in skips else namespace.log.effective_position(last - 1)
        skips.update(dict.fromkeys(erased_run, last))
        if not last or not namespace.entries.has_expired(last, as_of):
            return last
        last = namespace.log.effective_position(last - 1)
    return 0


def _redo_position(namespace: Namespace) -> int:
    """Return the position of the operation that a redo would append again; 0 if none.

    The log is read backwards from its end. An undo leaves in effect what was in effect before the operation it
    reverts. A redo leaves in effect what was in effect at the operation it repeats. Every undo without a matching redo
    waits for one; any other operation ends the search.
    """
    log = namespace.log
    pending_redos: list[int] = []
    skips: dict[int, int] = {}
    last_position = log.position
    for position in range(last_position, 0, -1):
        operation_kind = log.kind_at(position)
        if operation_kind in ("expired", "quarantined", "reviewed"):
            continue  # skipped entirely
        before, after = (_last_effective(namespace, end, skips=skips) for end in (position - 1, position))
        if before == after and (operation_kind == "erased" or log.core_at(position - 1) == log.core_at(position)):
            continue  # a move between operations that were erased since: as if none had been
        if log.effective_position(position) == position:
            return 0
        if before != after and namespace.entries.has_expired(max(before, after), last_position):
            continue
        if before and after == _last_effective(namespace, before - 1, position, skips):
            if not pending_redos:
                return before
            if pending_redos.pop() != before:
                return 0
        elif after > before:
            pending_redos.append(after)
        else:
            return 0
    return 0


_PAGE = 1000


@dataclass(frozen=True, slots=True)
class RevertedEntry:
    """One entry that a revert changes, or leaves because of a conflict.

    Attributes:
        id: Id of the entry; None is the core memory.
        before: Content before the revert; None if the entry was deleted.
        after: Content after the revert; None if the entry is deleted.
        conflict: Why the entry stays as it is; "" if it is reverted.
    """

    id: str | None
    before: str | None
    after: str | None
    conflict: str = ""


@dataclass(frozen=True, slots=True)
class Revert:
    """Changes of a revert, applied or not.

    Attributes:
        changes: Entries that go back to an earlier state.
        conflicts: Entries that stay as they are, with the reason.
        position: Log position before the revert: `restore(position)` takes it back.
        applied: True if the changes are in the log.
    """

    changes: tuple[RevertedEntry, ...]
    conflicts: tuple[RevertedEntry, ...]
    position: int
    applied: bool


def revert(
    namespace: Namespace, is_selected: Callable[[Operation], bool], since: int, reason: str, *, now: str, dry_run: bool
) -> Revert:
    """Revert all selected operations after a position.

    Args:
        namespace: Namespace to change, inside a transaction.
        is_selected: Returns True for operations to revert.
        since: Log position; earlier operations stay.
        reason: Reason that the log records.
        now: Time (ISO, UTC) by which entries have expired.
        dry_run: Write nothing.
    """
    position = namespace.log.position
    selected: set[int] = set()
    ids: dict[str, None] = {}
    core_positions: list[int] = []
    start = since
    while page := namespace.log.page(start, _PAGE):
        for number, _, _, operation in page:
            if operation.kind == "core_update":
                core_positions.append(number)
            if operation.kind in ("insert", "update", "delete", "core_update") and is_selected(operation):
                selected.add(number)
                if operation.id is not None:
                    ids[operation.id] = None
        start = page[-1][0]
    plans = [_plan_entry(namespace, id, selected, reason, now) for id in ids]
    plans.append(_plan_core(namespace, core_positions, selected, reason))
    planned = [plan for plan in plans if plan is not None]
    conflicts = tuple(item for item, operation in planned if operation is None)
    changes = [(item, operation) for item, operation in planned if operation is not None]
    order = ("delete", "update", "insert", "core_update")
    changes.sort(key=lambda change: order.index(change[1].kind))
    if not dry_run:
        for _, operation in changes:
            namespace.write(operation)
    return Revert(tuple(item for item, _ in changes), conflicts, position, not dry_run)


def _last_run(positions: Sequence[int], selected: set[int]) -> tuple[int, int] | None:
    """Return the indices of the first and last of the last selected positions in a row; None if none is selected."""
    last = max((index for index, position in enumerate(positions) if position in selected), default=None)
    if last is None:
        return None
    first = last
    while first > 0 and positions[first - 1] in selected:
        first -= 1
    return first, last


def _plan_entry(
    namespace: Namespace, id: str, selected: set[int], reason: str, now: str
) -> tuple[RevertedEntry, Operation | None] | None:
    """Return the change of one entry with its operation (None in a conflict), or None if nothing of it remains."""
    versions = namespace.entries.history(id)
    events: list[tuple[int, MemoryEntry | None]] = []  # position, version that is live afterwards
    for index, version in enumerate(versions):
        events.append((version.valid_from, version))
        follower = versions[index + 1].valid_from if index + 1 < len(versions) else None
        if version.valid_to is not None and version.valid_to != follower:
            events.append((version.valid_to, None))
    run = _last_run([position for position, _ in events], selected)
    if run is None:
        raise DamagedStore(f"the log names {id!r} where no version is: run `memalpha doctor`, or go back to a copy")
    first, last = run
    current = events[-1][1]
    target = events[first - 1][1] if first else None
    if target is not None and target.expires is not None and target.expires <= now:
        target = None
    before, after = (None if entry is None else entry.content for entry in (current, target))
    if last < len(events) - 1:
        is_expired = namespace.log.kind_at(events[-1][0]) == "expired"
        if before == after or is_expired:
            return None
        return RevertedEntry(id, before, before, "somebody else changed it since"), None
    if target is None:
        if current is None:
            return None
        return RevertedEntry(id, before, None), Operation("delete", id=id, reason=reason)
    if current is not None and is_same_fact(target, current):
        return None
    operation = replace(as_operation("insert" if current is None else "update", target), reason=reason)
    return RevertedEntry(id, before, after), operation


def _plan_core(
    namespace: Namespace, positions: Sequence[int], selected: set[int], reason: str
) -> tuple[RevertedEntry, Operation | None] | None:
    """Return the change of the core memory, as `_plan_entry` does; `positions` are those of its updates."""
    run = _last_run(positions, selected)
    if run is None:
        return None
    first, last = run
    before = namespace.log.core_at(positions[-1])
    after = namespace.log.core_at(positions[first] - 1)
    if before == after:
        return None
    if last < len(positions) - 1:
        return RevertedEntry(None, before, before, "somebody else changed it since"), None
    return RevertedEntry(None, before, after), Operation("core_update", content=after, reason=reason)
