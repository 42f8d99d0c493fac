"""`StoreEraser`: the methods of `MemoryStore` that remove content for good, and what they leave to finish later."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from memalpha.arguments import brief_repr, check_texts
from memalpha.errors import ScrubPending, StoreError, UnknownEntry
from memalpha.store.backends.row_codec import is_storable
from memalpha.store.filters import Filter, Where
from memalpha.store.open import open_namespace
from memalpha.store.store_reads import StoreReader

_SHOWN_NAMESPACES = 16  # at once beside one's own: PostgreSQL shows a transaction the rows of up to 20


class Erasure(list[str]):
    """Other ids that hold, or held, exactly the content that was erased. They are left unchanged.

    Attributes:
        ids: The erased ids.
        forks: Namespaces of the store that are forks and still have the erased operations.
    """

    ids: tuple[str, ...] = ()
    forks: tuple[str, ...] = ()


class StoreEraser(StoreReader):
    """Erasing in one namespace of a durable store, and dropping namespaces."""

    def erase(self, *ids: str, where: Where = None) -> Erasure:
        """Erase entries for good: from the log, past states, vectors, and free space of the file.

        With `where`, all entries of which any version passes the filter: live, ended, expired, undone or quarantined.
        Of a quarantined change to an entry that does not pass, the change alone is erased.

        The operations remain as stubs without content, date, origin or id, because an id tells of the content. Stubs
        change nothing: past states, undo and restore behave as if the entries had never existed. Only an export, copy
        or fork made before still has them. The core memory has a past of its own (`erase_core_history`). The file is
        rewritten, which takes time. If that fails, the entries are erased all the same: no read returns them, and
        `pending_scrub` stays True until their bytes are gone.

        In PostgreSQL no statement returns the erased content afterwards, but its bytes remain on the server for a
        while. They stay in the tables' files until vacuum frees the space and it is reused. `VACUUM FULL
        memalpha.operations, memalpha.versions, memalpha.vectors` does so at once; the owner runs it while nobody else
        works. Write-ahead log, replicas and backups keep the bytes as long as they are retained.

        Args:
            ids: Ids of live or deleted entries, or of quarantined operations. Without any, a pending scrub is finished.
            where: Filter on fields and metadata (see `filters`).

        Returns:
            Other ids with the same content, as a list that also has what was erased and where copies are.

        Raises:
            UnknownEntry: No entry ever had the id.
            StoreError: The filter is invalid or holds for everything; `erase_all` erases a namespace.
            ScrubPending: The entries are erased, but the file cannot be rewritten now. The next opening goes on.
        """
        self._database.refuse_in_transaction("erase")
        check_texts("ids", ids)
        entry_filter = self._filter(None, where)
        if where is not None and entry_filter is None:
            raise StoreError("erase: where is empty, so it holds for everything: erase_all() erases a namespace")
        forks = self._forks(ids, entry_filter)
        with self._transaction(write=True):
            unknown_ids = [id for id in ids if not self._was_used(id)]
            erasure = Erasure() if unknown_ids else self._erase(ids, entry_filter)
        erasure.forks = tuple(forks)
        self._scrub(erasure)  # an unknown id may be that of an erasure that was not finished
        if unknown_ids:
            raise UnknownEntry(f"no entry ever had the id {unknown_ids[0]!r:.80}")
        return erasure

    def erase_all(self) -> int:
        """Erase the whole namespace, core memory included, and return the number of stubs.

        Only the namespace's name and the stubs of its operations remain; `drop_namespace` removes these, too. Raises
        `ScrubPending` as `erase` does.
        """
        self._database.refuse_in_transaction("erase_all")
        with self._transaction(write=True):
            count = self._namespace.erase_all()
        self._scrub()
        return count

    def erase_core_history(self) -> int:
        """Erase all texts of the core memory but the current one, and return their number.

        Before the current text, past states then have no core memory. Raises `ScrubPending` as `erase` does.
        """
        self._database.refuse_in_transaction("erase_core_history")
        with self._transaction(write=True):
            count = self._namespace.erase_core_history()
        self._scrub()
        return count

    def drop_namespace(self, name: str) -> int:
        """Delete a namespace of the store: its log, its entries and its name.

        A namespace that is later made under this name is a new one: its positions begin at 1, and its ids are not
        compared with those of the old one.

        Args:
            name: Name of an existing namespace.

        Returns:
            Number of operations that its log had.

        Raises:
            StoreError: There is no such namespace, or the role does not own a PostgreSQL store's tables.
            ScrubPending: It is deleted, but the file cannot be rewritten now, as in `erase`.
        """
        self._database.refuse_in_transaction("drop_namespace")
        namespace = open_namespace(self._database, name, self.schema)
        with namespace.transaction():
            if namespace.scope.namespace_id < 0:
                raise StoreError(f"no namespace {brief_repr(name)}: `namespaces` lists them")
            count = namespace.drop()
        self._scrub()
        return count

    @property
    def pending_scrub(self) -> bool:
        """True if content was erased whose bytes may still lie in the file. The next opening, or `erase()`, goes on."""
        with self._database.transaction(write=False):
            return self._database.is_scrub_due

    def _was_used(self, id: str) -> bool:
        """Return True if an entry ever had this id, or a quarantined operation has it."""
        is_entry = self._namespace.entries.latest_version(id) is not None
        return is_entry or (is_storable(id) and self._namespace.log.is_quarantined(id))

    def _erase(self, ids: Iterable[str], where: Filter | None) -> Erasure:
        """Erase entries in the open transaction, and in the index in memory."""
        self._index.catch_up(self._namespace.log.position)
        matching, changes = ([], []) if where is None else self._namespace.ids_matching(where)
        all_ids = dict.fromkeys([*ids, *matching])
        erasure = Erasure(self._namespace.erase(all_ids, changes))
        erasure.ids = tuple(all_ids)
        self._index.forget(all_ids, self._namespace.log.position)
        return erasure

    def _forks(self, ids: Iterable[str], where: Filter | None) -> list[str]:
        """Return the namespaces that are forks and have what is to be erased."""
        with self._database.transaction(write=False):
            others = sorted({*self._database.namespaces()} - {self._namespace.name})
        forks: list[str] = []
        for start in range(0, len(others), _SHOWN_NAMESPACES):
            names = others[start : start + _SHOWN_NAMESPACES]
            with self._database.transaction(self._namespace.name, *names, write=False):
                matching = [] if where is None else self._namespace.ids_matching(where)[0]
                forks += self._namespace.log.forks([*ids, *matching], names)
        return forks

    def _scrub(self, erasure: Erasure | None = None, *, wait: bool = True) -> None:
        """Finish the rewriting that an erasure of any namespace has left due."""
        if not self.pending_scrub:
            return
        self._database.remove_abandoned_copies()
        try:
            self._database.scrub(wait=wait)
        except ScrubPending as pending:
            pending.erasure = Erasure() if erasure is None else erasure
            raise

    def _finish_interrupted_work(self) -> None:
        """Go on with a pending scrub, and remove what killed processes left of files, without waiting for others."""
        try:
            if self._database.abandoned_copies():
                self._database.remove_abandoned_copies()
            self._scrub(wait=False)
        except StoreError as error:
            warnings.warn(str(error), stacklevel=3)
