"""Entries that a PostgreSQL search reads: which ones, and the parts of their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from memalpha.store.backends.postgres.filters import PARSED, narrowed, verdict
from memalpha.store.filters import Filter
from memalpha.store.search.bm25 import K1, B, TermMatches
from memalpha.store.search.ranking import Selection
from memalpha.store.search.vectors import inner_products, unit_directions


class Over(NamedTuple):
    """The entries that a search is over: rows `v` like those of `versions`, a condition, and the parameters of both.

    `where`: a filter that the condition does not say all of; then `v.passes` is null where it is to be asked.
    `digests`: the contents that these entries have, where they are few.
    """

    sql: str
    values: tuple[Any, ...]
    rows: str = "versions v"
    given: tuple[Any, ...] = ()
    where: Filter | None = None
    digests: list[bytes] | None = None

    def only(self, condition: str, value: Any) -> Over:
        """Those of them that fulfil another condition."""
        return self._replace(sql=f"{self.sql} AND {condition}", values=(*self.values, value))

    def passing(self, where: Filter) -> Over:
        """Those of them that pass a filter, and those of which the server cannot say."""
        least, told = narrowed(where), verdict(where)
        if least.exact:
            return Over(f"{self.sql} AND {least.sql}", (*self.values, *least.values))
        rows = f"SELECT v.*, {PARSED} FROM {self.rows} WHERE {self.sql} AND {least.sql} OFFSET 0"
        rows = f"SELECT v.*, {told.sql} AS passes FROM ({rows}) v OFFSET 0"  # each said once: OFFSET keeps it so
        given = (*told.values, *self.values, *least.values)
        return Over("v.passes IS NOT false", (), f"({rows}) v", given, where)

    def source(self, ns: int, way: str, table: str) -> tuple[str, tuple[Any, ...]]:
        """What follows FROM where a table of contents is joined, as `x`; and the parameters up to here."""
        on, given = "x.ns = ? AND x.digest = v.digest", (*self.given, ns)
        if self.digests is not None:
            on, given = f"{on} AND x.digest = ANY(?::bytea[])", (*given, self.digests)
        return f"{self.rows} {way} JOIN {table} x ON {on}", given


class Fetched(Selection):
    """Entries that the server gave for one query, in the order of the positions `created` that made their ids.

    `orders`, `lengths` (given later), `products` and `places` (source, chunk, step) are by entry; `sums`
    `(groups, dim)`: of the vectors of each group; `fields`: what a boost needs.
    """

    found: TermMatches | None = None

    def __init__(
        self, groups: np.ndarray, documents: np.ndarray, sums: np.ndarray, fields: dict[str, np.ndarray]
    ) -> None:
        super().__init__(groups, len(sums))
        self.fields, self._sums = fields, sums
        given = documents.dtype.names or ()
        self.created, self.orders = (documents[name].astype(np.int64) for name in ("created", "order"))
        self.products = np.round(documents["dense"].astype(np.float64), 5) if "dense" in given else np.zeros(0)
        self._lengths = np.zeros(len(documents), np.int64)
        self._spans = None
        if "source" in given:
            sources = documents["source"]
            numbers = np.where(sources == 0, 0, 1 + np.unique(sources, return_inverse=True)[1])
            self._spans = np.stack([numbers, documents["chunk"].astype(np.int64), self.created], axis=1)

    def hold(self, lengths: np.ndarray, found: TermMatches | None) -> None:
        """Take the number of each entry's words, and where those of the query are."""
        self._lengths, self.found = lengths, found

    @property
    def lengths(self) -> np.ndarray:
        return self._lengths

    def match_terms(self, query: Sequence[str]) -> TermMatches | None:
        return self.found

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


class Likely(Fetched):
    """The candidates of a large memory, with the word statistics of all of it."""

    words: WordStatistics

    def bm25_scores(self, query: Sequence[str]) -> np.ndarray:
        if self.found is None:
            return np.zeros(len(self.created))
        _, terms, places, counts = self.found
        penalties = K1 * (1.0 - B + B * self.lengths[places] / self.words.mean)
        return np.bincount(places, self.words.idfs[terms] * counts / (counts + penalties), len(self.created))
