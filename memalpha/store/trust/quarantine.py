"""Quarantine: operations that somebody lacks the right to, kept in the log until they are reviewed.

A quarantined operation changes nothing, and no read, search or past state shows it. It has a position in the log, where
its content, its speaker and the reason are kept. A review applies it or rejects it, and the log records that, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from memalpha.errors import DamagedStore
from memalpha.store.backends.operation_log import OperationLog
from memalpha.types import Operation, OperationKind

_KINDS = get_args(OperationKind)


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


def decision_operation(item: Quarantined, decision: str) -> Operation:
    """Return the operation that records the decision of a review, "accepted" or "rejected"."""
    return Operation("reviewed", metadata={"position": item.position, "decision": decision})


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
