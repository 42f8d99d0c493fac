"""Read what a page of a memory shows: a piece of the log, entries with their versions, and what needs a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from memalpha.store.checks.audit import find_conflicts
from memalpha.store.checks.findings import Finding
from memalpha.store.store import MemoryStore
from memalpha.store.trust.quarantine import Quarantined
from memalpha.types import MemoryEntry, Operation

MAX_OPERATIONS = 5000
"""Operations of the log that a page holds, the last ones."""
MAX_ENTRIES = 2000
"""Entries that a page holds, those that changed last."""
_CHANGES = ("insert", "update", "delete", "expired")


@dataclass(frozen=True, slots=True)
class History:
    """Content of a page.

    Attributes:
        first: Position before the first operation.
        last: Position of the last one.
        log: Time and operation by position.
        entries: Versions of each entry, oldest first, in the order of their creation.
        cores: Core texts and the positions from which they hold.
        quarantined: Operations that await a review, oldest first.
        findings: Contradictions between the page's live entries, and entries that are outdated.
        total: Entries that the page would hold without a limit.
    """

    first: int
    last: int
    log: Mapping[int, tuple[str, Operation]]
    entries: Sequence[Sequence[MemoryEntry]]
    cores: Sequence[tuple[int, str]]
    quarantined: Sequence[Quarantined]
    findings: Sequence[Finding]
    total: int

    @property
    def live(self) -> int:
        """Number of the page's entries that have not ended."""
        return sum(versions[-1].valid_to is None for versions in self.entries)

    @property
    def contradictions(self) -> list[Finding]:
        """Live entries that cannot both be true."""
        return [finding for finding in self.findings if finding.kind == "contradiction"]

    @property
    def outdated(self) -> list[Finding]:
        """Live entries that something else speaks against, but for those that a contradiction names with it."""
        pairs = [{entry.id for entry in finding.entries} for finding in self.contradictions]
        return [
            finding
            for finding in self.findings
            if finding.kind == "stale"
            and not any({entry.id for entry in (*finding.entries, *finding.against)} <= pair for pair in pairs)
        ]

    def count_speakers(self) -> Counter[str | None]:
        """Count the page's entries by who said their last version; None is nobody known."""
        return Counter(versions[-1].speaker for versions in self.entries)


def read_history(store: MemoryStore) -> History:
    """Read the content of a page from a store's namespace, as of one position of its log."""
    last = store.snapshot()
    first = max(0, last - MAX_OPERATIONS)
    log = {position: (time, operation) for position, time, operation in store.log(first) if position <= last}
    changes = {position: operation.id for position, (_, operation) in log.items() if operation.kind in _CHANGES}
    changed = {id: position for position, id in changes.items() if id is not None}
    before = {entry.id: entry.valid_from for entry in store.list(as_of=first)} if first else {}
    last_change = before | changed
    newest = sorted(last_change, key=lambda id: last_change[id], reverse=True)[:MAX_ENTRIES]
    entries = []
    for history in store.history_many(newest).values():  # without those that were erased
        versions = [version for version in history if version.valid_from <= last]
        if versions and (versions[-1].valid_to or 0) > last:  # somebody wrote meanwhile
            versions[-1] = replace(versions[-1], valid_to=None)
        entries += [versions] if versions else []
    entries.sort(key=lambda versions: versions[0].valid_from)
    texts = [first] + [
        position
        for position, (_, operation) in log.items()
        if operation.kind == "core_update" or (operation.kind == "erased" and operation.id is None)
    ]
    cores = [(position, store.core_at(position)) for position in texts]
    waiting = [item for item in store.quarantined() if item.position <= last]
    return History(first, last, log, entries, cores, waiting, find_conflicts(store, entries), len(last_change))
