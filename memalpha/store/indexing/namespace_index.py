"""Search index of one namespace: built on first use, updated from the operation log, cached beside the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from memalpha.store.backends.namespace import Namespace
from memalpha.store.backends.row_codec import check_texts, decode_vectors
from memalpha.store.indexing.cache import IndexCache
from memalpha.store.indexing.corpus_arrays import are_sound, corpus_from_arrays, corpus_to_arrays
from memalpha.store.indexing.stored_embedder import RecordedEmbedder, StoredEmbedder
from memalpha.store.search.background import Background
from memalpha.store.search.corpus import CompactVectors, Corpus
from memalpha.store.search.documents import Document, ScoredEntry
from memalpha.store.search.options import SearchOptions
from memalpha.store.search.span_bm25 import Span
from memalpha.store.search.vectors import Precision

_PAGE = 20_000


class NamespaceIndex:
    """Keep the search corpus of a namespace in step with its operation log, whoever writes it.

    Call every method except `save` and `close` inside a transaction.
    """

    def __init__(self, rows: Namespace, embedder: RecordedEmbedder, vectors: Precision) -> None:
        self._rows, self._embedder = rows, embedder
        self._cache = IndexCache(rows, vectors)
        self._compact = None
        if vectors != "float32":
            self._compact = CompactVectors(vectors, lambda ids: self._encoder().entry_vectors(ids))
        self._background = Background()
        self._corpus: Corpus | None = None
        self._position, self._namespace_id = 0, -1
        self._rollbacks: int | None = None  # of the database, if the corpus holds what is not committed yet

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
        if position is not None:
            entries = [
                entry
                for entry in self._rows.entries.live(position=position)
                if options.filter is None or options.filter.matches(entry)
            ]
            documents = (Document.from_entry(entry, index) for index, entry in enumerate(entries))
            corpus = Corpus(self._encoder(), documents, lambda: entries)
            return corpus.search_many(queries, replace(options, category=None, where=None), vectors)
        corpus = self._checkout(last_position)
        results = corpus.search_many(queries, options, vectors)
        self._checkin(corpus)
        return results

    def build(self, last_position: int) -> None:
        """Build everything that a search at the log's end needs."""
        corpus = self._checkout(last_position)
        corpus.build()
        self._checkin(corpus)

    def _checkout(self, position: int) -> Corpus:
        """Return the corpus updated to the log's end at `position`, and clear the stored reference.

        An exception before `_checkin` leaves no half-updated corpus behind: the next search rebuilds it.
        """
        corpus, self._corpus = self._corpus, None
        namespace_id = self._rows.scope.namespace_id
        if namespace_id != self._namespace_id:  # the first search, or the namespace was dropped and made anew
            corpus, self._namespace_id = None, namespace_id
        if self._rollbacks not in (None, self._rows.database.rollbacks):  # it may hold what was undone
            corpus = None
        if corpus is not None and position == self._position:
            return corpus
        was_erased = corpus is not None and self._rows.log.has_erasure_after(self._position)
        if corpus is None or was_erased:
            self._background.stop()  # its work is for a corpus that is dropped
        if was_erased:
            corpus = None
        elif corpus is None and (saved := self._cache.load()) is not None:
            self._position, arrays = saved
            if are_sound(arrays, self._encoder(), self._compact):
                corpus = corpus_from_arrays(
                    arrays, self._encoder(), self._rows.entries.live, self._background, self._compact
                )
        if corpus is None:
            corpus = self._build_corpus()
        elif position != self._position:
            changed = self._rows.log.changed_ids(self._position)
            entries = self._rows.entries.versions_at(changed, None)
            created = self._rows.entries.creation_positions(
                [id for id, entry in entries.items() if entry.turn is not None]
            )
            corpus.add_many(Document.from_entry(entries[id], created.get(id)) for id in changed if id in entries)
            for id in changed:
                if id not in entries and id in corpus:
                    corpus.remove(id)
        self._position = position
        return corpus

    def _checkin(self, corpus: Corpus) -> None:
        """Store the corpus for the next search."""
        self._rollbacks = self._rows.database.rollbacks if self._rows.database.is_writing else None
        self._corpus = corpus

    def save(self) -> None:
        """Write the corpus to the index file, if it pays. Do not call this inside a transaction."""
        corpus, self._corpus = self._corpus, None
        if corpus is not None:
            rebuilt = corpus.has_new_lists
            self._cache.save(self._position, len(corpus), lambda: corpus_to_arrays(corpus), force=rebuilt)
            self._corpus = corpus

    def close(self) -> None:
        """Stop work in the background, and save."""
        self._background.stop()
        self.save()
        self._corpus = None

    def _build_corpus(self) -> Corpus:
        """Build the corpus from the stored rows."""
        corpus = Corpus(self._encoder(), (), self._rows.entries.live, self._background, self._compact)
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
            check_texts(ids, texts)
            stored = None if vectors[0] is None else decode_vectors(ids, vectors, self._embedder.dim)
            corpus.load(ids, texts, groups, orders, list(map(Span.from_origin, *origins)), stored)

    def _encoder(self) -> StoredEmbedder:
        return StoredEmbedder(self._rows, self._embedder.load_checked())
