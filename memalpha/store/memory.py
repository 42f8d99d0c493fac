"""`Memory`: the interface that writers and readers use of any store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from memalpha.errors import DuplicateContent
from memalpha.store.embedding import Embedder
from memalpha.store.filters import Filter, Where, parse_filter
from memalpha.store.schema import MemorySchema
from memalpha.store.search.boost import Boost
from memalpha.store.search.ranking import Route
from memalpha.store.state import Change, MemoryState
from memalpha.store.validation import clean_content
from memalpha.types import Hit, MemoryEntry, Operation


class Memory(ABC):
    """A memory that can be written, read and searched; `WorkingMemory` and `MemoryStore` are.

    All writing stands here, on top of one method that makes one operation happen.
    """

    @property
    @abstractmethod
    def schema(self) -> MemorySchema:
        """Its categories."""

    @property
    @abstractmethod
    def embedder(self) -> str:
        """The name of the embedder that its searches use."""

    @abstractmethod
    def load_embedder(self) -> Embedder:
        """Return the embedder that its searches use."""

    @property
    @abstractmethod
    def core(self) -> str:
        """The core memory text; "" where there is none."""

    @property
    @abstractmethod
    def state(self) -> MemoryState:
        """The memory as it is now, as a value."""

    @abstractmethod
    def change(self, operation: Operation) -> Change:
        """Make one operation happen, whole or not at all; raises `StoreError` if the rules refuse it."""

    @abstractmethod
    def get(self, id: str) -> MemoryEntry:
        """A live entry; raises `UnknownEntry`."""

    @abstractmethod
    def find(self, category: str, content: str) -> MemoryEntry | None:
        """The live entry of the category with exactly this content, or None."""

    @abstractmethod
    def list(self, category: str | None = None, *, where: Where = None) -> list[MemoryEntry]:
        """The live entries, oldest id first; of one `category`, or those that pass `where` (see `filters`)."""

    @abstractmethod
    def recent(self, n: int) -> list[MemoryEntry]:
        """Return the `n` live entries that were written last (inserted or updated), newest first.

        The cost depends on `n` and on deletes since then, not on the size of the memory.
        """

    @abstractmethod
    def created_at(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the log position that created each id; `list` is in this order."""

    @abstractmethod
    def search(
        self,
        query: str,
        k: int = 10,
        *,
        category: str | None = None,
        where: Where = None,
        route: Route = "soft",
        boost: Boost | None = None,
    ) -> list[Hit]:
        """The k best live entries, best first, as if only those of `category` that pass `where` were there (see
        `filters`); `boost` adds importance and recency to the scores. Raises `UnknownCategory`, and `StoreError` for a
        `where` that is not understood."""

    @abstractmethod
    def search_many(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        category: str | None = None,
        where: Where = None,
        route: Route = "soft",
        boost: Boost | None = None,
    ) -> list[list[Hit]]:
        """`search` for several queries, embedded in one batch."""

    def _filter(self, category: str | None, where: Where) -> Filter | None:
        """What `category` and `where` leave in; None for everything. Raises `UnknownCategory` or `StoreError`."""
        if category is not None:
            self.schema.check_category(category)
        return parse_filter(where, category=category)

    def apply(self, operation: Operation) -> Operation:
        """Make one operation happen and return it complete, as logged; raises `StoreError` (see `state.plan`)."""
        return self.change(operation).operation

    def insert(
        self,
        category: str,
        content: str,
        *,
        timestamp: str | None = None,
        importance: float = 1.0,
        metadata: Mapping[str, Any] | None = None,
        source: str | None = None,
        chunk: int | None = None,
        turn: str | None = None,
        expires: str | None = None,
    ) -> MemoryEntry:
        """Store a fact. Exactly the same content in the same category is stored once: the entry there is returned as it
        was, its timestamp and all. To be told apart: `apply(Operation("insert", ...))` raises `DuplicateContent` then.

        `timestamp`: when the fact or event happened (ISO 8601); `source`, `chunk`, `turn`: where it was said;
        `metadata`: anything JSON can hold; `expires`: the moment (ISO 8601, UTC unless it says otherwise) from which a
        `MemoryStore` does not give it any more (other memories have no clock, and keep it). Raises `UnknownCategory`
        or `InvalidContent`.
        """
        operation = Operation(
            "insert",
            category=category,
            content=content,
            timestamp=timestamp,
            importance=importance,
            metadata=metadata,
            source=source,
            chunk=chunk,
            turn=turn,
            expires=expires,
        )
        try:
            entry = self.change(operation).entry
        except DuplicateContent as duplicate:
            return self.get(duplicate.entry_id)
        assert entry is not None
        return entry

    def update(
        self,
        id: str,
        content: str,
        *,
        timestamp: str | None = None,
        importance: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        source: str | None = None,
        chunk: int | None = None,
        turn: str | None = None,
        expires: str | None = None,
    ) -> MemoryEntry:
        """Give an entry new content: same id, next version. A None is kept, but for two things: the origin is always
        that of this update, and a new content without a `timestamp` has none (that of the old would be a wrong date; ""
        clears it in any case, as it clears `expires`). Raises `UnknownEntry`, `InvalidContent`, or `DuplicateContent`
        if another live entry of the category holds exactly the new content, or if nothing but the origin would
        change."""
        if timestamp is None and self.get(id).content != clean_content(content):
            timestamp = ""
        operation = Operation(
            "update",
            id=id,
            content=content,
            timestamp=timestamp,
            importance=importance,
            metadata=metadata,
            source=source,
            chunk=chunk,
            turn=turn,
            expires=expires,
        )
        entry = self.change(operation).entry
        assert entry is not None
        return entry

    def delete(
        self, id: str, *, source: str | None = None, chunk: int | None = None, turn: str | None = None
    ) -> MemoryEntry:
        """End an entry and return it as it was, with `valid_to` set. Raises `UnknownEntry`."""
        ended = self.change(Operation("delete", id=id, source=source, chunk=chunk, turn=turn)).ended
        assert ended is not None
        return ended

    def core_update(
        self, text: str, *, source: str | None = None, chunk: int | None = None, turn: str | None = None
    ) -> None:
        """Put `text` in the place of the core memory; "" clears it. Raises `InvalidContent` if it is over the limit."""
        self.change(Operation("core_update", content=text, source=source, chunk=chunk, turn=turn))
