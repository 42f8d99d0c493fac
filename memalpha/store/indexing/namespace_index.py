"""What the searches of one namespace need, following its log whoever writes it, and saved beside the file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memalpha.store.backends.namespace import Namespace
from memalpha.store.filters import Filter
from memalpha.store.indexing.cache import IndexCache
from memalpha.store.indexing.corpus_arrays import corpus_from_arrays, corpus_to_arrays
from memalpha.store.indexing.stored_embedder import RecordedEmbedder, StoredEmbedder
from memalpha.store.search.background import Background
from memalpha.store.search.boost import Boost
from memalpha.store.search.corpus import CompactVectors, Corpus
from memalpha.store.search.documents import Document, ScoredEntry
from memalpha.store.search.ranking import Route
from memalpha.store.search.span_bm25 import Span
from memalpha.store.search.vectors import Precision

_PAGE = 20_000


class NamespaceIndex:
    """The corpus of a namespace, made when first needed. Every method but `save` and `close` belongs inside a
    transaction."""

    def __init__(self, rows: Namespace, embedder: RecordedEmbedder, vectors: Precision) -> None:
        self._rows, self._embedder = rows, embedder
        self._cache = IndexCache(rows, vectors)
        self._compact = None
        if vectors != "float32":
            self._compact = CompactVectors(vectors, lambda ids: self._encoder().entry_vectors(ids))
        self._background = Background()
        self._corpus: Corpus | None = None
        self._position = 0

    def search(
        self,
        end: int,
        position: int | None,
        queries: Sequence[str],
        k: int,
        *,
        route: Route = "soft",
        where: Filter | None = None,
        boost: Boost | None = None,
        exact: bool = False,
        vectors: np.ndarray | None = None,
    ) -> list[list[ScoredEntry]]:
        """The k best entries for each query among those that pass, now (the log's end is at `end`) or, with a
        `position`, as of then; see `Corpus.search_many`."""
        if position is not None:
            past = self._corpus_at(position, where)
            return past.search_many(queries, k, route=route, boost=boost, vectors=vectors)
        corpus = self._checkout(end)
        found = corpus.search_many(queries, k, route=route, where=where, boost=boost, exact=exact, vectors=vectors)
        self._checkin(corpus)
        return found

    def build(self, end: int) -> None:
        """Make ready all that a search needs while the log's end is at `end`."""
        corpus = self._checkout(end)
        corpus.build()
        self._checkin(corpus)

    def _checkout(self, position: int) -> Corpus:
        """The corpus as of the log's end, which is at `position`. It is the caller's until he gives it back with
        `keep`: whatever stops him half-way, a new one is made then."""
        # Taken out while it changes: interrupted half-way, it is made anew instead of being half right.
        corpus, self._corpus = self._corpus, None
        if corpus is not None and position == self._position:
            return corpus
        erased = corpus is not None and self._rows.erased_after(self._position)
        if corpus is None or erased:
            self._background.stop()  # it worked for a corpus that is no more
        if erased:
            corpus = None
        elif corpus is None and (saved := self._cache.load()) is not None:
            self._position, parts = saved
            corpus = corpus_from_arrays(parts, self._encoder(), self._rows.live, self._background, self._compact)
        if corpus is None:
            corpus = self._build_corpus()
        elif position != self._position:
            changed = self._rows.changed(self._position)
            there = self._rows.many(changed, None)
            created = self._rows.created([id for id, entry in there.items() if entry.turn is not None])
            corpus.add_many(Document.from_entry(there[id], created.get(id)) for id in changed if id in there)
            for id in changed:
                if id not in there and id in corpus:
                    corpus.remove(id)
        self._position = position
        return corpus

    def _checkin(self, corpus: Corpus) -> None:
        """Give back what was taken."""
        self._corpus = corpus

    def _corpus_at(self, position: int, chosen: Filter | None) -> Corpus:
        """What was searchable at a position, of what passes a filter."""
        entries = [e for e in self._rows.live(position=position) if chosen is None or chosen.matches(e)]
        documents = (Document.from_entry(entry, place) for place, entry in enumerate(entries))
        return Corpus(self._encoder(), documents, lambda: entries)

    def save(self) -> None:
        """Write it to the file beside the store, where that pays. Not inside a transaction."""
        corpus, self._corpus = self._corpus, None
        if corpus is not None:
            rebuilt = corpus.has_new_lists
            self._cache.save(self._position, len(corpus), lambda: corpus_to_arrays(corpus), force=rebuilt)
            self._corpus = corpus

    def close(self) -> None:
        """End what goes on in the background, and save."""
        self._background.stop()
        self.save()
        self._corpus = None

    def _build_corpus(self) -> Corpus:
        """The corpus made from the rows."""
        corpus = Corpus(self._encoder(), (), self._rows.live, self._background, self._compact)
        rest = []
        for page in self._rows.searchable(_PAGE):
            rest += [row for row in page if row[-1] is None]
            self._load_rows(corpus, [row for row in page if row[-1] is not None])
        self._load_rows(corpus, rest)
        return corpus

    def _load_rows(self, corpus: Corpus, rows: list[tuple]) -> None:
        """Put rows of `searchable` in: all of them have a vector, or none."""
        if rows:
            ids, texts, groups, orders, *origins, vectors = zip(*rows, strict=True)
            known = vectors[0] is not None
            stored = np.frombuffer(b"".join(vectors), "<f4").reshape(len(ids), -1) if known else None
            corpus.load(ids, texts, groups, orders, list(map(Span.from_origin, *origins)), stored)

    def _encoder(self) -> StoredEmbedder:
        return StoredEmbedder(self._rows, self._embedder.load())
