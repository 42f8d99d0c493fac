"""Entries that a PostgreSQL search reads: which ones, and the parts of their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from memalpha.store.backends.postgres.filters import PARSED_METADATA, prefilter, sql_verdict
from memalpha.store.filters import Filter
from memalpha.store.search.bm25 import K1, B, TermMatches
from memalpha.store.search.ranking import Selection
from memalpha.store.search.vectors import inner_products, unit_directions


class EntryScope(NamedTuple):
    """The entries that a search is over: rows `v` like those of `versions`, a condition, and the parameters of both.

    `where`: a filter that the condition does not say all of; then `v.passes` is null where it is to be asked.
    `digests`: the contents that these entries have, where they are few.
    """

    sql: str
    values: tuple[Any, ...]
    rows: str = "versions v"
    row_values: tuple[Any, ...] = ()
    where: Filter | None = None
    digests: list[bytes] | None = None

    def restrict(self, condition: str, value: Any) -> EntryScope:
        """Those of them that fulfil another condition."""
        return self._replace(sql=f"{self.sql} AND {condition}", values=(*self.values, value))

    def matching(self, where: Filter) -> EntryScope:
        """Those of them that pass a filter, and those of which the server cannot say."""
        narrow, full = prefilter(where), sql_verdict(where)
        if narrow.exact:
            return EntryScope(f"{self.sql} AND {narrow.sql}", (*self.values, *narrow.values))
        rows = f"SELECT v.*, {PARSED_METADATA} FROM {self.rows} WHERE {self.sql} AND {narrow.sql} OFFSET 0"
        rows = f"SELECT v.*, {full.sql} AS passes FROM ({rows}) v OFFSET 0"  # each said once: OFFSET keeps it so
        row_values = (*full.values, *self.values, *narrow.values)
        return EntryScope("v.passes IS NOT false", (), f"({rows}) v", row_values, where)

    def join(self, namespace_id: int, join_type: str, table: str) -> tuple[str, tuple[Any, ...]]:
        """What follows FROM where a table of contents is joined, as `x`; and the parameters up to here."""
        condition, row_values = "x.ns = ? AND x.digest = v.digest", (*self.row_values, namespace_id)
        if self.digests is not None:
            condition, row_values = f"{condition} AND x.digest = ANY(?::bytea[])", (*row_values, self.digests)
        return f"{self.rows} {join_type} JOIN {table} x ON {condition}", row_values


class FetchedEntries(Selection):
    """Entries that the server gave for one query, in the order of the positions `created` that made their ids.

    `orders`, `lengths` (given later), `products` and `places` (source, chunk, step) are by entry; `sums`
    `(groups, dim)`: of the vectors of each group; `fields`: what a boost needs.
    """

    postings: TermMatches | None = None

    def __init__(
        self, groups: np.ndarray, documents: np.ndarray, sums: np.ndarray, fields: dict[str, np.ndarray]
    ) -> None:
        super().__init__(groups, len(sums))
        self.fields, self._sums = fields, sums
        columns = documents.dtype.names or ()
        self.created, self.orders = (documents[name].astype(np.int64) for name in ("created", "order"))
        self.products = np.round(documents["dense"].astype(np.float64), 5) if "dense" in columns else np.zeros(0)
        self._lengths = np.zeros(len(documents), np.int64)
        self._spans = None
        if "source" in columns:
            sources = documents["source"]
            numbers = np.where(sources == 0, 0, 1 + np.unique(sources, return_inverse=True)[1])
            self._spans = np.stack([numbers, documents["chunk"].astype(np.int64), self.created], axis=1)

    def set_words(self, lengths: np.ndarray, found: TermMatches | None) -> None:
        """Take the number of each entry's words, and where those of the query are."""
        self._lengths, self.postings = lengths, found

    @property
    def lengths(self) -> np.ndarray:
        return self._lengths

    def match_terms(self, query: Sequence[str]) -> TermMatches | None:
        return self.postings

    def spans(self) -> np.ndarray | None:
        return self._spans

    def dense_scores(self, vector: np.ndarray) -> np.ndarray:
        return self.products

    def prototype_scores(self, vector: np.ndarray) -> np.ndarray:
        return inner_products(vector, unit_directions(self._sums))[0]


class WordStatistics(NamedTuple):
    """What is known of the words of a large memory without reading all postings.

    Digests are spread evenly, so where the first `_POSTINGS` of a word's end tells how many there are in all (the
    estimate of Bar-Yossef et al., "Counting distinct elements in a data stream", 2002; its error is 2.2 % here).
    `idfs`: of each word of the query, by its place there; `mean`: words of a content.
    """

    idfs: np.ndarray
    mean: float


class CandidateEntries(FetchedEntries):
    """The candidates of a large memory, with the word statistics of all of it."""

    words: WordStatistics

    def bm25_scores(self, query: Sequence[str]) -> np.ndarray:
        if self.postings is None:
            return np.zeros(len(self.created))
        _, terms, places, counts = self.postings
        penalties = K1 * (1.0 - B + B * self.lengths[places] / self.words.mean)
        return np.bincount(places, self.words.idfs[terms] * counts / (counts + penalties), len(self.created))
