"""Take back the writes of a source, a speaker or a key, and restore what they overwrote or deleted.

The log decides. An entry goes back to its last state that came from somebody else. If somebody else changed it after
the reverted writes, it stays as it is, and the report says so. The core memory is treated as one entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from memalpha.errors import DamagedStore
from memalpha.store.backends.namespace import Namespace
from memalpha.store.state import as_operation, is_same_fact
from memalpha.types import MemoryEntry, Operation

_PAGE = 1000
_REVERTED_KINDS = ("insert", "update", "delete", "core_update")


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
            if operation.kind in _REVERTED_KINDS and is_selected(operation):
                selected.add(number)
                if operation.id is not None:
                    ids[operation.id] = None
        start = page[-1][0]
    planned = [
        plan for id in ids if (plan := _plan_entry(namespace, id, namespace.entries.history(id), selected, reason, now))
    ]
    core = _plan_core(namespace, core_positions, selected, reason)
    planned += [core] if core else []
    order = ("delete", "update", "insert", "core_update")
    planned.sort(key=lambda plan: order.index(plan[1].kind) if plan[1] else len(order))
    changes, conflicts = [], []
    for item, operation in planned:
        if operation is None:
            conflicts.append(item)
            continue
        if not dry_run:
            namespace.write(operation)
        changes.append(item)
    return Revert(tuple(changes), tuple(conflicts), position, not dry_run)


def _plan_entry(
    namespace: Namespace, id: str, versions: Sequence[MemoryEntry], selected: set[int], reason: str, now: str
) -> tuple[RevertedEntry, Operation | None] | None:
    """Return the change of one entry with its operation (None in a conflict), or None if nothing of it remains."""
    events: list[tuple[int, MemoryEntry | None]] = []  # position, version that is live afterwards
    for index, version in enumerate(versions):
        events.append((version.valid_from, version))
        follower = versions[index + 1].valid_from if index + 1 < len(versions) else None
        if version.valid_to is not None and version.valid_to != follower:
            events.append((version.valid_to, None))
    last = max((index for index, (position, _) in enumerate(events) if position in selected), default=None)
    if last is None:
        raise DamagedStore(f"the log names {id!r} where no version is: run `memalpha doctor`, or go back to a copy")
    current = events[-1][1]
    first = last
    while first > 0 and events[first - 1][0] in selected:
        first -= 1
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
    last = max((index for index, position in enumerate(positions) if position in selected), default=None)
    if last is None:
        return None
    first = last
    while first > 0 and positions[first - 1] in selected:
        first -= 1
    before = namespace.log.core_at(positions[-1])
    after = namespace.log.core_at(positions[first] - 1)
    if before == after:
        return None
    if last < len(positions) - 1:
        return RevertedEntry(None, before, before, "somebody else changed it since"), None
    return RevertedEntry(None, before, after), Operation("core_update", content=after, reason=reason)
