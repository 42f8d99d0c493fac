"""Quarantine: operations that somebody lacks the right to, kept in the log until they are reviewed.

A quarantined operation changes nothing, and no read, search or past state shows it. It has a position in the log, where
its content, its speaker and the reason are kept. A review applies it or rejects it, and the log records that, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, get_args

from memalpha.errors import DamagedStore
from memalpha.types import Operation, OperationKind

if TYPE_CHECKING:
    from memalpha.store.backends.namespace import OperationLog

_KINDS = get_args(OperationKind)
ACCEPTED = "review: accepted "  # begins the reason of an operation that a review applied; the position follows


@dataclass(frozen=True, slots=True)
class Quarantined:
    """An operation that awaits a review, or had one.

    Attributes:
        position: Its log position, by which it is reviewed.
        time: When it was quarantined (ISO, UTC).
        operation: The intended operation, with its speaker, source and key.
        before: Content that it would replace or end; None for an insert.
        reason: Why it was not done.
        decision: "accepted", "rejected", or "" while it awaits a review.
    """

    position: int
    time: str
    operation: Operation
    before: str | None
    reason: str
    decision: str = ""


def quarantine_operation(operation: Operation, before: str | None, reason: str) -> Operation:
    """Return the operation that keeps another one in quarantine.

    Args:
        operation: Insert, update, delete or core_update.
        before: Content that it would replace or end; None for an insert.
        reason: Why it is not done.
    """
    metadata = {"kind": operation.kind, "before": before}
    metadata |= {} if operation.metadata is None else {"metadata": dict(operation.metadata)}
    return replace(operation, kind="quarantined", metadata=metadata, reason=reason)


def accepted_as(log: OperationLog, ids: Collection[str]) -> set[str]:
    """Return the ids of quarantined inserts that a review accepted as these entries, and which hold their content."""
    quarantined: set[str] = set()
    for position, _, operation in log.quarantine():
        decision = dict(operation.metadata or {})
        if operation.kind != "reviewed" or decision.get("decision") != "accepted":
            continue
        ((_, _, _, applied),) = log.page(position - 2, 1)  # a review writes it just before its decision
        if applied.id in ids and applied.reason == f"{ACCEPTED}{decision.get('position')}":
            quarantined.add(f"quarantined#{decision['position']}")
    return quarantined


def quarantined_contents(log: OperationLog) -> list[tuple[str, str]]:
    """Return id and content of all quarantined operations, reviewed or not."""
    operations = (operation for _, _, operation in log.quarantine() if operation.kind == "quarantined")
    return [(operation.id, operation.content) for operation in operations if operation.id and operation.content]


def past_core_quarantine(log: OperationLog, core: str) -> list[int]:
    """Return the positions of quarantined core updates that hold texts of the past.

    Those are all but the pending ones that would replace the current text.

    Args:
        log: Log to read.
        core: Current text.
    """
    return [
        item.position
        for item in list_quarantined(log, pending=False)
        if item.operation.kind == "core_update" and (item.decision or item.before != core)
    ]


def list_quarantined(log: OperationLog, *, pending: bool) -> list[Quarantined]:
    """Return quarantined operations, oldest first; with `pending`, those that await a review."""
    items: dict[int, Quarantined] = {}
    for position, time, operation in log.quarantine():
        fields = dict(operation.metadata or {})
        if operation.kind == "reviewed":
            reviewed = fields.get("position")
            if isinstance(reviewed, int) and reviewed in items:
                items[reviewed] = replace(items[reviewed], decision=str(fields.get("decision")))
            continue
        kind = fields.get("kind")
        if kind not in _KINDS:
            raise DamagedStore(f"the quarantined operation at position {position} is damaged: run `memalpha doctor`")
        intended = replace(
            operation,
            kind=kind,
            id=operation.id if kind in ("update", "delete") else None,
            metadata=fields.get("metadata"),
            reason=None,
        )
        items[position] = Quarantined(position, time, intended, fields.get("before"), operation.reason or "")
    return [item for item in items.values() if not (pending and item.decision)]


WRITER: ContextVar[Mapping[str, str]] = ContextVar("memalpha_writer", default=MappingProxyType({}))
"""Fields `speaker` and `key` that operations get unless they have their own."""
