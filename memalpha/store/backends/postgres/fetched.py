"""Entries that a PostgreSQL search reads: the set to read from, and the fetched parts of their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from memalpha.store.backends.postgres.filters import PARSED_METADATA, prefilter, sql_verdict
from memalpha.store.filters import Filter
from memalpha.store.search.bm25 import K1, B, TermMatches
from memalpha.store.search.passages import PassageMatches
from memalpha.store.search.ranking import LexicalScores, Selection
from memalpha.store.search.vectors import inner_products, unit_directions


class EntryScope(NamedTuple):
    """Set of entries that a search reads: rows `v` like those of `versions`, and a condition on them.

    Attributes:
        sql: Condition on `v`.
        values: Parameters of the condition.
        rows: Table or subquery that is `v`.
        row_values: Parameters of the subquery.
        where: Filter that the condition does not fully express; `v.passes` is null where `matches` must decide.
        digests: Digests of the entries' contents, if these are few.
    """

    sql: str
    values: tuple[Any, ...]
    rows: str = "versions v"
    row_values: tuple[Any, ...] = ()
    where: Filter | None = None
    digests: list[bytes] | None = None

    def restrict(self, condition: str, value: Any) -> EntryScope:
        """Return the entries that also fulfil another condition."""
        return self._replace(sql=f"{self.sql} AND {condition}", values=(*self.values, value))

    def matching(self, where: Filter) -> EntryScope:
        """Return the entries that match a filter, and those that the server cannot decide."""
        narrow, full = prefilter(where), sql_verdict(where)
        if narrow.exact:
            return EntryScope(f"{self.sql} AND {narrow.sql}", (*self.values, *narrow.values))
        rows = f"SELECT v.*, {PARSED_METADATA} FROM {self.rows} WHERE {self.sql} AND {narrow.sql} OFFSET 0"
        rows = f"SELECT v.*, {full.sql} AS passes FROM ({rows}) v OFFSET 0"  # OFFSET 0: evaluate once
        row_values = (*full.values, *self.values, *narrow.values)
        return EntryScope("v.passes IS NOT false", (), f"({rows}) v", row_values, where)

    def join(self, namespace_id: int, join_type: str, table: str) -> tuple[str, tuple[Any, ...]]:
        """Return the FROM clause that joins a table of contents as `x`, and its parameters.

        Args:
            namespace_id: Id of the namespace.
            join_type: "INNER" or "LEFT".
            table: "vectors" or "postings".
        """
        condition, row_values = "x.ns = ? AND x.digest = v.digest", (*self.row_values, namespace_id)
        if self.digests is not None:
            condition, row_values = f"{condition} AND x.digest = ANY(?::bytea[])", (*row_values, self.digests)
        return f"{self.rows} {join_type} JOIN {table} x ON {condition}", row_values


def live_scope(namespace_id: int, position: int | None) -> EntryScope:
    """Return the scope of all entries of a namespace that are live, or were at a position."""
    if position is None:
        return EntryScope("v.ns = ? AND v.valid_to IS NULL", (namespace_id,))
    was_live = "v.ns = ? AND v.valid_from <= ? AND (v.valid_to IS NULL OR v.valid_to > ?)"
    return EntryScope(was_live, (namespace_id, position, position))


class FetchedEntries(Selection):
    """Entries fetched for one query, ordered by creation position.

    Args:
        groups: Group index of each entry, (n,).
        documents: Fetched columns, structured array (n,).
        sums: Sum of the vectors of each group, (groups, dim).
        fields: Importance and timestamp by entry, for a boost.
    """

    postings: TermMatches | None = None
    passages: PassageMatches | None = None

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

    def set_words(self, lengths: np.ndarray, postings: TermMatches | None) -> None:
        """Set the word count of each entry and the postings of the query's words."""
        self._lengths, self.postings = lengths, postings

    @property
    def lengths(self) -> np.ndarray:
        return self._lengths

    def match_terms(self, query: Sequence[str]) -> TermMatches | None:
        return self.postings

    def match_passages(self, query: Sequence[str]) -> PassageMatches | None:
        return self.passages

    def spans(self) -> np.ndarray | None:
        return self._spans

    def dense_scores(self, vector: np.ndarray) -> np.ndarray:
        return self.products

    def prototype_scores(self, vector: np.ndarray) -> np.ndarray:
        return inner_products(vector, unit_directions(self._sums))[0]


class WordStatistics(NamedTuple):
    """Estimated word statistics of a large memory.

    Digests are uniform, so the digest of a word's last read posting tells how many postings the word has in all
    (Bar-Yossef et al., "Counting distinct elements in a data stream", 2002; relative error 2.2 % here).

    Attributes:
        idfs: Weight of each query word, in query order.
        mean: Mean number of words of a passage, as of `effective_total`.
    """

    idfs: np.ndarray
    mean: float


class CandidateEntries(FetchedEntries):
    """Candidates of a large memory, scored with its estimated word statistics."""

    words: WordStatistics

    def bm25_scores(self, query: Sequence[str]) -> LexicalScores:
        if self.postings is None:
            return LexicalScores(np.zeros(len(self.created)), np.full(len(self.created), np.nan))
        _, terms, documents, counts = self.postings
        idfs, mean = self.words
        penalties = K1 * (1.0 - B + B * self.lengths[documents] / mean)
        scores = np.bincount(documents, idfs[terms] * counts / (counts + penalties), len(self.created))
        return self._with_passages(query, scores, idfs, 1 / mean)
