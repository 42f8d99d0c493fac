"""The search index of one namespace: built from the stored rows on first use, and updated from the operation log.

Vectors that the file has are not computed again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import NamedTuple, TypeVar

import numpy as np

from memalpha.arguments import brief_repr
from memalpha.errors import UnknownEntry
from memalpha.forks import ForkAware
from memalpha.store.backends.base import no_deadline
from memalpha.store.backends.namespace import Namespace, decode_vectors
from memalpha.store.embedding import RecordedEmbedder, StoredEmbedder
from memalpha.store.fields import check_stored
from memalpha.store.filters import Filter
from memalpha.store.search.corpus import Corpus, Document
from memalpha.store.search.lexical import Span
from memalpha.store.search.ranking import ScoredEntry, SearchOptions
from memalpha.types import MemoryEntry

_PAGE = 10_000
_MAX_HELD = 250_000  # entries of an earlier position whose corpus is held for the next search
T = TypeVar("T")
_MAX_WARM, _MAX_LAG = 20_000, 10  # entries, and operations behind the log, of an index that answers in milliseconds
_MAX_FORGOTTEN = 1000  # erased ids from which building the corpus anew costs less
_MAX_UPDATES = 100  # updates of the corpus that can be taken back


class _PastCorpus(NamedTuple):
    """Corpus of an earlier position: of all its entries, or of those that pass a filter.

    Attributes:
        position: Position that is searched.
        filter: Filter of the entries; None for all.
        namespace_id: Id of the namespace.
        last_position: Position of the log's end when it was made.
        rollbacks: Rollbacks of the database when it was made.
        corpus: The corpus.
    """

    position: int
    filter: Filter | None
    namespace_id: int
    last_position: int
    rollbacks: int
    corpus: Corpus


class NamespaceIndex(ForkAware):
    """Keep the search corpus of a namespace in step with its operation log, whoever writes it.

    Call every method inside a transaction. Threads take turns. On a server, the transaction
    of one may have begun before that of another, which has brought the corpus further: then it is brought back.
    """

    def __init__(self, rows: Namespace, embedder: RecordedEmbedder, descriptions: Mapping[str, str]) -> None:
        self._rows, self._embedder, self._descriptions = rows, embedder, descriptions
        self._lock = RLock()
        self._corpus: Corpus | None = None
        self._past: _PastCorpus | None = None
        self._position, self._namespace_id = 0, -1
        self._rollbacks: int | None = None  # of the database, if the corpus holds what is not committed yet
        self._losses = rows.database.losses  # of the database when the corpus was checked out
        self._updates: deque[tuple[int, list[str]]] = deque(maxlen=_MAX_UPDATES)  # position before, and ids changed
        self.watch_forks()

    def reset_in_child(self, state: object) -> None:
        """Take a new lock; a corpus that another thread had checked out is built anew."""
        self._lock = RLock()

    def search(
        self,
        last_position: int,
        position: int | None,
        queries: Sequence[str],
        options: SearchOptions,
        vectors: np.ndarray | None = None,
    ) -> list[list[ScoredEntry]]:
        """Return the k best entries for each query, best first.

        Args:
            last_position: Position of the last operation in the log.
            position: Position to search at; None searches the current state.
            queries: Questions; one list of results is returned for each.
            options: Options of the search; `position` stands for `as_of`.
            vectors: Embeddings of the queries `(len(queries), dim)`, if known.
        """
        with self._lock:
            if position is not None and position < last_position:
                past = self._past_corpus(last_position, position, options.filter)
                if past.filter is not None:  # all of its entries pass
                    options = replace(options, category=None, where=None)
                return past.corpus.search_many(queries, options, vectors)
            corpus = self._checkout(last_position)
            results = corpus.search_many(queries, options, vectors)
            self._checkin(corpus)
            return results

    def is_warm(self, last_position: int) -> bool:
        """Return True if a search of the current state takes milliseconds: nothing much has to be read or built."""
        corpus, lag = self._corpus, last_position - self._position
        if corpus is None or len(corpus) > _MAX_WARM or not 0 <= lag <= _MAX_LAG or self._has_rolled_back:
            return False
        is_same = self._namespace_id == self._rows.scope.namespace_id
        return is_same and (lag == 0 or not self._rows.log.has_erasure_after(self._position))

    def _past_corpus(self, last_position: int, position: int, where: Filter | None) -> _PastCorpus:
        """Return a corpus of the entries at an earlier position, all of them or those that pass a filter.

        The last one is held for the next search, up to `_MAX_HELD` entries: the past changes by erasure only.
        """
        database, namespace_id = self._rows.database, self._rows.scope.namespace_id
        past, self._past = self._past, None
        if past is not None and (
            (past.position, past.namespace_id, past.rollbacks) != (position, namespace_id, database.rollbacks)
            or past.filter not in (None, where)
            or past.last_position > last_position
            or self._rows.log.has_erasure_after(past.last_position)
        ):
            past = None
        if past is None:
            corpus = self._rewind(last_position, position) if where is None or self._corpus is not None else None
            if corpus is None:
                entries = self._past_entries(position, where)
                documents = (Document.from_entry(entry, index) for index, entry in enumerate(entries))
                corpus = Corpus(
                    self._encoder(),
                    documents,
                    partial(self._past_entries, position, where),
                    descriptions=self._descriptions,
                )
            else:
                where = None
            past = _PastCorpus(position, where, namespace_id, last_position, database.rollbacks, corpus)
        if len(past.corpus) <= _MAX_HELD:
            self._past = past
        return past

    def _rewind(self, last_position: int, position: int) -> Corpus | None:
        """Return the corpus of an earlier position: a copy of the current one in which later changes are undone.

        So little is read. None if much has changed since.
        """
        if 2 * (last_position - position) > position:
            return None
        live = self._checkout(last_position)
        corpus = live.copy(partial(self._past_entries, position, None))
        self._checkin(live)
        self._update(corpus, position, self._rows.log.changed_ids(position))
        return corpus

    def _past_entries(self, position: int, where: Filter | None) -> list[MemoryEntry]:
        entries = self._rows.entries.live(position=position)
        return [entry for entry in entries if where is None or where.matches(entry)]

    def forget(self, ids: Collection[str], last_position: int) -> None:
        """Remove entries that were just erased from the corpus in memory, rather than building it anew.

        No search returns anything of them.

        Args:
            ids: Erased ids.
            last_position: Position of the erasure in the log, the next one after that of the last `ask`.
        """
        with self._lock:
            corpus, self._past, self._corpus = self._corpus, None, None
            if corpus is None or len(ids) > _MAX_FORGOTTEN:
                return
            for id in ids:
                if id in corpus:
                    corpus.remove(id)
            self._position = last_position
            self._updates.clear()
            self._checkin(corpus)

    def ask(self, last_position: int, question: Callable[[Corpus], T]) -> T | None:
        """Return what a function makes of the corpus at the log's end; None if no corpus is in memory."""
        with self._lock:
            if self._corpus is None:
                return None
            corpus = self._checkout(last_position)
            answer = question(corpus)
            self._checkin(corpus)
            return answer

    def _checkout(self, position: int) -> Corpus:
        """Return the corpus updated to the log's end at `position`, and clear the stored reference.

        An exception before `_checkin` leaves no half-updated corpus behind: the next search rebuilds it.
        """
        corpus, self._corpus = self._corpus, None
        namespace_id = self._rows.scope.namespace_id
        if namespace_id != self._namespace_id:  # the first search, or the namespace was dropped and made anew
            corpus, self._namespace_id = None, namespace_id
        if self._has_rolled_back:
            corpus = None
        self._losses = self._rows.database.losses
        if corpus is not None and position == self._position:
            return corpus
        was_erased = corpus is not None and self._rows.log.has_erasure_after(self._position)
        changed = None if corpus is None or was_erased else self._changed_ids(position)
        if changed is None:
            self._updates.clear()
            corpus = None
        if corpus is None:
            corpus = self._build_corpus()
        elif changed is not None:
            self._update(corpus, None, changed)
            self._updates.append((self._position, changed))
        self._position = position
        return corpus

    def _changed_ids(self, position: int) -> list[str] | None:
        """Return the ids that may differ between the corpus and a position; None if they are not known.

        Operations after the corpus are in the log. Those that a transaction does not see, as they were written after
        it began, are in the updates; the position of the corpus becomes that before these.
        """
        if position > self._position:
            return self._rows.log.changed_ids(self._position)
        changed: dict[str, None] = {}
        while position < self._position:
            if not self._updates:
                return None
            self._position, ids = self._updates.pop()
            changed |= dict.fromkeys(ids)
        return list(changed)

    @property
    def _has_rolled_back(self) -> bool:
        """True if the corpus may hold operations that were rolled back, or that a lost server had alone."""
        database = self._rows.database
        return self._rollbacks not in (None, database.rollbacks) or self._losses != database.losses

    def _update(self, corpus: Corpus, position: int | None, changed: list[str]) -> None:
        """Bring entries of a corpus to a position.

        Args:
            corpus: Corpus to change in place.
            position: Log position; None is the log's end.
            changed: Ids of the entries that may differ.
        """
        entries = self._rows.entries.versions_at(changed, position)
        past_first = [id for id, entry in entries.items() if entry.turn is not None or entry.version > 1]
        created = self._rows.entries.creation_positions(past_first)
        corpus.add_many(Document.from_entry(entries[id], created.get(id)) for id in changed if id in entries)
        for id in changed:
            if id not in entries and id in corpus:
                corpus.remove(id)

    def _checkin(self, corpus: Corpus) -> None:
        """Store the corpus for the next search."""
        self._rollbacks = self._rows.database.rollbacks if self._rows.database.is_writing else None
        self._corpus = corpus

    @no_deadline()
    def _build_corpus(self) -> Corpus:
        """Build the corpus from the stored rows."""
        corpus = Corpus(self._encoder(), (), self._live_entries, descriptions=self._descriptions, approximate=True)
        without_vector = []
        for page in self._rows.vectors.search_rows(_PAGE):
            without_vector += [row for row in page if row[-1] is None]
            self._load_rows(corpus, [row for row in page if row[-1] is not None])
        self._load_rows(corpus, without_vector)
        return corpus

    def _load_rows(self, corpus: Corpus, rows: list[tuple]) -> None:
        """Add rows of `VectorTable.search_rows`, of which all or none have a vector."""
        if rows:
            ids, texts, groups, orders, *origins, vectors = zip(*rows, strict=True)
            stored = None if vectors[0] is None else decode_vectors(ids, vectors, self._embedder.dim)
            chunks = [0 if chunk is None else chunk for chunk in origins[1]]
            for what, values in (
                ("its content", texts),
                *(("a position", some) for some in (orders, origins[3], chunks)),
            ):
                kind = str if values is texts else int
                for id, value in zip(ids, values, strict=True) if set(map(type, values)) != {kind} else ():
                    check_stored(id, what, value, kind)
            corpus.load(ids, texts, groups, orders, list(map(Span.from_origin, *origins)), origins[3], stored)

    @no_deadline()
    def _live_entries(self) -> list[MemoryEntry]:
        return self._rows.entries.live()

    def _encoder(self) -> StoredEmbedder:
        return StoredEmbedder(self._rows, self._embedder.load())


def surrounding_spans(rows: Namespace, id: str, tokens: int, position: int | None) -> list[MemoryEntry]:
    """Return the spans around an entry, in the order of their source.

    They are an unbroken run, filled from the nearest span on. If the entry is a span, it is included even if it alone
    exceeds the budget.

    Args:
        rows: Namespace of the entry.
        id: Entry that is live at `position`.
        tokens: Budget for all spans together, in tokens of four characters.
        position: Log position; None for the current state.

    Raises:
        UnknownEntry: No live entry has the id.
    """
    entry = rows.entries.version_at(id, position)
    if entry is None:
        raise UnknownEntry(
            f"no live entry has the id {brief_repr(id)}" + ("" if position is None else f" at position {position}")
        )
    entry_span = [] if Span.from_origin(entry.source, entry.chunk, entry.turn, 0) is None else [entry]
    budget = 4 * tokens - sum(len(span.content) for span in entry_span)
    before: list[MemoryEntry] = []
    after: list[MemoryEntry] = []
    sides: list[tuple[Iterator[MemoryEntry], list[MemoryEntry]]] = [
        (rows.entries.spans(entry, position, after=False), before),
        (rows.entries.spans(entry, position, after=True), after),
    ]
    while sides:
        for side in list(sides):
            span = next(side[0], None)
            if span is None or len(span.content) > budget:
                sides.remove(side)
            else:
                side[1].append(span)
                budget -= len(span.content)
    return before[::-1] + entry_span + after
