"""Moving along a namespace's log: undo, redo, restore, and what lies between two of its positions.

Nothing here takes anything out of the log. Going back and forth appends operations, and their `head` names the position
whose facts the memory then holds, so that undo and redo are read off the log: they survive reopening and exporting.
What was erased is passed over, and so is what was done to an entry that has expired since: time is not undone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memalpha.store.backends.namespace import Namespace
from memalpha.store.state import Change, as_operation, inverse, same_fact
from memalpha.types import MemoryEntry, Operation


@dataclass(frozen=True, slots=True)
class Diff:
    """What must change to get from one state of a memory to another; `changed` has an entry before and after, `core`
    the text before and after if it differs. Origin and validity are no difference."""

    added: tuple[MemoryEntry, ...]
    changed: tuple[tuple[MemoryEntry, MemoryEntry], ...]
    removed: tuple[MemoryEntry, ...]
    core: tuple[str, str] | None


def difference(rows: Namespace, before: int, after: int) -> Diff:
    """What changed between two positions; the later one may come first."""
    old, new = _entries(rows.live(position=before)), _entries(rows.live(position=after))
    cores = rows.core(before), rows.core(after)
    return Diff(
        added=tuple(entry for id, entry in new.items() if id not in old),
        changed=tuple((old[id], entry) for id, entry in new.items() if id in old and not same_fact(old[id], entry)),
        removed=tuple(entry for id, entry in old.items() if id not in new),
        core=cores if cores[0] != cores[1] else None,
    )


def expire(rows: Namespace, due: Iterable[tuple[str, str]]) -> None:
    """End entries that are `due`, each at the time it was to expire, so that the log does not depend on who looked
    when."""
    for id, time in due:
        rows.write(Operation("expired", id=id), time=time)


def undo(rows: Namespace) -> Operation | None:
    """Take back the last operation in effect by appending its inverse; None if there is none."""
    head = _in_effect(rows, rows.position)
    if head == 0:
        return None
    ((_, _, _, undone),) = rows.log(head - 1, 1)
    ended = None if undone.id is None else rows.ended_at(undone.id, head)
    back = inverse(Change(undone, ended), rows.core(head - 1))
    rows.write(back, head=rows.head(head - 1))
    return undone


def redo(rows: Namespace) -> Operation | None:
    """Append the operation that the last undo took back; None if there is none to bring back."""
    head = _taken_back(rows)
    if head == 0:
        return None
    ((_, _, _, operation),) = rows.log(head - 1, 1)
    rows.write(operation, head=head)
    return operation


def restore(rows: Namespace, position: int) -> int:
    """Append what brings the facts and core memory of a position back; the number of operations."""
    head = rows.head(position)
    operations = _way_back(rows, position)
    if not operations and _in_effect(rows, position) != _in_effect(rows, rows.position):
        operations = [Operation("core_update", content=rows.core(position))]
    for number, operation in enumerate(operations, 1):
        rows.write(operation, head=head if number == len(operations) else None)
    return len(operations)


def _way_back(rows: Namespace, position: int) -> list[Operation]:
    """The operations that bring the facts and core memory of a position back."""
    way = difference(rows, rows.position, position)
    operations = [] if way.core is None else [Operation("core_update", content=way.core[1])]
    operations += [Operation("delete", id=entry.id) for entry in way.removed]
    # An update cannot take a content that another live entry holds; then the entry ends and comes back.
    gone = {entry.id for entry in way.removed}
    held = {(entry.category, entry.content): entry.id for entry in rows.live() if entry.id not in gone}
    ended = [entry for _, entry in way.changed if held.get((entry.category, entry.content), entry.id) != entry.id]
    operations += [Operation("delete", id=entry.id) for entry in ended]
    back = {entry.id for entry in ended}
    operations += [as_operation("update", entry) for _, entry in way.changed if entry.id not in back]
    return operations + [as_operation("insert", entry) for entry in (*ended, *way.added)]


def _in_effect(rows: Namespace, position: int, seen_at: int | None = None) -> int:
    """The last operation that was in effect at a position; 0 if there was none. What was erased is passed over, and
    entries that are gone at `seen_at` (the position), having expired."""
    head, seen_at = rows.head(position), position if seen_at is None else seen_at
    while head and (rows.kind(head) == "erased" or rows.lapsed(head, seen_at)):
        head = rows.head(head - 1)
    return head


def _taken_back(rows: Namespace) -> int:
    """The position of the operation that a redo brings back; 0 if there is none.

    Going back from the log's end: an undo leaves in effect what was so before the operation it took back, a redo what
    was so at the operation it brought back, and every undo that no redo has met yet waits for one. Anything else has
    ended the waiting.
    """
    redone: list[int] = []
    end = rows.position
    for position in range(end, 0, -1):
        before, after = _in_effect(rows, position - 1), _in_effect(rows, position)
        kind = rows.kind(position)
        if kind == "expired" or (before == after and kind == "erased"):
            continue  # as if it had never been
        if rows.head(position) == position:
            return 0
        if before != after and rows.lapsed(max(before, after), end):
            continue
        if before and after == _in_effect(rows, before - 1, position):
            if not redone:
                return before
            if redone.pop() != before:
                return 0
        elif after > before:
            redone.append(after)
        else:
            return 0
    return 0


def _entries(entries: Iterable[MemoryEntry]) -> dict[str, MemoryEntry]:
    return {entry.id: entry for entry in entries}
