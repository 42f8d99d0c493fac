"""Scoring of a set of documents: the parts of their scores, the sums of these, and the priors of groups.

A `Selection` gives the statistics of the documents that a search covers. It is filled from a corpus in memory
(`corpus_selection`) or from what a server sends (`postgres.fetched`), so both score alike. `corpus` explains the score.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from memalpha.store.search.bm25 import BM25, TermMatches
from memalpha.store.search.normalize import scale, share_of_best
from memalpha.store.search.span_bm25 import NeighbourBM25

if TYPE_CHECKING:
    from memalpha.store.search.ann import Candidates
    from memalpha.store.search.options import SearchOptions

Route = Literal["soft", "flat", "dense", "bm25", "hard"]
ROUTES: tuple[Route, ...] = ("soft", "flat", "dense", "bm25", "hard")


class Selection(ABC):
    """Documents that a search covers, with the statistics of these alone.

    Attributes:
        groups: Group of each document, int64 `(n,)`, below `size`.
        size: Number of groups.
        score_ranges: Minimum and maximum by part of the score, over more documents than these; empty by default.
    """

    score_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}

    def __init__(self, groups: np.ndarray, group_count: int) -> None:
        self.groups, self.size = groups, group_count

    @property
    @abstractmethod
    def lengths(self) -> np.ndarray:
        """Number of words of each document, `(n,)`."""

    @abstractmethod
    def match_terms(self, query: Sequence[str]) -> TermMatches | None:
        """Return the matches of a query's terms among the documents; None if there are none."""

    @abstractmethod
    def spans(self) -> np.ndarray | None:
        """Return source number (0: no span), chunk, position of each document, int64 `(n, 3)`; None without spans."""

    @abstractmethod
    def dense_scores(self, vector: np.ndarray) -> np.ndarray:
        """Return the inner products of a query's vector `(1, dim)` with the documents', float64 `(n,)`."""

    @abstractmethod
    def prototype_scores(self, vector: np.ndarray) -> np.ndarray:
        """Return the inner products of a query's vector `(1, dim)` with the prototypes of the first groups."""

    @cached_property
    def _neighbours(self) -> NeighbourBM25 | None:
        spans = self.spans()
        if spans is None or not spans[:, 0].any():
            return None
        sources, chunks, positions = spans.T
        return NeighbourBM25(sources, chunks, positions, self.lengths)

    @cached_property
    def _bm25(self) -> BM25:
        return BM25(self.lengths)

    @cached_property
    def _group_bm25(self) -> BM25:
        return BM25(self.lengths, self.groups, self.size)

    def bm25_scores(self, query: Sequence[str]) -> np.ndarray:
        """Return BM25 of each document (layer two), float64 `(n,)`."""
        return self._bm25.scores(self.match_terms(query))

    def neighbour_scores(self, query: Sequence[str]) -> np.ndarray | None:
        """Return BM25 with the words of neighbouring spans, float64 `(n,)`; None without spans."""
        return None if self._neighbours is None else self._neighbours.scores(self.match_terms(query))

    def group_prior(self, query: Sequence[str], vector: np.ndarray) -> np.ndarray:
        """Return the prior of each document's group (layer one), float64 `(n,)`."""
        return self._prior_by_group(query, vector)[self.groups]

    def in_best_groups(self, query: Sequence[str], vector: np.ndarray) -> np.ndarray:
        """Return a mask of the documents in the best round(sqrt(groups)) groups, bool `(n,)`."""
        prior = self._prior_by_group(query, vector)
        sorted_priors = np.sort(prior[np.unique(self.groups)])
        return prior[self.groups] >= sorted_priors[-max(1, round(len(sorted_priors) ** 0.5))]

    def _prior_by_group(self, query: Sequence[str], vector: np.ndarray) -> np.ndarray:
        similarities = np.zeros(self.size)
        scores = self.prototype_scores(vector)
        similarities[: len(scores)] = scores
        return (share_of_best(self._group_bm25.scores(self.match_terms(query))) + share_of_best(similarities)) / 2


class ScoreParts(NamedTuple):
    """Parts of the scores of some documents.

    Attributes:
        subset: Index of these documents in the selection.
        parts: Values `(n,)` that explain a score, by name.
        terms: Values `(n,)` that add up to the score.
        dense_range: Smallest and largest dense score, if dense scores are scaled.
    """

    subset: np.ndarray | slice
    parts: dict[str, np.ndarray]
    terms: list[np.ndarray]
    dense_range: tuple[float, float] | None


def score_documents(
    selection: Selection | Candidates,
    query: Sequence[str],
    vector: np.ndarray | None,
    options: SearchOptions,
    numbers: Callable[[str], np.ndarray],
) -> ScoreParts:
    """Score the documents of a selection for one query.

    Args:
        selection: Documents to score.
        query: Terms of the query.
        vector: Embedding of the query `(1, dim)`; None for the route "bm25".
        options: Options of the search; the route is explained in `corpus`.
        numbers: Returns a field of the entries as numbers, in the selection's order.
    """
    route, boost = options.route, options.boost
    subset: np.ndarray | slice = slice(None)
    parts: dict[str, np.ndarray] = {}
    if vector is not None:
        parts["dense"] = selection.dense_scores(vector)
    if route != "dense":
        parts["bm25"] = selection.bm25_scores(query)
    if route == "hard" and isinstance(selection, Selection):
        assert vector is not None
        subset = selection.in_best_groups(query, vector)
        parts = {name: values[subset] for name, values in parts.items()}
    dense_range = None
    if route == "dense" or route == "bm25":
        terms = [parts[route]]
    else:
        with_neighbours = selection.neighbour_scores(query) if route == "soft" else None
        if with_neighbours is not None:
            parts["around"] = with_neighbours - parts["bm25"]
        dense_range = selection.score_ranges.get("dense") or (parts["dense"].min(), parts["dense"].max())
        lexical = scale(
            parts["bm25"] if with_neighbours is None else with_neighbours, selection.score_ranges.get("bm25")
        )
        terms = [scale(parts["dense"], dense_range), lexical]
    if route == "soft" and vector is not None:
        parts["group"] = selection.group_prior(query, vector)
        terms.append(parts["group"])
    if boost is not None:
        boosts = boost.terms(lambda field: numbers(field)[subset])
        parts |= boosts
        terms += boosts.values()
    return ScoreParts(subset, parts, terms, dense_range)
