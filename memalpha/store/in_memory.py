"""`WorkingMemory`: a searchable memory without a database, used by rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from memalpha.arguments import check_count
from memalpha.errors import StoreError
from memalpha.store.embedding import CheckedEmbedder, Embedder
from memalpha.store.filters import Where
from memalpha.store.memory import Memory
from memalpha.store.schema import MemorySchema
from memalpha.store.search.corpus import Corpus, Document
from memalpha.store.search.options import SearchOptions
from memalpha.store.state import Change, MemoryState, plan
from memalpha.store.validation import check_timestamp
from memalpha.types import Hit, MemoryEntry, Operation


class WorkingMemory(Memory):
    """Searchable memory over a `MemoryState`, without a database.

    `state` is an immutable value. So a snapshot, or a second memory that starts from it, costs nothing. Nothing is
    embedded or indexed before the first search.
    """

    def __init__(self, state: MemoryState, embedder: Embedder) -> None:
        self._state = state
        self._embedder = embedder if isinstance(embedder, CheckedEmbedder) else CheckedEmbedder(embedder)
        self._corpus: Corpus | None = None
        self._write_order: dict[str, None] | None = None  # live ids in write order; built by the first `recent`

    @property
    def schema(self) -> MemorySchema:
        return self._state.schema

    @property
    def embedder(self) -> str:
        return self._embedder.name

    def load_embedder(self) -> Embedder:
        return self._embedder

    @property
    def core(self) -> str:
        return self._state.core

    @property
    def state(self) -> MemoryState:
        return self._state

    def change(self, operation: Operation) -> Change:
        check_timestamp(operation.timestamp)
        change = plan(self._state, operation, self._state.position + 1)
        state = self._state.advance(change)
        corpus, self._corpus = self._corpus, None  # cleared while it changes: after an interrupt it is rebuilt
        order, self._write_order = self._write_order, None  # likewise
        self._state = state
        if order is not None:
            if change.ended is not None:
                del order[change.ended.id]
            if change.entry is not None:
                order[change.entry.id] = None
        if corpus is not None:
            if change.entry is not None:
                corpus.add(Document.from_entry(change.entry, state.creation_position(change.entry.id)))
            elif change.ended is not None:
                corpus.remove(change.ended.id)
        self._corpus, self._write_order = corpus, order
        return change

    def apply_all(self, operations: Sequence[Operation]) -> tuple[Operation, ...]:
        state = self._state
        for operation in operations if len(operations) > 1 else ():  # refused before anything has changed
            check_timestamp(operation.timestamp)
            state = state.apply(operation)
        return tuple(self.apply(operation) for operation in operations)

    def get(self, id: str) -> MemoryEntry:
        return self._state.get(id)

    def list(self, category: str | None = None, *, where: Where = None) -> list[MemoryEntry]:
        entry_filter = self._filter(None, where)
        return [entry for entry in self._state.list(category) if entry_filter is None or entry_filter.matches(entry)]

    def recent(self, n: int) -> list[MemoryEntry]:
        check_count("n", n)
        if self._write_order is None:
            entries = sorted(self._state.entries.values(), key=lambda entry: entry.valid_from)
            self._write_order = dict.fromkeys(entry.id for entry in entries)
        return [self._state.get(id) for id in islice(reversed(self._write_order), n)]

    def created_at(self, ids: Sequence[str]) -> dict[str, int]:
        return {id: self._state.creation_position(id) for id in ids}

    def find(self, category: str, content: str) -> MemoryEntry | None:
        return self._state.find(category, content)

    def _search(self, queries: Sequence[str], options: SearchOptions) -> list[list[Hit]]:
        if options.as_of is not None or options.around:
            raise StoreError("as_of and around: only a MemoryStore keeps past states and the order of raw text")
        vectors = options.query_vectors(len(queries), self._embedder.dim)
        corpus, self._corpus = self._corpus, None
        if corpus is None:
            state = self._state
            documents = (Document.from_entry(entry, state.creation_position(id)) for id, entry in state.entries.items())
            descriptions = self._state.schema.category_texts
            corpus = Corpus(self._embedder, documents, lambda: self._state.entries.values(), descriptions=descriptions)
        results = corpus.search_many(queries, options, vectors)
        self._corpus = corpus
        return [[Hit(self._state.get(id), score, explain) for id, score, explain in hits] for hits in results]
