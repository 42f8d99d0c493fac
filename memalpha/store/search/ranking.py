"""What a search makes of the documents that it is over: their parts, the sums of these, and the priors of groups.

Nothing here knows where documents come from: `Selection` is filled from a corpus in memory (`retrieval`) or from what a
server sends (`postgres_search`), so that both score alike. What a score is made of is said in `retrieval`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from memalpha.errors import StoreError
from memalpha.store.search.bm25 import BM25, TermMatches
from memalpha.store.search.normalize import scale, share_of_best
from memalpha.store.search.span_bm25 import NeighbourBM25

if TYPE_CHECKING:
    from memalpha.store.search.ann import Candidates
    from memalpha.store.search.boost import Boost

Route = Literal["soft", "flat", "dense", "bm25", "hard"]
ROUTES: tuple[Route, ...] = ("soft", "flat", "dense", "bm25", "hard")


def check_route(route: str, k: int) -> None:
    """Raise `StoreError` for an unknown route and a negative k."""
    if route not in ROUTES:
        raise StoreError(f"route {route!r} is not one of {', '.join(ROUTES)}")
    if k < 0:
        raise StoreError(f"k {k}: 0 or more is needed")


class Selection(ABC):
    """The documents that a search is over, with the statistics of these alone.

    `groups` int64 `(n,)`: the group of each document, a number below `size`.
    """

    score_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}  # of the scores: those of the documents themselves

    def __init__(self, groups: np.ndarray, size: int) -> None:
        self.groups, self.size = groups, size

    @property
    @abstractmethod
    def lengths(self) -> np.ndarray:
        """Words of each document, `(n,)`."""

    @abstractmethod
    def match_terms(self, query: Sequence[str]) -> TermMatches | None:
        """Where a query's terms are among the documents; None where no document holds any."""

    @abstractmethod
    def spans(self) -> np.ndarray | None:
        """The number of each document's source (0: no span), its chunk and its step, int64 `(n, 3)`; None where there
        are no spans."""

    @abstractmethod
    def dense_scores(self, vector: np.ndarray) -> np.ndarray:
        """Inner products of a query's vector `(1, dim)` with each document's, float64 `(n,)`."""

    @abstractmethod
    def prototype_scores(self, vector: np.ndarray) -> np.ndarray:
        """Inner products of a query's vector `(1, dim)` with the prototypes of the first groups, float64."""

    @cached_property
    def _neighbours(self) -> NeighbourBM25 | None:
        spans = self.spans()
        if spans is None or not spans[:, 0].any():
            return None
        sources, chunks, steps = spans.T
        return NeighbourBM25(sources, chunks, steps, self.lengths)

    @cached_property
    def _bm25(self) -> BM25:
        return BM25(self.lengths)

    @cached_property
    def _group_bm25(self) -> BM25:
        return BM25(self.lengths, self.groups, self.size)

    def bm25_scores(self, query: Sequence[str]) -> np.ndarray:
        """The words of layer two: BM25 of each document, float64 `(n,)`."""
        return self._bm25.scores(self.match_terms(query))

    def neighbour_scores(self, query: Sequence[str]) -> np.ndarray | None:
        """The same with the words around spans, float64 `(n,)`; None where there are no spans."""
        return None if self._neighbours is None else self._neighbours.scores(self.match_terms(query))

    def group_prior(self, query: Sequence[str], vector: np.ndarray) -> np.ndarray:
        """Layer one: the prior of each document's group, float64 `(n,)`."""
        return self._prior_by_group(query, vector)[self.groups]

    def in_best_groups(self, query: Sequence[str], vector: np.ndarray) -> np.ndarray:
        """Which documents are in the best round(sqrt(groups)) groups, bool `(n,)`."""
        prior = self._prior_by_group(query, vector)
        best = np.sort(prior[np.unique(self.groups)])
        return prior[self.groups] >= best[-max(1, round(len(best) ** 0.5))]

    def _prior_by_group(self, query: Sequence[str], vector: np.ndarray) -> np.ndarray:
        near = np.zeros(self.size)
        scores = self.prototype_scores(vector)
        near[: len(scores)] = scores
        return (share_of_best(self._group_bm25.scores(self.match_terms(query))) + share_of_best(near)) / 2


class ScoreParts(NamedTuple):
    """What the scores of documents are made of.

    `kept`: which of the selection's documents these are; `parts`: what a result explains its score by, `terms`: what
    adds up to it, `(n,)` each; `ends`: the smallest and largest dense score where these are scaled.
    """

    subset: np.ndarray | slice
    parts: dict[str, np.ndarray]
    terms: list[np.ndarray]
    dense_range: tuple[float, float] | None


def score_documents(
    selection: Selection | Candidates,
    query: Sequence[str],
    vector: np.ndarray | None,
    route: Route,
    boost: Boost | None,
    numbers: Callable[[str], np.ndarray],
) -> ScoreParts:
    """The parts of a query's scores; `vector` `(1, dim)` unless the route is "bm25". `numbers` gives a field of the
    entries as numbers, in the selection's order."""
    kept: np.ndarray | slice = slice(None)
    parts: dict[str, np.ndarray] = {}
    if vector is not None:
        parts["dense"] = selection.dense_scores(vector)
    if route != "dense":
        parts["bm25"] = selection.bm25_scores(query)
    if route == "hard" and isinstance(selection, Selection):
        assert vector is not None
        kept = selection.in_best_groups(query, vector)
        parts = {name: values[kept] for name, values in parts.items()}
    ends = None
    if route == "dense" or route == "bm25":
        terms = [parts[route]]
    else:
        near = selection.neighbour_scores(query) if route == "soft" else None
        if near is not None:
            parts["around"] = near - parts["bm25"]
        ends = selection.score_ranges.get("dense") or (parts["dense"].min(), parts["dense"].max())
        worded = scale(parts["bm25"] if near is None else near, selection.score_ranges.get("bm25"))
        terms = [scale(parts["dense"], ends), worded]
    if route == "soft" and vector is not None:
        parts["group"] = selection.group_prior(query, vector)
        terms.append(parts["group"])
    if boost is not None:
        more = boost.terms(lambda field: numbers(field)[kept])
        parts |= more
        terms += more.values()
    return ScoreParts(kept, parts, terms, ends)
