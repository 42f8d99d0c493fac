"""Search in PostgreSQL: the server reads and compares, `ranking` computes the scores as for any other store.

For a query the server returns every matching entry: the inner product of its vector, its length, its position, and
the counts of the query's words. Word statistics, priors and the ranking are computed here. So a filtered search equals
the search of a memory that holds only the matching entries, and other namespaces leave no trace. Nothing is cached
between searches: the next search sees what another process has written.

Above `SIZE` entries, a search of the whole memory scores candidates only: the `NEAR` nearest vectors of the HNSW index,
the `WORDED` best by their words, and as many at random for the usual length. The number of contents with a word is then
known to about 2 % (see `WordStatistics`). Every entry is scored, at any size, for filtered searches, past states, the
route "hard", and "soft" where there are raw spans; also where the index returns too few candidates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from memalpha.store.backends.postgres.fetched import FetchedEntries
from memalpha.store.backends.postgres.namespace import PostgresNamespace
from memalpha.store.backends.postgres.search_queries import HASH_JOINS, SearchQueries
from memalpha.store.embedding import query_coverages
from memalpha.store.filters import Filter
from memalpha.store.indexing.stored_embedder import RecordedEmbedder, StoredEmbedder
from memalpha.store.search.bm25 import words
from memalpha.store.search.documents import ScoredEntry
from memalpha.store.search.normalize import top_k
from memalpha.store.search.options import SearchOptions
from memalpha.store.search.ranking import explain, score_documents

EXHAUSTIVE_UP_TO = 10_000  # entries; up to here a search scores every one
MAX_CANDIDATE_RESULTS = 100  # results; for more, every entry is scored


class PostgresIndex:
    """Searches of one namespace on the server; see `indexing.namespace_index` for the SQLite counterpart.

    It caches nothing. Call `search` inside a transaction.
    """

    def __init__(self, rows: PostgresNamespace, embedder: RecordedEmbedder) -> None:
        self._rows, self._embedder = rows, embedder

    def matching_ids(self, last_position: int, where: Filter) -> None:
        """Return None: there is no corpus in memory (see `NamespaceIndex.matching_ids`)."""

    def catch_up(self, last_position: int) -> None:
        """Do nothing, as `forget`."""

    def forget(self, ids: Collection[str], last_position: int) -> None:
        """Do nothing: there is no corpus in memory (see `NamespaceIndex.forget`)."""

    def search(
        self,
        last_position: int,
        position: int | None,
        queries: Sequence[str],
        options: SearchOptions,
        vectors: np.ndarray | None = None,
    ) -> list[list[ScoredEntry]]:
        """Return the best entries for each query, as `NamespaceIndex.search` does."""
        k, route, where = options.k, options.route, options.filter
        if not queries or not k:
            return [[] for _ in queries]
        encoder = StoredEmbedder(self._rows, self._embedder.load_checked())
        if route == "bm25":
            vectors = None
        elif vectors is None:
            vectors = encoder.encode(queries)
        coverages = query_coverages(encoder, queries) if options.needs_coverage else [1.0] * len(queries)
        with self._rows.transaction(write=False) as connection:
            connection.execute(HASH_JOINS)
            server = SearchQueries(connection, self._rows, encoder, position)
            scope = server.all if where is None else server.all.matching(where)
            is_exhaustive = (
                options.exact
                or position is not None
                or where is not None
                or route in ("hard", "bm25")
                or k > MAX_CANDIDATE_RESULTS
            )
            is_large = (
                not is_exhaustive and last_position > EXHAUSTIVE_UP_TO and server.is_large(route, EXHAUSTIVE_UP_TO)
            )
            results = []
            for index, query in enumerate(queries):
                query_words = Counter(words(query))
                vector = None if vectors is None else vectors[index : index + 1]
                selection = None
                if is_large and vector is not None:
                    selection = server.candidates(query_words, vector, options)
                if selection is None:
                    selection = server.selection(scope, query_words, vector, options)
                ranked = [] if selection is None else _rank(selection, words(query), vector, options, coverages[index])
                results.append(ranked)
            entries = server.entries(list({created for hits in results for created, _, _ in hits}))
        return [
            [ScoredEntry(entries[created].id, score, parts, entries[created]) for created, score, parts in hits]
            for hits in results
        ]

    def build(self, last_position: int) -> None:
        """Do nothing: the server maintains its indexes."""

    def save(self) -> None:
        """Do nothing: the server stores its indexes."""

    def close(self) -> None:
        """Do nothing: nothing is held."""


def _rank(
    selection: FetchedEntries, query: list[str], vector: np.ndarray | None, options: SearchOptions, coverage: float
) -> list[tuple[int, float, dict[str, float]]]:
    """Return the best entries: creation position, score and parts of the score."""
    scored = score_documents(selection, query, vector, options, selection.fields.__getitem__, coverage)
    selected, parts, terms = scored.subset, scored.parts, scored.terms
    total = sum(terms[1:], terms[0])
    best = top_k(total, selection.orders[selected], options.k)
    if options.min_score is not None:
        best = best[total[best] >= options.min_score]
    creation_positions = selection.created[selected][best].tolist()
    return list(zip(creation_positions, total[best].tolist(), explain(parts, best), strict=True))
