"""Scoring of a set of documents: the parts of their scores, the sums of these, and the priors of groups.

A `Selection` gives the statistics of the documents that a search covers (`corpus_selection`). `corpus` explains the
score.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from memalpha.store.search.bm25 import BM25, TermMatches
from memalpha.store.search.normalize import scale, share_of_best
from memalpha.store.search.passages import PassageMatches, effective_total
from memalpha.store.search.span_bm25 import NeighbourBM25

if TYPE_CHECKING:
    from memalpha.store.search.ann import Candidates
    from memalpha.store.search.options import SearchOptions

Route = Literal["soft", "flat", "dense", "bm25", "hard"]
ROUTES: tuple[Route, ...] = ("soft", "flat", "dense", "bm25", "hard")
COMBINED_ROUTES: tuple[Route, ...] = ("soft", "flat", "hard")


class LexicalScores(NamedTuple):
    """BM25 of documents.

    Attributes:
        scores: Score of each document, float64 `(n,)`.
        passages: Number of the best passage of each long document, NaN elsewhere, float64 `(n,)`.
        own: Score without the words of neighbouring spans, float64 `(n,)`; None if they do not count.
    """

    scores: np.ndarray
    passages: np.ndarray
    own: np.ndarray | None = None


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

    def match_passages(self, query: Sequence[str]) -> PassageMatches | None:
        """Return the matches of a query's terms among passages of long documents; None if there are none."""
        return None

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
    def _inverse_mean(self) -> float:
        passages, total = effective_total(self.lengths)
        return passages / total if total else 0.0

    @cached_property
    def _bm25(self) -> BM25:
        return BM25(self.lengths, inverse_mean=self._inverse_mean)

    @cached_property
    def _group_bm25(self) -> BM25:
        return BM25(self.lengths, self.groups, self.size)

    def bm25_scores(self, query: Sequence[str]) -> LexicalScores:
        """Return BM25 of each document (layer two)."""
        scores, idf = self._bm25.scores(self.match_terms(query))
        return self._with_passages(query, scores, idf, self._inverse_mean)

    def neighbour_scores(self, query: Sequence[str]) -> LexicalScores | None:
        """Return BM25 with the words of neighbouring spans; None without spans."""
        if self._neighbours is None:
            return None
        matches = self.match_terms(query)
        own_scores, _ = self._bm25.scores(matches)
        scores, idf = self._neighbours.scores(matches)
        scored = self._with_passages(query, scores, idf, self._neighbours.inverse_mean)
        # A long entry is searched without its neighbours.
        return scored._replace(own=np.where(np.isnan(scored.passages), own_scores, scored.scores))

    def _with_passages(
        self, query: Sequence[str], scores: np.ndarray, idf: np.ndarray, inverse_mean: float
    ) -> LexicalScores:
        """Score long documents by their best passage instead, in place."""
        numbers = np.full(len(scores), np.nan)
        matches = self.match_passages(query) if len(idf) else None
        if matches is not None:
            best = matches.best(idf, self.lengths, inverse_mean)
            scores[best.documents], numbers[best.documents] = best.scores, best.numbers
        return LexicalScores(scores, numbers)

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
        return (share_of_best(self._group_bm25.scores(self.match_terms(query))[0]) + share_of_best(similarities)) / 2


class ScoreParts(NamedTuple):
    """Parts of the scores of some documents.

    Attributes:
        subset: Index of these documents in the selection.
        parts: Values `(n,)` that explain a score, by name; NaN where a document has no such part.
        terms: Values `(n,)` that add up to the score; the dense one is the first, if there is one.
        dense_range: Smallest and largest dense score, if dense scores are scaled.
        dense_weight: Weight of the scaled dense scores.
    """

    subset: np.ndarray | slice
    parts: dict[str, np.ndarray]
    terms: list[np.ndarray]
    dense_range: tuple[float, float] | None
    dense_weight: float = 1.0


def score_documents(
    selection: Selection | Candidates,
    query: Sequence[str],
    vector: np.ndarray | None,
    options: SearchOptions,
    numbers: Callable[[str], np.ndarray],
    coverage: float = 1.0,
) -> ScoreParts:
    """Score the documents of a selection for one query.

    Args:
        selection: Documents to score.
        query: Terms of the query.
        vector: Embedding of the query `(1, dim)`; None for the route "bm25".
        options: Options of the search; the route is explained in `corpus`.
        numbers: Returns a field of the entries as numbers, in the selection's order.
        coverage: Share of the query that the embedder knows, by which its part counts.
    """
    route, boost, weights = options.route, options.boost, options.weights or {}
    subset: np.ndarray | slice = slice(None)
    parts: dict[str, np.ndarray] = {}
    dense = None if vector is None else selection.dense_scores(vector)
    lexical = None
    if route != "dense":
        lexical = (selection.neighbour_scores(query) if route == "soft" else None) or selection.bm25_scores(query)
    if route == "hard" and isinstance(selection, Selection):
        assert vector is not None
        subset = selection.in_best_groups(query, vector)
    if dense is not None:
        dense = parts["dense"] = dense[subset]
    scores = None
    if lexical is not None:
        scores = lexical.scores[subset]
        parts["bm25"] = scores if lexical.own is None else lexical.own
        if lexical.own is not None:
            parts["around"] = scores - lexical.own
        if not np.isnan(lexical.passages).all():
            parts["passage"] = lexical.passages[subset]
    dense_range, dense_weight = None, coverage * weights.get("dense", 1.0)
    if dense is None or scores is None:
        terms = [values for values in (dense, scores) if values is not None]
    else:
        dense_range = selection.score_ranges.get("dense") or (dense.min(), dense.max())
        scaled = scale(scores, selection.score_ranges.get("bm25"))
        terms = [dense_weight * scale(dense, dense_range), weights.get("bm25", 1.0) * scaled]
    if route == "soft" and vector is not None:
        parts["group"] = selection.group_prior(query, vector)
        terms.append(weights.get("group", 1.0) * parts["group"])
    if boost is not None:
        boosts = boost.terms(lambda field: numbers(field)[subset])
        parts |= boosts
        terms += boosts.values()
    return ScoreParts(subset, parts, terms, dense_range, dense_weight)


def explain(parts: dict[str, np.ndarray], indices: np.ndarray) -> list[dict[str, float]]:
    """Return the parts of some documents' scores by name, without those that a document lacks."""
    columns = [values[indices].tolist() for values in parts.values()]
    return [
        {name: value for name, value in zip(parts, row, strict=True) if value == value}  # NaN differs from itself
        for row in zip(*columns, strict=True)
    ]
