"""Moving along a namespace's log: undo, redo, restore, and the difference between two positions.

Nothing is ever taken out of the log. Undo, redo and restore append operations. Each log row records its *effective
position*: the earlier position whose facts the memory holds after that row. Undo and redo are derived from these, so
they survive reopening and exporting. Erased operations are skipped. Operations on entries that have expired since are
skipped too, because time is not undone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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


def expire_entries(namespace: Namespace, due: Iterable[tuple[str, str]]) -> None:
    """End the entries in `due` (id, expiry time), each at its own expiry time.

    So the log does not depend on who looked when.
    """
    for id, time in due:
        namespace.write(Operation("expired", id=id), time=time)


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
    pending_redos: list[int] = []
    skips: dict[int, int] = {}
    last_position = namespace.log.position
    for position in range(last_position, 0, -1):
        operation_kind = namespace.log.kind_at(position)
        if operation_kind in ("expired", "quarantined", "reviewed"):
            continue  # skipped entirely
        before, after = (_last_effective(namespace, end, skips=skips) for end in (position - 1, position))
        if before == after and (operation_kind == "erased" or _undid_erased(namespace, position)):
            continue  # skipped entirely
        if namespace.log.effective_position(position) == position:
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


def _undid_erased(namespace: Namespace, position: int) -> bool:
    """Return True if an operation took back another that was erased since: as if neither had been."""
    log = namespace.log
    left, last = log.effective_position(position), log.effective_position(position - 1)
    while last and log.kind_at(last) == "erased":
        last = log.effective_position(last - 1)
        if last == left:
            return True
    return False
