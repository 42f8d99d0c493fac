"""`StoreReviewer`: the methods of `MemoryStore` that judge what others wrote: reverting it, and reviews."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from memalpha.arguments import brief_repr, check_count, check_flag
from memalpha.errors import DuplicateContent, ReviewConflict, StoreError, UnknownEntry
from memalpha.store.store_batches import StoreBatches
from memalpha.store.trust.quarantine import Quarantined, accepted_operation, decision_operation, list_quarantined
from memalpha.store.trust.revert import Revert, revert
from memalpha.store.validation import check_text
from memalpha.types import Operation


class StoreReviewer(StoreBatches):
    """Reverting the writes of others, and reviewing what awaits it, in one namespace."""

    def revert(
        self,
        *,
        source: str | None = None,
        speaker: str | None = None,
        key: str | None = None,
        since: int | str | None = None,
        dry_run: bool = False,
    ) -> Revert:
        """Take back all writes of a source, speaker or key, and restore what they overwrote or deleted.

        An entry goes back to its last state that came from somebody else. If somebody else changed it since, it stays,
        and the report lists it as a conflict. All changes are one transaction of ordinary operations with their reason;
        `restore(report.position)` takes them back.

        Args:
            source: Conversation or document of the writes.
            speaker: Person on whose word they were written.
            key: Name of the server's key that they came with.
            since: Log position or ISO time; writes up to it stay. Several conditions must all hold.
            dry_run: Write nothing; the report says what would change.

        Raises:
            StoreError: No condition is given, or `since` is no position or time.
        """
        conditions = {"source": source, "speaker": speaker, "key": key}
        criteria = {name: value for name, value in conditions.items() if value is not None}
        for name, value in criteria.items():
            check_text(name, value)
        if not criteria and since is None:
            raise StoreError("revert: say what to take back: give a source, a speaker, a key or a moment (since)")
        words = [f"{name} {brief_repr(value)}" for name, value in criteria.items()]
        words += [] if since is None else [f"since {since}"]

        def is_selected(operation: Operation) -> bool:
            return all(getattr(operation, name) == value for name, value in criteria.items())

        check_flag("dry_run", dry_run)
        with self._transaction(write=not dry_run):
            start = 0 if since is None else self._namespace.log.resolve_position(since)
            reason = f"revert: {', '.join(words)}"
            return revert(self._namespace, is_selected, start, reason, now=self._database.now(), dry_run=dry_run)

    def quarantined(self, *, pending: bool = True) -> list[Quarantined]:
        """Return the operations that a trust rule kept from the memory, oldest first.

        Args:
            pending: Leave out those that had a review.
        """
        check_flag("pending", pending)
        with self._transaction():
            return list_quarantined(self._namespace.log, pending=pending)

    def review(self, position: int, *, accept: bool) -> Quarantined:
        """Apply a quarantined operation, or reject it.

        Args:
            position: Log position of the quarantined operation.
            accept: True applies it as its speaker meant it; False leaves the memory as it is.

        Returns:
            The operation with the decision.

        Raises:
            ReviewConflict: Nothing at the position awaits a review, or the entry was changed since and it still does.
        """
        check_flag("accept", accept)
        check_count("position", position)
        item = next((item for item in self.quarantined() if item.position == position), None)
        content = None if item is None else item.operation.content
        is_embedded = accept and item is not None and item.operation.kind in ("insert", "update")
        vectors = self._embed([content]) if is_embedded and content is not None else {}
        with self._transaction(write=True):
            pending = {item.position: item for item in list_quarantined(self._namespace.log, pending=True)}
            if position not in pending:
                raise ReviewConflict(
                    f"review {brief_repr(position)}: nothing there awaits one: `quarantined` lists what does"
                )
            item = pending[position]
            if accept:
                self._check_unchanged(item)
                with suppress(DuplicateContent):  # the memory says so already
                    self._namespace.write(accepted_operation(item), vectors or None)
            decision = "accepted" if accept else "rejected"
            self._namespace.write(decision_operation(item, decision))
            return replace(item, decision=decision)

    def _check_unchanged(self, item: Quarantined) -> None:
        operation, current = item.operation, None
        if operation.kind == "core_update":
            current = self.core
        elif operation.id is not None:
            with suppress(UnknownEntry):
                current = self.get(operation.id).content
        if current != item.before:
            raise ReviewConflict(
                f"review {item.position}: what it would change was changed since: reject it, or write what is right"
            )
